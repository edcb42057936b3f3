//! How many paths are made ahead of need.

use super::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use weir_lab::testenv;
use weir_wire::LinkType;

/// Paths whose thread makes none: what it is asked for stays to be counted.
struct Bed {
    // The first to go.
    paths: EgressPool,
    todo: Receiver<Job>,
    done: Sender<Done>,
    _folder: Folder,
}

/// A BPF file system of its own.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = PinFolder::unmount(&self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Bed {
    fn new() -> Bed {
        // Tests of one process run side by side.
        static BEDS: AtomicU32 = AtomicU32::new(0);
        let (process, bed) = (std::process::id(), BEDS.fetch_add(1, Relaxed));
        let name = format!("/run/weir-paths-{process}-{bed}");
        let folder = Folder(PathBuf::from(name));
        let root = Arc::new(PinFolder::mount(&folder.0).expect("root may"));
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let events_fd = rustix::event::eventfd(0, flags).expect("a descriptor");
        let paths = EgressPool::of(&root, 1, &Arc::new(events_fd), &Arc::default());
        let mut paths = paths.expect("a folder");
        let (jobs, todo) = channel();
        let (done, from) = channel();
        paths.thread = Some(Thread { jobs, done: from });
        // Without the thread there is nothing to sweep.
        paths.is_kept = true;
        Bed {
            paths,
            todo,
            done,
            _folder: folder,
        }
    }

    /// How many paths were asked for since.
    fn asked(&self) -> usize {
        self.todo.try_iter().count()
    }
}

fn facts(ifindex: u32) -> InterfaceInfo {
    InterfaceInfo {
        name: format!("eth{ifindex}"),
        ifindex,
        linktype: LinkType::EN10MB,
        header_len: 14,
        is_loopback: false,
        address: vec![2, 0, 0, 0, 0, 1],
        broadcast: vec![0xff; 6],
        mtu: 1_500,
        addresses: Vec::new(),
        is_up: true,
        is_running: true,
        dropped: 0,
    }
}

fn rules() -> EgressRules {
    EgressRules {
        source: [2, 0, 0, 0, 0, 1],
        addresses: Vec::new(),
        ethertypes: vec![0x88b5],
        predicate: String::new(),
        any_source: false,
    }
}

/// Opening many ports of different kinds makes a few paths only: each path is made at the first
/// frame sent by it.
#[test]
fn few_are_made_at_once_ahead_of_need() {
    if !testenv::root() {
        return;
    }
    let mut bed = Bed::new();
    for ifindex in 1..=3 * KINDS_MAX as u32 {
        bed.paths.prepare(&facts(ifindex), rules()).expect("room");
    }
    assert_eq!(bed.asked(), KINDS_MAX);
    assert_eq!(bed.paths.classes.len(), KINDS_MAX);
    // Ports that send get their paths, and no spare ones.
    for token in 0..4 {
        let made = bed.paths.make(token, &facts(100 + token), rules());
        made.expect("it is begun");
        assert_eq!(bed.asked(), 1);
    }
    // Kinds that were given up are being made all the same.
    for ifindex in 1..=KINDS_MAX as u32 {
        bed.paths.end_spares(ifindex);
    }
    bed.paths.prepare(&facts(200), rules()).expect("room");
    assert_eq!(bed.asked(), 0);
}

/// The path's device exists before it is announced: no user's port may listen there.
#[test]
fn what_is_being_made_is_a_path_already() {
    if !testenv::root() {
        return;
    }
    let mut bed = Bed::new();
    let made = bed.paths.make(1, &facts(1), rules());
    made.expect("it is begun");
    let jobs: Vec<Job> = bed.todo.try_iter().collect();
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let Job::Make { name, like } = job else {
            panic!("to be made");
        };
        assert!(bed.paths.has(&name));
        let made = Err(system("there is no kernel"));
        let done = Done {
            name: name.clone(),
            key: like,
            made,
        };
        bed.done.send(done).expect("it waits");
        bed.paths.made();
        assert!(!bed.paths.has(&name));
    }
}

/// A port that opens and closes has no more paths made than one that stays.
#[test]
fn a_path_being_made_for_a_closed_port_serves_the_next() {
    if !testenv::root() {
        return;
    }
    let mut bed = Bed::new();
    for token in 0..100 {
        let made = bed.paths.make(token, &facts(1), rules());
        made.expect("it is begun");
        bed.paths.cancel(token);
    }
    // One that was waited for, and a spare one.
    assert_eq!(bed.asked(), 2);
    for token in 100..103 {
        let made = bed.paths.make(token, &facts(1), rules());
        made.expect("it is begun");
    }
    assert_eq!(bed.asked(), 2);
}
