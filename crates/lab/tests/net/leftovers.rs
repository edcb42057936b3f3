//! However the process ends that created a network, nothing is left.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::net::{Device, Lab, PIN_FOLDERS, Process, unprivileged};
use weir_lab::testenv;
use weir_lab::wait::Limited;
use weir_link::bpf::{self, Map, MapSpec, ObjectKind, PinFolder};

const WAIT_MAX: Duration = Duration::from_secs(10);

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < WAIT_MAX,
            "not within {WAIT_MAX:?}: {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

fn sleeper() -> Command {
    let mut command = testenv::program("sleep").expect("coreutils are essential");
    command.uid(unprivileged::NOBODY).gid(unprivileged::NOBODY);
    command.arg("1000");
    command
}

/// Whether a process with that id still runs `sleep`.
fn sleeps(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    let is_zombie = state.is_ok_and(|state| state.contains(") Z "));
    name.is_ok_and(|name| name == "sleep\n") && !is_zombie
}

#[test]
fn a_host_that_is_dropped_takes_its_end_along() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let a = lab.host("a").unwrap();
    let b = lab.host("b").unwrap();
    let (eth_a, eth_b) = lab.link(&a, &b).connect().unwrap();
    let process = b.spawn(sleeper()).unwrap();
    drop(eth_b);
    drop(b);
    // The process is the last one in the namespace, and its end is the end of
    // its host.
    soon("the process ends", || !sleeps(process.id()));
    drop(process);
    soon("the link goes", || eth_a.state().is_err());
}

#[test]
fn what_is_pinned_in_a_host_goes_with_it() {
    if !testenv::root() {
        return;
    }
    let host = Lab::new().host("a").unwrap();
    host.own_pins().unwrap();
    let is_there = |id| bpf::open(ObjectKind::Map, id, true).is_ok();
    let ids = PIN_FOLDERS.map(|path| {
        let map = Map::create("weir_lab_test", &MapSpec::array(8, 1)).unwrap();
        let name = format!("leftovers-{}", std::process::id());
        let folder = PinFolder::open(&host.seen(path.as_ref())).unwrap();
        folder.pin(&name, &map).unwrap();
        // In the host's own file system, not in the machine's.
        assert!(!Path::new(path).join(&name).exists());
        map.info().unwrap().id
    });
    assert!(ids.iter().all(|id| is_there(*id)));
    drop(host);
    soon("the maps go", || !ids.iter().any(|id| is_there(*id)));
}

#[test]
fn a_process_is_killed_when_it_is_dropped_with_its_children() {
    if !testenv::root() {
        return;
    }
    let host = Lab::new().host("a").unwrap();
    let mut command = testenv::program("sh").expect("dash is essential");
    command
        .args(["-c", "sleep 1000 & echo $!; wait"])
        .stdout(Stdio::piped());
    let mut process = host.spawn(command).unwrap();
    let mut line = String::new();
    let stdout = process.child_mut().stdout.take().unwrap();
    BufReader::new(Limited::new(stdout, "a line of the process"))
        .read_line(&mut line)
        .unwrap();
    let child: u32 = line.trim().parse().unwrap();
    soon("the child sleeps", || sleeps(child));
    assert!(process.wait(Duration::from_millis(5)).unwrap().is_none());
    drop(process);
    soon("the child is gone", || !sleeps(child));
}

/// The variable that enables [`the_one_to_be_killed`].
const ROLE: &str = "WEIR_LAB_TO_BE_KILLED";

/// Runs only in the process that the next test starts, inside a host of that
/// test: links a host of its own with that host, starts a process, and waits.
#[test]
fn the_one_to_be_killed() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let lab = Lab::new();
    let outer = lab.current_host().unwrap();
    let inner = lab.host("inner").unwrap();
    let link = lab.link(&outer, &inner).names("outer0", "inner0");
    let (_outer, inner0): (Device, Device) = link.connect().unwrap();
    let process: Process = inner.spawn(sleeper()).unwrap();
    println!("pid {} {}", process.id(), inner0.name());
    loop {
        thread::park();
    }
}

#[test]
fn a_killed_child_leaves_nothing() {
    if !testenv::root() {
        return;
    }
    let host = Lab::new().host("outer").unwrap();
    for round in 0..3 {
        let mut command = Command::itself();
        command
            .args(["--exact", "leftovers::the_one_to_be_killed", "--nocapture"])
            .env(ROLE, "1")
            .stdout(Stdio::piped());
        let mut process = host.spawn(command).unwrap();
        let stdout = process.child_mut().stdout.take().unwrap();
        let mut lines = BufReader::new(Limited::new(stdout, "a line of the process"))
            .lines()
            .map_while(Result::ok);
        let line = lines.find(|line| line.contains("pid ")).expect("it starts");
        let pid = line
            .split("pid ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let pid: u32 = pid.unwrap().parse().unwrap();
        soon("its process sleeps", || sleeps(pid));
        assert!(host.device("outer0").is_ok(), "round {round}");

        process.signal(weir_lab::net::Signal::KILL).unwrap();
        process.wait(WAIT_MAX).unwrap().expect("it is killed");
        soon("its process is gone", || !sleeps(pid));
        // Removed with the namespace that contained this end of the link.
        soon("its link is gone", || host.device("outer0").is_err());
    }
}

#[test]
fn output_ends_with_the_process() {
    if !testenv::root() {
        return;
    }
    let host = Lab::new().host("a").unwrap();
    let mut command = testenv::program("cat").expect("coreutils are essential");
    command.arg("/proc/self/net/dev");
    let output = host.output(command).unwrap();
    assert!(output.status.success());
    let mut text = String::new();
    output.stdout.as_slice().read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 3, "two of headings and lo: {text}");
}
