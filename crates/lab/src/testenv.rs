//! What a test needs from its surroundings, and what happens without it.
//!
//! Elsewhere than in CI a missing need skips the test and says why; with
//! `CI=true` in the environment it fails it, so that nothing is silently
//! left untested.
//!
//! | variable | means |
//! |---|---|
//! | `CI=true` | a test that would be skipped fails |
//! | `WEIR_SKIPPED=FILE` | each skip is a line of this file too: `skipped: TEST: REASON` |
//! | `WEIR_CAPTURES=FOLDER` | the captures are there, and not beside the checkout |

use crate::command::Command;
use crate::watch;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use weir_link::bpf::{Map, MapSpec};

/// The file that lists what was skipped.
const LIST: &str = "WEIR_SKIPPED";

/// Skips the running test for `reason`: panics under CI, else prints it, past
/// the capture of the test's output. The caller returns right after.
///
/// # Panics
/// Under CI, and if `WEIR_SKIPPED` names a file that cannot be written.
pub fn skip(reason: &str) {
    let line = format!("skipped: {}: {reason}\n", test());
    if let Some(path) = std::env::var_os(LIST) {
        let file = File::options().append(true).create(true).open(&path);
        // In one write: other tests write too.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{LIST}={}: {error}", path.display()));
    }
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "missing in CI: {reason}");
    write_stderr(&line);
}

/// Writes to standard error, where `eprint!` would write to what the test
/// harness keeps of a test.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// The running test: its executable, less the hash that cargo gives it, and
/// its name.
fn test() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    match thread::current().name() {
        Some(name) if name != "main" => format!("{program} {name}"),
        _ => program.to_owned(),
    }
}

/// Whether this process may make network namespaces, which takes root;
/// `false` (after [`skip`]) if not.
pub fn root() -> bool {
    watch::this_test();
    allowed(has_root())
}

/// Why this process may not make network namespaces, if it may not.
pub(crate) fn has_root() -> Result<(), String> {
    static MADE: OnceLock<Result<(), String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        let made = thread::spawn(own_network).join();
        let made = made.expect("a system call does not panic");
        made.map_err(|error| format!("root may make no network namespaces here: {error}"))
    });
    made.clone()
}

/// Moves the calling thread into a network namespace of its own.
#[allow(unsafe_code)] // A thread leaves the namespace it shares with others.
fn own_network() -> io::Result<()> {
    // SAFETY: the network namespace is not among what threads of a process
    // must share for memory safety; descriptors and memory stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Whether this process can make TAP and TUN interfaces; `false` (after
/// [`skip`]) if not. Root can where the kernel has the driver; which mode the
/// device has is without meaning then, and processes of [`unprivileged`] have a
/// device of their own.
///
/// [`unprivileged`]: crate::net::unprivileged
pub fn tun() -> bool {
    allowed(has_tun())
}

/// Why this process can make no TAP interfaces, if it cannot.
pub(crate) fn has_tun() -> Result<(), String> {
    const DEVICE: &str = "/dev/net/tun";
    let opened = File::options().read(true).write(true).open(DEVICE);
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("no {DEVICE}: modprobe tun"),
        _ => format!("{DEVICE}: {error}"),
    })
}

/// Whether this process may make maps and load programs of eBPF; `false`
/// (after [`skip`]) if not.
pub fn bpf() -> bool {
    watch::this_test();
    let made = Map::create("need", &MapSpec::array(4, 1));
    allowed(made.map(drop).map_err(|error| error.to_string()))
}

/// What a test cannot do without, that may be missing; `None` (after [`skip`]) if
/// it is.
pub fn kernel<T, E: std::fmt::Display>(what: &str, tried: Result<T, E>) -> Option<T> {
    match tried {
        Ok(there) => Some(there),
        Err(error) => {
            skip(&format!("{what}: {error}"));
            None
        }
    }
}

/// A file or a folder of the system, such as `/etc/services`; `false` (after
/// [`skip`]) without it. `remedy` says how to have it.
pub fn file(path: &str, remedy: &str) -> bool {
    let there = Path::new(path).exists();
    allowed(if there {
        Ok(())
    } else {
        Err(format!("no {path} ({remedy})"))
    })
}

/// A program of the system, looked up in `PATH`; `None` (after [`skip`])
/// without it.
///
/// ```no_run
/// # use weir_lab::testenv;
/// # fn test() {
/// let Some(mut tcpdump) = testenv::program("tcpdump") else {
///     return;
/// };
/// let output = tcpdump.arg("--version").output().unwrap();
/// # }
/// ```
///
/// # Panics
/// Under CI without it, and if `name` is a path.
pub fn program(name: &str) -> Option<Command> {
    assert!(!name.contains('/'), "`{name}` is no name of a program");
    match find(name) {
        Some(path) => Some(Command::at(&path)),
        None => {
            skip(&missing(&[name]));
            None
        }
    }
}

/// Whether the system has all of these programs; `false` (after [`skip`]) if
/// not. A test asks at its start when helpers or a shell run them.
pub fn programs(names: &[&str]) -> bool {
    watch::this_test();
    allowed(has_programs(names))
}

/// Which of these programs the system has not, if any.
pub(crate) fn has_programs(names: &[&str]) -> Result<(), String> {
    let lacking = |name: &&str| find(name).is_none();
    let lacking: Vec<&str> = names.iter().copied().filter(lacking).collect();
    match lacking[..] {
        [] => Ok(()),
        _ => Err(missing(&lacking)),
    }
}

/// The first executable file of that name in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| {
        let facts = fs::metadata(place);
        facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    })
}

/// The packages of Debian whose programs tests run, where their names differ.
const PACKAGES: [(&str, &str); 12] = [
    ("bird", "bird2"),
    ("birdc", "bird2"),
    ("bridge", "iproute2"),
    ("cc", "gcc"),
    ("dnsmasq", "dnsmasq-base"),
    ("getent", "libc-bin"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nginx", "nginx-light"),
    ("ping", "iputils-ping"),
    ("setpriv", "util-linux"),
    ("ss", "iproute2"),
];

fn missing(names: &[&str]) -> String {
    let package = |name: &&str| {
        let known = PACKAGES.iter().find(|(program, _)| program == name);
        known.map_or(*name, |(_, package)| *package).to_owned()
    };
    let mut packages: Vec<String> = names.iter().map(package).collect();
    packages.dedup();
    let (names, packages) = (names.join(", "), packages.join(" "));
    format!("no {names} in PATH (apt-get install {packages})")
}

/// The folder of real captures beside the checkout, `../shared/captures`, or
/// the one that `WEIR_CAPTURES` names; `None` (after [`skip`]) without it.
/// This is the only way to anything outside the checkout.
pub fn captures() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/captures");
    let folder = std::env::var_os("WEIR_CAPTURES").map_or_else(|| beside.into(), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    skip(&format!(
        "no captures in {} (set WEIR_CAPTURES to a folder of capture files)",
        folder.display()
    ));
    None
}

/// The capture files of [`captures`], sorted by name; empty (after [`skip`])
/// without them.
pub fn capture_files() -> Vec<PathBuf> {
    let Some(folder) = captures() else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(&folder).expect("the folder of captures can be read");
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("pcap" | "pcapng"))
        })
        .collect();
    files.sort();
    files
}

fn allowed(found: Result<(), String>) -> bool {
    found.map_err(|reason| skip(&reason)).is_ok()
}
