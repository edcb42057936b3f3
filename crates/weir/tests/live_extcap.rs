//! `weir extcap` as Wireshark calls it.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, stdout, weir};
use live::net;
use std::process::Stdio;
use std::time::Duration;
use weir_lab::testenv;
use weir_lab::wait;

#[test]
fn interfaces_link_types_options_and_filters_are_listed() {
    let Some(net) = net() else { return };
    let ended = net
        .weir(&["extcap", "--extcap-interfaces", "--extcap-version=4.0"])
        .end();
    assert!(ended.stdout.starts_with("extcap {version="), "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("interface {value=weir-eth0}{display=weir: eth0}\n"),
        "{ended:?}"
    );
    let of = ["extcap", "--extcap-interface", "weir-eth0"];
    let ended = net.weir(&[&of[..], &["--extcap-dlts"]].concat()).end();
    assert_eq!(
        ended.stdout,
        "dlt {number=1}{name=EN10MB}{display=EN10MB}\n"
    );
    let ended = net.weir(&[&of[..], &["--extcap-config"]].concat()).end();
    let options = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("arg {number="));
    assert_eq!(options.count(), 5, "{ended:?}");
    let ended = net
        .weir(&[&of[..], &["--extcap-capture-filter", "udp port 53"]].concat())
        .end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    let ended = net
        .weir(&[&of[..], &["--extcap-capture-filter", "udp prot"]].concat())
        .end();
    assert!(ended.stdout.contains('^'), "{ended:?}");
}

#[test]
fn a_link_by_wiresharks_name_begins_the_command() {
    let folder = Folder::new("extcap-link");
    let place = folder.path("extcap");
    for _ in 0..2 {
        let run = weir(["extcap", "--install", &place]).output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }
    let link = format!("{place}/weir-extcap");
    let run = weir_lab::command::Command::built(&link)
        .arg("--extcap-interfaces")
        .output()
        .unwrap();
    assert!(stdout(&run).contains("{value=weir-any}"), "{run:?}");
    let run = weir(["extcap"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
}

#[test]
fn tshark_captures_from_a_port() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["tshark", "unshare", "mount"]) {
        return;
    }
    let folder = Folder::new("extcap-tshark");
    let place = folder.path("extcap");
    let run = weir(["extcap", "--install", &place]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let folders = testenv::program("tshark")
        .unwrap()
        .args(["-G", "folders"])
        .output()
        .unwrap();
    let folders = stdout(&folders);
    let wiresharks = folders
        .lines()
        .find_map(|line| line.strip_prefix("Extcap path:"));
    let wiresharks = wiresharks.unwrap().trim();
    // Wireshark looks into its own folder: in a mount namespace, that is ours.
    let mut tshark = testenv::program("unshare").unwrap();
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec tshark \"$@\"";
    tshark.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
        &place,
        wiresharks,
    ]);
    tshark.args(["-n", "-i", "weir-eth0", "-f", "udp dst port 53", "-c", "20"]);
    tshark
        .args(["-T", "fields", "-e", "udp.dstport"])
        .env("HOME", folder.path(""));
    tshark.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = net.b.spawn(tshark).unwrap();
    // Until tshark has its twenty, and ends.
    wait::until("the end of tshark", || {
        net.send(54, 5);
        net.send(53, 5);
        running.wait(Duration::from_millis(300)).unwrap().is_some()
    });
    let output = running.output(Duration::from_secs(60)).unwrap();
    let lines = stdout(&output);
    assert_eq!(
        lines.lines().filter(|line| *line == "53").count(),
        20,
        "{output:?}"
    );
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_queue_is_the_users_choice() {
    let Some(net) = net() else { return };
    let folder = Folder::new("extcap-queue");
    for (queue, bytes) in [(&[][..], 4 << 20), (&["--queue", "64K"], 64 << 10)] {
        let file = folder.path("frames.pcapng");
        let head = ["extcap", "--extcap-interface", "weir-eth0", "--capture"];
        let capture = net.weir(&[&head[..], &["--fifo", &file], queue].concat());
        wait::until("its port", || {
            let ports = net.weir(&["ports", "--json"]).end().json();
            let own = |port: &&serde_json::Value| port["pid"] == capture.id();
            let found = ports.as_array().unwrap().iter().find(own).cloned();
            found.is_some_and(|port| {
                assert_eq!(port["queue"], bytes, "{port}");
                true
            })
        });
        assert_eq!(capture.stop().code, Some(0));
    }
}

/// tshark waits at the FIFO, whatever the process has said.
#[test]
fn a_capture_that_fails_ends_its_fifo() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{FileType, Mode, OFlags};
    let Some(net) = net() else { return };
    let folder = Folder::new("extcap-fails");
    let fifo = folder.path("fifo");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    // As dumpcap does.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let reader = rustix::fs::open(&fifo, flags, Mode::empty()).unwrap();
    let head = ["extcap", "--extcap-interface", "weir-none", "--capture"];
    let ended = net.weir(&[&head[..], &["--fifo", &fifo]].concat()).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("none"), "{ended:?}");
    let mut polled = [PollFd::new(&reader, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap();
    assert!(polled[0].revents().contains(PollFlags::HUP), "it waits");
}
