//! A process or thread as `nobody` has no privileges.

use std::fs;
use weir_lab::command::Command;
use weir_lab::net::{Lab, unprivileged};
use weir_lab::testenv;

/// The lines of a thread's status with its ids and capabilities.
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
fn a_thread_is_user_nobody_and_its_process_is_not() {
    if !testenv::root() {
        return;
    }
    let status = || fs::read_to_string("/proc/thread-self/status").unwrap();
    assert_eq!(rights(&unprivileged::run(status)), NONE);
    assert!(rights(&status())[0].starts_with("Uid: 0 0"));
    assert!(unprivileged::run(|| fs::read_to_string("/etc/shadow")).is_err());
    let host = Lab::new().host("a").unwrap();
    assert!(unprivileged::run(|| host.enter()).is_err());
    let inside = host.run(|| unprivileged::run(|| fs::read_to_string("/proc/thread-self/net/dev")));
    assert_eq!(inside.unwrap().lines().count(), 3, "two of headings and lo");
}

/// The variable that enables [`shows_its_rights`].
const SHOWS: &str = "WEIR_LAB_SHOWS";

#[test]
fn shows_its_rights() {
    if std::env::var_os(SHOWS).is_some() {
        println!("\n{}", fs::read_to_string("/proc/self/status").unwrap());
    }
}

/// Even if the machine's `/dev/net/tun` is accessible to root only.
#[test]
fn a_process_of_user_nobody_has_a_device_for_tap_interfaces() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let host = Lab::new().host("a").unwrap();
    host.tap("tap0", unprivileged::NOBODY).unwrap();
    let mut command = unprivileged::command(std::env::current_exe().unwrap());
    let opens = [
        "unprivileged::opens_its_interface",
        "--exact",
        "--nocapture",
    ];
    command.args(opens).env(SHOWS, "1");
    let output = host.output(command).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("opened"), "{text}");
}

#[test]
fn opens_its_interface() {
    if std::env::var_os(SHOWS).is_some() {
        weir_link::net::Tap::open("tap0").unwrap();
        println!("\nopened");
    }
}

#[test]
fn a_process_in_a_host_is_user_nobody() {
    if !testenv::root() {
        return;
    }
    let host = Lab::new().host("a").unwrap();
    // This test's executable, which prints its privileges.
    let this = std::env::current_exe().unwrap();
    let show = ["unprivileged::shows_its_rights", "--exact", "--nocapture"];
    let mut command = unprivileged::command(this);
    command.args(show).env(SHOWS, "1");
    let output = host.output(command).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(rights(&text), NONE);
    let mut command = Command::itself();
    command.args(show).env(SHOWS, "1");
    let text = String::from_utf8(host.output(command).unwrap().stdout).unwrap();
    assert!(rights(&text)[0].starts_with("Uid: 0 0"));
}

#[test]
fn a_panic_as_user_nobody_goes_on() {
    if !testenv::root() {
        return;
    }
    let caught = std::panic::catch_unwind(|| unprivileged::run(|| panic!("as nobody")));
    assert_eq!(
        *caught.unwrap_err().downcast::<&str>().unwrap(),
        "as nobody"
    );
}
