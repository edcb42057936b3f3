//! What is pinned: counters of another version, counters that are lost, and what is left at the end.

use super::{Net, PINS, meter, packets, pins, write_config};
use crate::common::{Folder, counters, stdout, weir};
use crate::net;
use std::fs;
use std::path::PathBuf;
use weir_lab::net::Signal;
use weir_link::bpf::PinFolder;

/// The folder of b's interface.
fn folder(net: &Net) -> PinFolder {
    counters::folder(&net.b)
}

/// Writes another version into the counters; returns the former one.
fn set_version(net: &Net, version: u64) -> u64 {
    counters::set_version(&net.b, version)
}

#[test]
fn counters_of_another_version_go_on_and_the_remedy_is_said() {
    let Some(net) = net() else { return };
    let files = Folder::new("live-meter-version");
    let config = write_config(&files, "");
    let running = meter(&net, &files, &[]);
    net.send(9, 100);
    running.signal(Signal::KILL);
    running.end();
    let version = set_version(&net, 99);
    let store = files.path("usage.db");
    let arguments = ["meter", "--config", &config, "--store", &store];
    let refused = net.weir(&arguments).end();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in ["layout 99", "start the version", "--clean"] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    // Nothing was changed: the version that made them finds everything.
    net.send(9, 50);
    set_version(&net, version);
    let running = meter(&net, &files, &[]);
    running.signal(Signal::KILL);
    running.end();
    // Of these, and of a map that this version does not know, --clean leaves nothing.
    set_version(&net, 99);
    let other = folder(&net).get("meter-tags").unwrap().unwrap();
    folder(&net).pin("meter-unheard-of", other).unwrap();
    let cleaned = net.weir(&["meter", "--config", &config, "--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert_eq!(pins(&net), Vec::<PathBuf>::new());
    net.send(9, 7);
    let running = meter(&net, &files, &[]);
    net.send(9, 3);
    running.stop();
    let [_, counted] = packets(&files, "nobody");
    // What --clean gives up are at most the frames since the last period that was recorded.
    assert!((3..=153).contains(&counted), "{counted}");
}

#[test]
fn counters_that_were_lost_are_a_gap() {
    let Some(net) = net() else { return };
    let files = Folder::new("live-meter-lost");
    write_config(&files, "");
    for (round, lost) in ["meter-control", "meter-cells", "all"]
        .into_iter()
        .enumerate()
    {
        let running = meter(&net, &files, &["--keep"]);
        net.send(9, 100);
        // This ends the period, and the kernel goes on counting.
        running.stop();
        assert_eq!(packets(&files, "nobody"), [0, 110 * round as u64 + 100]);
        net.send(9, 20);
        let (names, _) = folder(&net).list().unwrap();
        for name in names {
            if lost == "all" || lost == name {
                folder(&net).unpin(&name).unwrap();
            }
        }
        let running = meter(&net, &files, &["--keep"]);
        net.send(9, 10);
        running.stop();
        assert_eq!(packets(&files, "nobody"), [0, 110 * (round as u64 + 1)]);
    }
    let proof = weir([
        "usage",
        "--store",
        &files.path("usage.db"),
        "--prove",
        "--json",
    ])
    .output();
    let proof = proof.unwrap();
    assert!(proof.status.success(), "{proof:?}");
    assert_eq!(stdout(&proof).matches("\"gap_unix_ns\"").count(), 3);
}

#[test]
fn no_folder_is_left_whatever_the_end() {
    let Some(net) = net() else { return };
    let files = Folder::new("live-meter-folders");
    write_config(&files, "");
    // An orderly end.
    meter(&net, &files, &[]).stop();
    assert_eq!(pins(&net), Vec::<PathBuf>::new());
    // A start that is refused after it has taken the folder.
    let store = files.path("folder");
    fs::create_dir(&store).unwrap();
    let config = files.path("counter.toml");
    let refused = net.weir(&["meter", "--config", &config, "--store", &store]);
    assert_eq!(refused.end().code, Some(1));
    assert_eq!(pins(&net), Vec::<PathBuf>::new());
    // One that was killed before it had pinned anything.
    let all = PinFolder::open(&net.b.seen(PINS.as_ref())).unwrap();
    all.folder("eth7-1").unwrap();
    let used = all.folder("eth8-1").unwrap();
    let _lock = used.lock_alone().unwrap();
    let running = meter(&net, &files, &[]);
    assert_eq!(pins(&net).len(), 2);
    running.stop();
    assert!(used.is_there().unwrap());
    assert_eq!(pins(&net).len(), 1);
}
