//! Somebody without rights has none.

use std::fs;
use std::process::Command;
use weir_lab::need;
use weir_lab::net::{Lab, nobody};

/// The lines of a thread's status that say who it is and what it may do.
fn rights(status: &str) -> Vec<String> {
    let kept = ["Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:"];
    let lines = status.lines().filter(|line| {
        let first = line.split_whitespace().next();
        first.is_some_and(|first| kept.contains(&first))
    });
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

const NONE: [&str; 6] = [
    "Uid: 65534 65534 65534 65534",
    "Gid: 65534 65534 65534 65534",
    "Groups:",
    "CapInh: 0000000000000000",
    "CapPrm: 0000000000000000",
    "CapEff: 0000000000000000",
];

#[test]
fn a_thread_is_nobody_and_its_process_is_not() {
    if !need::root() {
        return;
    }
    let status = || fs::read_to_string("/proc/thread-self/status").unwrap();
    assert_eq!(rights(&nobody::run(status)), NONE);
    assert!(rights(&status())[0].starts_with("Uid: 0 0"));
    assert!(nobody::run(|| fs::read_to_string("/etc/shadow")).is_err());
    let host = Lab::new().host("a").unwrap();
    assert!(nobody::run(|| host.enter()).is_err());
    let inside = host.run(|| nobody::run(|| fs::read_to_string("/proc/thread-self/net/dev")));
    assert_eq!(inside.unwrap().lines().count(), 3, "two of headings and lo");
}

#[test]
fn a_process_in_a_host_is_nobody() {
    if !need::root() {
        return;
    }
    let host = Lab::new().host("a").unwrap();
    let mut command = nobody::command("cat");
    command.arg("/proc/self/status");
    let output = host.output(command).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(rights(&text), NONE);
    let mut command = Command::new("cat");
    command.arg("/proc/self/status");
    let text = String::from_utf8(host.output(command).unwrap().stdout).unwrap();
    assert!(rights(&text)[0].starts_with("Uid: 0 0"));
}

#[test]
fn a_panic_of_nobody_goes_on() {
    if !need::root() {
        return;
    }
    let caught = std::panic::catch_unwind(|| nobody::run(|| panic!("as nobody")));
    assert_eq!(
        *caught.unwrap_err().downcast::<&str>().unwrap(),
        "as nobody"
    );
}
