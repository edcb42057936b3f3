//! `weir listen` on a live link, in this process's own engine.

mod common;
#[path = "common/live.rs"]
mod live;

use common::Folder;
use live::net;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use weir_lab::net::{Offloads, Signal};
use weir_link::pcap::Reader;

#[test]
fn a_copy_is_counted_and_the_host_gets_the_frames_too() {
    let Some(net) = net() else { return };
    let server = net.server(53);
    let filter = "udp dst port 53";
    let listen = ["listen", "eth0", filter, "--count", "100", "--json"];
    let running = net.weir(&listen).until("weir: port");
    net.send(54, 50);
    net.send(53, 100);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 101);
    let last = ended.stdout.lines().last().unwrap();
    assert_eq!(last, r#"{"frames":100,"bytes":4600,"lost":0}"#);
    let first = ended.stdout.lines().next().unwrap();
    assert!(first.contains(":53 UDP"), "{first}");
    for _ in 0..100 {
        server.recv(&mut [0; 9]).expect("the host gets them too");
    }
}

#[test]
fn what_is_taken_the_host_does_not_get() {
    let Some(net) = net() else { return };
    let (server, other) = (net.server(53), net.server(54));
    for attach in ["auto", "tc", "xdp-generic", "xdp-native"] {
        let listen = ["listen", "eth0", "udp dst port 53", "--take", "--count"];
        let more = ["10", "--attach", attach, "--json"];
        let running = net
            .weir(&[&listen[..], &more].concat())
            .until("which takes");
        net.send(53, 10);
        net.send(54, 1);
        let ended = running.end();
        assert_eq!(ended.json()["frames"], 10, "{attach}: {ended:?}");
        assert!(server.recv(&mut [0; 9]).is_err(), "taken at {attach}");
        other.recv(&mut [0; 9]).expect("others pass");
    }
    net.send(53, 1);
    server
        .recv(&mut [0; 9])
        .expect("afterwards the host gets them again");
}

#[test]
fn a_file_holds_the_frames_with_their_times() {
    let Some(net) = net() else { return };
    let folder = Folder::new("listen");
    let path = folder.path("dns.pcapng");
    let listen = ["listen", "eth0", "udp", "-w", &path, "--count", "20"];
    let running = net.weir(&listen).until("weir: port");
    net.send(53, 20);
    let ended = running.end();
    assert_eq!(ended.stdout, "20 frames, 920 bytes, 0 lost\n", "{ended:?}");
    let mut reader = Reader::open(&path).unwrap();
    let (mut frames, mut last) = (0, 0);
    while let Some(frame) = reader.next_frame().unwrap() {
        let time = frame.time_ns.unwrap();
        assert!(time >= last && time > 1_600_000_000_000_000_000);
        assert_eq!(frame.bytes[36..38], [0, 53]);
        assert_eq!(frame.interface.name.as_deref(), Some("eth0"));
        (frames, last) = (frames + 1, time);
    }
    assert_eq!(frames, 20);
}

#[test]
fn a_time_and_a_signal_end_it_with_a_report() {
    let Some(net) = net() else { return };
    let listen = ["listen", "eth0", "udp", "--quiet", "--json"];
    let ended = net.weir(&[&listen[..], &["--for", "0.2"]].concat()).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout, "{\"frames\":0,\"bytes\":0,\"lost\":0}\n");
    assert_eq!(ended.stderr, "");
    let cases = [(Signal::INT, 130), (Signal::TERM, 143)];
    for (signal, code) in cases {
        let listen = ["listen", "eth0", "udp", "--json"];
        let running = net.weir(&listen).until("weir: port");
        net.send(9, 3);
        std::thread::sleep(std::time::Duration::from_millis(300));
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.json()["frames"], 3, "{ended:?}");
    }
}

#[test]
fn what_does_not_fit_is_counted_as_lost() {
    let Some(net) = net() else { return };
    let listen = ["listen", "eth0", "udp", "--queue", "4K", "--json"];
    let filter = ["--for", "2"];
    let running = net.weir(&[&listen[..], &filter].concat());
    let running = running.until("weir: port");
    // It is stopped while more comes than its queue holds.
    running.signal(Signal::STOP);
    net.send(9, 1000);
    running.signal(Signal::CONT);
    let sum = running.end().json();
    let number = |name: &str| sum[name].as_u64().unwrap();
    assert_eq!(number("frames") + number("lost"), 1000, "{sum}");
    assert!(number("lost") > 0 && number("frames") > 0, "{sum}");
}

