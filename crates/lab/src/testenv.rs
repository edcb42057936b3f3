//! The needs of tests, and how tests skip without them.
//!
//! A test without its need is skipped, with a reason; with `CI=true` in the environment it fails,
//! so that nothing remains untested unnoticed.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI=true` | a test that would be skipped fails |
//! | `WEIR_SKIPPED=FILE` | each skip is appended to this file: `skipped: TEST: REASON` |
//! | `WEIR_CAPTURES=FOLDER` | the folder of captures, by default beside the checkout |

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

/// The variable that names the file of skips.
const LIST: &str = "WEIR_SKIPPED";

/// Skips the running test for `reason`: panics under CI, otherwise prints the reason to the real
/// standard error. The caller must return afterwards.
///
/// # Panics
/// Under CI, and if the file named by `WEIR_SKIPPED` cannot be written.
pub fn skip(reason: &str) {
    let line = format!("skipped: {}: {reason}\n", test());
    if let Some(path) = std::env::var_os(LIST) {
        let file = File::options().append(true).create(true).open(&path);
        // In one write, since other tests may write too.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{LIST}={}: {error}", path.display()));
    }
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "missing in CI: {reason}");
    write_stderr(&line);
}

/// Writes to the process's standard error; `eprint!` would write to the test harness's capture.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// The running test: its executable, without Cargo's hash, and its name.
fn test() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    match thread::current().name() {
        Some(name) if name != "main" => format!("{program} {name}"),
        _ => program.to_owned(),
    }
}

/// Whether this process may create network namespaces, which needs root; `false` (after [`skip`])
/// otherwise.
pub fn root() -> bool {
    watch::this_test();
    allowed(has_root())
}

/// The reason why this process cannot create network namespaces, as an error.
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

/// Moves the calling thread into a new network namespace.
#[allow(unsafe_code)] // A thread leaves the namespace it shares with others.
fn own_network() -> io::Result<()> {
    // SAFETY: threads need not share a network namespace for memory safety; descriptors and memory
    // stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Whether this process can create TAP and TUN interfaces; `false` (after [`skip`]) otherwise. Root
/// can if the kernel has the driver, whatever the device's mode is, and processes of
/// [`unprivileged`] get a device of their own.
///
/// [`unprivileged`]: crate::net::unprivileged
pub fn tun() -> bool {
    allowed(has_tun())
}

/// The reason why this process cannot create TAP interfaces, as an error.
pub(crate) fn has_tun() -> Result<(), String> {
    const DEVICE: &str = "/dev/net/tun";
    let opened = File::options().read(true).write(true).open(DEVICE);
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("no {DEVICE}: modprobe tun"),
        _ => format!("{DEVICE}: {error}"),
    })
}

/// Whether this process may create eBPF maps and load programs; `false` (after [`skip`]) otherwise.
pub fn bpf() -> bool {
    watch::this_test();
    let made = Map::create("need", &MapSpec::array(4, 1));
    allowed(made.map(drop).map_err(|error| error.to_string()))
}

/// A need that may be missing in the kernel; `None` (after [`skip`]) if `tried` is an error.
pub fn kernel<T, E: std::fmt::Display>(what: &str, tried: Result<T, E>) -> Option<T> {
    match tried {
        Ok(there) => Some(there),
        Err(error) => {
            skip(&format!("{what}: {error}"));
            None
        }
    }
}

/// Whether the system has a file or folder, such as `/etc/services`; `false` (after [`skip`])
/// otherwise. `remedy` says how to install it.
pub fn file(path: &str, remedy: &str) -> bool {
    let there = Path::new(path).exists();
    allowed(if there {
        Ok(())
    } else {
        Err(format!("no {path} ({remedy})"))
    })
}

/// A program of the system, found in `PATH`; `None` (after [`skip`]) without it.
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
    assert!(!name.contains('/'), "`{name}` is not the name of a program");
    match find(name) {
        Some(path) => Some(Command::at(&path)),
        None => {
            skip(&missing(&[name]));
            None
        }
    }
}

/// Whether the system has all of these programs; `false` (after [`skip`]) otherwise. Called at the
/// start of a test whose helpers or scripts run them.
pub fn programs(names: &[&str]) -> bool {
    watch::this_test();
    allowed(has_programs(names))
}

/// The missing programs, as an error.
pub(crate) fn has_programs(names: &[&str]) -> Result<(), String> {
    let lacking = |name: &&str| find(name).is_none();
    let lacking: Vec<&str> = names.iter().copied().filter(lacking).collect();
    match lacking[..] {
        [] => Ok(()),
        _ => Err(missing(&lacking)),
    }
}

/// The first executable file with that name in `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| {
        let facts = fs::metadata(place);
        facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    })
}

/// Debian packages of programs, where the names differ.
const PACKAGES: [(&str, &str); 27] = [
    ("bird", "bird2"),
    ("birdc", "bird2"),
    ("bridge", "iproute2"),
    ("cc", "gcc"),
    ("dnsmasq", "dnsmasq-base"),
    ("getent", "libc-bin"),
    ("ip", "iproute2"),
    ("nfacctd", "pmacct"),
    ("nfcapd", "nfdump"),
    ("nft", "nftables"),
    ("nfpcapd", "nfdump"),
    ("nginx", "nginx-light"),
    ("ping", "iputils-ping"),
    ("pmacctd", "pmacct"),
    ("psql", "postgresql"),
    ("radclient", "freeradius-utils"),
    ("radsniff", "freeradius-utils"),
    ("redis-benchmark", "redis-tools"),
    ("redis-cli", "redis-tools"),
    ("setpriv", "util-linux"),
    ("ss", "iproute2"),
    ("swanctl", "strongswan-swanctl"),
    ("sysctl", "procps"),
    ("tclsh", "tcl"),
    ("turnserver", "coturn"),
    ("turnutils_natdiscovery", "coturn"),
    ("unshare", "util-linux"),
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

/// Python with these modules; `None` (after [`skip`]) without one of them.
pub fn python(modules: &[&str]) -> Option<Command> {
    let mut python = program("python3")?;
    let imported = python
        .args(["-c", &format!("import {}", modules.join(", "))])
        .output();
    let is_there = imported.is_ok_and(|output| output.status.success());
    if !is_there {
        skip(&format!(
            "python3 lacks one of these (pip install {})",
            modules.join(" ")
        ));
        return None;
    }
    program("python3")
}

/// The folder of real captures: `../shared/captures` beside the checkout, or the one that
/// `WEIR_CAPTURES` names; `None` (after [`skip`]) without it. Nothing else outside the checkout is
/// used.
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
