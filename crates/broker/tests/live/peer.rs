//! Who the kernel says is at the other end.

use crate::process::say;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use weir_broker::protocol::{Channel, Listener, Peer};
use weir_lab::command::{Command, LIMIT};
use weir_lab::net::Process;
use weir_lab::testenv;

/// In a process of its own: connects, and waits for the end of its input.
pub(crate) fn knocker() {
    let path = std::env::var("WEIR_SOCKET").unwrap();
    let _channel = Channel::connect(Path::new(&path)).unwrap();
    say("knocked");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn knock(path: &Path) -> Process {
    let mut command = Command::itself();
    command
        .args(["process::role", "--exact", "--nocapture"])
        .env("WEIR_TEST_ROLE", "knocker")
        .env("WEIR_SOCKET", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

/// The next that connects.
fn next(listener: &Listener) -> Channel {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(channel) = listener.accept().unwrap() {
            return channel;
        }
        assert!(Instant::now() < deadline, "it does not connect");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gives up all capabilities of this thread, which stays user 0, and of the
/// processes that it starts.
fn be_powerless() {
    for bit in 0..u64::BITS {
        let Some(one) = CapabilitySet::from_bits(1 << bit) else {
            continue;
        };
        if capability_is_in_bounding_set(one) == Ok(true) {
            remove_capability_from_bounding_set(one).unwrap();
        }
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).unwrap();
}

#[test]
fn user_0_is_the_superuser_with_capabilities_and_while_it_lives() {
    if !testenv::root() {
        return;
    }
    let path = std::env::temp_dir().join(format!("weir-knock-{}.sock", std::process::id()));
    let listener = Listener::bind(&path).unwrap();
    let mut able = knock(&path);
    let channel = next(&listener);
    let peer = channel.peer().unwrap();
    assert_eq!(
        (peer.uid, peer.pid, peer.is_superuser),
        (0, able.id(), true)
    );
    let is_same = |peer: &Peer, child: &Process| peer.pid == child.id();
    drop(able.child_mut().stdin.take());
    able.ended(LIMIT).unwrap();
    // Its number may be another process's by now.
    assert!(!channel.peer().unwrap().is_superuser, "it has ended");

    // The process ends with the thread that starts it, which waits for that.
    let (started, powerless) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let at = path.clone();
    let starter = std::thread::spawn(move || {
        be_powerless();
        started.send(knock(&at)).unwrap();
        let _ = ended.recv();
    });
    let mut powerless = powerless.recv_timeout(LIMIT).unwrap();
    let channel = next(&listener);
    let peer = channel.peer().unwrap();
    assert!(is_same(&peer, &powerless));
    assert_eq!((peer.uid, peer.is_superuser), (0, false));
    drop(powerless.child_mut().stdin.take());
    powerless.ended(LIMIT).unwrap();
    drop(end);
    starter.join().unwrap();
    let _ = std::fs::remove_file(&path);
}