#[test]
fn an_interface_that_goes_ends_it() {
    let Some(net) = net() else { return };
    let listen = ["listen", "eth0", "udp", "--json"];
    let running = net.weir(&listen).until("weir: port");
    net.eth_b.down().unwrap();
    let running = running.until("eth0 is down");
    let other = net.weir(&["listen", "eth0", "--for", "0"]).end();
    assert!(other.stderr.contains("ip link set eth0 up"), "{other:?}");
    net.eth_b.clone().delete().unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("eth0 is gone"), "{ended:?}");
    assert_eq!(ended.json()["frames"], 0);
}

#[test]
fn what_is_wrong_is_refused() {
    let Some(net) = net() else { return };
    let cases: [(&[&str], i32, &str); 5] = [
        (&["eth0", "udp prot 53"], 2, "^^^^"),
        (&["eth7", "udp"], 1, "eth7"),
        (&["eth0", "udp", "--attach", "here"], 2, "xdp-native"),
        (&["eth0", "udp", "--for", "soon"], 2, "no number"),
        (&["eth0", "--socket", "/nowhere"], 1, "weir broker"),
    ];
    for (arguments, code, message) in cases {
        let ended = net.weir(&[&["listen"], arguments].concat()).end();
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{arguments:?}: {ended:?}");
    }
    let ended = net.weir_as_nobody(&["listen", "eth0", "udp"]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("start `weir broker`"), "{ended:?}");
}

#[test]
fn super_frames_come_whole_or_as_what_goes_over_the_wire() {
    /// Of a frame on this link: 1,500 bytes and an Ethernet header.
    const FRAME_MAX: u64 = 1514;
    const SENT: usize = 200_000;
    let Some(net) = net() else { return };
    // The device is left to segment, so that the kernel does not.
    for device in [&net.eth_a, &net.eth_b] {
        device.set_offloads(Offloads::VETH).unwrap();
    }
    let listen = [
        "listen",
        "eth0",
        "tcp src port 4711",
        "--json",
        "--for",
        "3",
    ];
    let whole = net.weir(&listen).until("weir: port");
    let split = [&listen[..], &["--split"]].concat();
    let split = net.weir(&split).until("weir: port");
    let server = net.b.run(|| TcpListener::bind("10.0.0.2:4711")).unwrap();
    let mut client = net.a.run(|| TcpStream::connect("10.0.0.2:4711")).unwrap();
    let (mut taken, _) = server.accept().unwrap();
    let sending = std::thread::spawn(move || taken.write_all(&[7; SENT]));
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    sending.join().unwrap().unwrap();
    assert_eq!(got.len(), SENT);
    let [whole, split] = [whole, split].map(|running| {
        let ended = running.end();
        assert_eq!(ended.json()["lost"], 0, "{ended:?}");
        let lines: Vec<_> = ended.stdout.lines().collect();
        let (_, frames) = lines.split_last().unwrap();
        let frames = frames.iter().map(|line| {
            let frame: serde_json::Value = serde_json::from_str(line).unwrap();
            (
                frame["len"].as_u64().unwrap(),
                !frame["segment_size"].is_null(),
            )
        });
        frames.collect::<Vec<_>>()
    });
    assert!(
        whole
            .iter()
            .any(|(len, marked)| *marked && *len > FRAME_MAX),
        "{whole:?}"
    );
    assert!(
        split
            .iter()
            .all(|(len, marked)| !marked && *len <= FRAME_MAX),
        "{split:?}"
    );
    // Each with headers of its own, of the same length as the whole's.
    assert!(split.len() > SENT / 1460, "{}", split.len());
    let headers = 14 + 20 + 32;
    let payload = |frames: &[(u64, bool)]| frames.iter().map(|(len, _)| len - headers).sum::<u64>();
    let of_all = |frames: &[(u64, bool)]| {
        // SYN-ACK has longer options.
        payload(frames.get(1..).unwrap_or_default())
    };
    assert_eq!(of_all(&whole), of_all(&split));
    assert_eq!(of_all(&split), SENT as u64);
}

/// A FIFO is waited for, as by a shell, but a signal ends that.
#[test]
fn a_pipe_with_a_name_waits_for_its_reader_or_a_signal() {
    let Some(net) = net() else { return };
    let folder = Folder::new("listen-fifo");
    let fifo = folder.path("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let listen = ["listen", "eth0", "udp dst port 53", "-w", &fifo];
    let waiting = net.weir(&listen);
    waiting.signal(Signal::INT);
    let ended = waiting.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let running = net.weir(&[&listen[..], &["--count", "3"]].concat());
    let input = std::fs::File::open(&fifo).unwrap();
    let running = running.until("weir: port");
    net.send(53, 3);
    let mut reader = Reader::new(input).unwrap();
    let read = std::iter::from_fn(|| reader.next_frame().unwrap().map(drop)).count();
    assert_eq!((read, running.end().code), (3, Some(0)));
}
