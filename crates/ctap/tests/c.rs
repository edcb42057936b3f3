//! The C example, built by the system's compiler, between two hosts.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use weir_lab::c;
use weir_lab::command::Command;
use weir_lab::net::{Host, Linear, Offloads, Process, Signal};
use weir_lab::testenv;
use weir_lab::wait::Limited;

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("weir-ctap-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The compiled example; `None` (after `skip`) without a compiler.
fn compiled(folder: &Folder) -> Option<PathBuf> {
    let library = c::folder_of("libweirtap.a").join("libweirtap.a");
    c::compiled(
        &folder.0,
        "examples/tap_forward.c",
        &[library.to_str().unwrap()],
    )
}

/// Starts the example and waits for its `ready`.
fn start(host: &Host, program: &Path, arguments: &[&str]) -> Process {
    let mut command = Command::built(program);
    command.args(arguments);
    command.stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut process = host.spawn(command).unwrap();
    let says = process.child_mut().stderr.take().unwrap();
    let mut line = String::new();
    let says = Limited::new(says, "`ready` of the program");
    BufReader::new(says).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    process
}

/// Ends the example; returns its last output.
fn end(mut process: Process) -> String {
    let says = process.child_mut().stdout.take().unwrap();
    process.signal(Signal::TERM).unwrap();
    let mut line = String::new();
    let says = Limited::new(says, "`ready` of the program");
    BufReader::new(says).read_line(&mut line).unwrap();
    let ended = process.wait(Duration::from_secs(5)).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    line
}

#[test]
fn the_example_forwards_and_outlives_its_founder() {
    if !testenv::root() {
        return;
    }
    let folder = Folder::new("forwards");
    let Some(program) = compiled(&folder) else {
        return;
    };
    let line = Linear::new(Offloads::OFF).and_then(Linear::with_addresses);
    let line = line.unwrap();
    let pings = || line.pings().unwrap();
    let path = folder.0.join("meet");
    let path = path.to_str().unwrap();
    let founder = start(&line.middle, &program, &["left", "right", path]);
    assert!(pings());
    let second = start(&line.middle, &program, &["--join", path]);
    founder.signal(Signal::KILL).unwrap();
    drop(founder);
    assert!(pings(), "the second goes on");
    assert_eq!(line.attached(), [true, true]);
    let said = end(second);
    assert!(said.contains("chunks: 49216 free, 0 held"), "{said}");
    assert_eq!(line.attached(), [false, false]);
    assert!(!pings());
}

#[test]
fn what_fails_says_why() {
    let folder = Folder::new("fails");
    let Some(program) = compiled(&folder) else {
        return;
    };
    let nowhere = folder.0.join("nowhere");
    let output = Command::built(&program)
        .arg("--join")
        .arg(&nowhere)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("join: no tap is shared at"), "{said}");
    let usage = Command::built(&program).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

/// The header declares exactly the library's functions.
#[test]
fn the_header_and_the_library_name_the_same_functions() {
    let defined = c::defined(include_str!("../src/lib.rs"));
    assert_eq!(defined, c::declared("weir_tap.h"));
    assert!(defined.len() > 15, "{defined:?}");
}
