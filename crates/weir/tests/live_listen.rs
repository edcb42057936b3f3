//! `weir listen` on a live link, with the engine in its own process.

mod common;
#[path = "common/live.rs"]
mod live;

use common::Folder;
use live::net;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_lab::command::Resource;
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
    let cases = [(Signal::INT, 130), (Signal::TERM, 143), live::hangup()];
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
    // Stopped while more frames arrive than its queue holds.
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
    let cases: [(&[&str], i32, &str); 15] = [
        (&["eth0", "udp prot 53"], 2, "^^^^"),
        (&["eth7", "udp"], 1, "eth7"),
        (&["eth0", "udp", "--attach", "here"], 2, "xdp-native"),
        (&["eth0", "udp", "--for", "soon"], 2, "not a number"),
        (&["eth0", "--socket", "/nowhere"], 1, "weir broker"),
        (
            &["eth0", "-w", "-", "-C", "1"],
            2,
            "standard output is one file",
        ),
        (&["eth0", "-G", "1"], 2, "--write"),
        (&["eth0", "-w", "x", "-W", "3"], 2, "give -C or -G too"),
        (&["eth0", "-w", "x", "-G", "1"], 2, "would all be x"),
        (&["any", "udp prot 53"], 2, "^^^^"),
        (&["-i", "eth0", "udp", "prot", "53"], 2, "^^^^"),
        (&["eth0", "-c", "0"], 2, "a whole number, 1 or more"),
        (&["eth0", "-c", "-1"], 2, "a whole number, 1 or more"),
        (
            &["eth0", "-w", "x", "-C", "0.1"],
            2,
            "a whole number, 1 or more",
        ),
        (&["eth0", "--priority", "70000"], 2, "from 0 to 65535"),
    ];
    for (arguments, code, message) in cases {
        let ended = net.weir(&[&["listen"], arguments].concat()).end();
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{arguments:?}: {ended:?}");
    }
    for interface in ["eth0", "any"] {
        let ended = net.weir_as_nobody(&["listen", interface, "udp"]).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        // Printed once, for any number of interfaces.
        let said = ended.stderr.matches("start `weir broker`").count();
        assert_eq!(said, 1, "{ended:?}");
    }
}

#[test]
fn super_frames_come_whole_or_as_what_goes_over_the_wire() {
    /// Maximum frame length on this link: 1,500 bytes and an Ethernet header.
    const FRAME_MAX: u64 = 1514;
    const SENT: usize = 200_000;
    let Some(net) = net() else { return };
    // Segmentation is left to the device, so that the kernel does not segment.
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
    let (mut taken, _) = weir_lab::wait::accept(&server).unwrap();
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
    // Each segment has headers of the super-frame's length.
    assert!(split.len() > SENT / 1460, "{}", split.len());
    let headers = 14 + 20 + 32;
    let payload = |frames: &[(u64, bool)]| frames.iter().map(|(len, _)| len - headers).sum::<u64>();
    let of_all = |frames: &[(u64, bool)]| {
        // The SYN-ACK has longer options.
        payload(frames.get(1..).unwrap_or_default())
    };
    assert_eq!(of_all(&whole), of_all(&split));
    assert_eq!(of_all(&split), SENT as u64);
}

/// The command waits for a FIFO's reader, as a shell does, but a signal ends
/// the wait.
#[test]
fn a_pipe_with_a_name_waits_for_its_reader_or_a_signal() {
    let Some(net) = net() else { return };
    let folder = Folder::new("listen-fifo");
    let fifo = folder.path("fifo");
    common::make_fifo(&fifo);
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

/// Lines have timestamps and directions by default, and the detail of
/// tcpdump's.
#[test]
fn a_line_tells_when_which_way_and_what() {
    let Some(net) = net() else { return };
    let listen = ["listen", "eth0", "udp port 4000", "--count", "2"];
    let running = net.weir(&listen).until("weir: port");
    let server = net.server(4000);
    net.a.run(|| {
        let socket = std::net::UdpSocket::bind("10.0.0.1:4001").unwrap();
        socket.send_to(b"there", "10.0.0.2:4000").unwrap();
    });
    let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
    server.send_to(b"back", from).unwrap();
    let ended = running.end();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let is_time = |text: &str| {
        let digits = text.chars().filter(char::is_ascii_digit).count();
        text.len() == 15 && digits == 12 && &text[8..9] == "."
    };
    let expected = [
        " In  10.0.0.1:4001 > 10.0.0.2:4000 UDP, length 5, 47 bytes",
        " Out 10.0.0.2:4000 > 10.0.0.1:4001 UDP, length 4, 46 bytes",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        let (time, rest) = line.split_at(15);
        assert!(is_time(time), "{ended:?}");
        assert_eq!(rest, expected, "{ended:?}");
    }
    assert_eq!(lines[2], "2 frames, 93 bytes, 0 lost");
}

/// Every interface that is up, with the interface's name for each frame.
#[test]
fn any_is_every_interface() {
    let Some(net) = net() else { return };
    let folder = Folder::new("listen-any");
    let path = folder.path("any.pcapng");
    // A device of an egress path, as the broker creates it.
    let own = net.lab.link(&net.a, &net.b).names("own0", "w0123456789ab");
    let own = own.connect().unwrap();
    let listen = ["listen", "any", "udp port 53", "--count", "3"];
    let shown = net
        .weir(&[&listen[..], &["--json"]].concat())
        .until("on eth0");
    let written = net
        .weir(&[&listen[..], &["-w", &path]].concat())
        .until("on eth0");
    let server = net.server(53);
    net.send(53, 2);
    net.b.run(|| {
        let socket = std::net::UdpSocket::bind("10.0.0.2:0").unwrap();
        // By the loopback interface.
        socket.send_to(b"x", "10.0.0.2:53").unwrap();
    });
    drop(server);
    let ended = shown.end();
    assert!(!ended.stderr.contains("w0123456789ab"), "{ended:?}");
    drop(own);
    let mut names: Vec<String> = ended
        .stdout
        .lines()
        .filter_map(|line| {
            let frame: serde_json::Value = serde_json::from_str(line).unwrap();
            Some(frame["interface"].as_str()?.to_owned())
        })
        .collect();
    names.sort();
    assert_eq!(names, ["eth0", "eth0", "lo"], "{ended:?}");
    assert_eq!(written.end().code, Some(0));
    let mut reader = Reader::open(&path).unwrap();
    let mut names = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        names.push(frame.interface.name.clone().unwrap());
    }
    names.sort();
    assert_eq!(names, ["eth0", "eth0", "lo"]);
}

/// An interface that comes up later is listened on, also with the name of one
/// that is gone; the first one's frames are written.
#[test]
fn any_follows_interfaces_that_come_and_go() {
    let Some(net) = net() else { return };
    let folder = Folder::new("listen-any-later");
    let path = folder.path("any.pcapng");
    let listen = ["listen", "any", "udp port 53", "-w", &path, "--count", "4"];
    let mut running = net.weir(&listen).until("on eth0");
    for round in 0..2 {
        let link = net.lab.link(&net.a, &net.b).names("later0", "later1");
        let link = link.addresses([10, 9, 0, 1], [10, 9, 0, 2], 24);
        let (_, later) = link.neighbours().connect().unwrap();
        running = running.until("on later1");
        net.a.run(|| {
            let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
            for _ in 0..2 {
                socket.send_to(b"x", "10.9.0.2:53").unwrap();
            }
        });
        // The last frames end it.
        if round == 0 {
            later.delete().unwrap();
            running = running.until("later1 is gone");
        }
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut reader = Reader::open(&path).unwrap();
    let mut frames = 0;
    while let Some(frame) = reader.next_frame().unwrap() {
        assert_eq!(frame.interface.name.as_deref(), Some("later1"));
        frames += 1;
    }
    assert_eq!(frames, 4);
}

/// Number of frames and size of a file in a folder.
fn frames_in(path: &str) -> (u64, usize) {
    let mut reader = Reader::open(path).unwrap();
    let (mut frames, mut longest) = (0, 0);
    while let Some(frame) = reader.next_frame().unwrap() {
        frames += 1;
        longest = longest.max(frame.bytes.len());
        assert!(frame.wire_len >= 1000);
    }
    (frames, longest)
}

#[test]
fn files_rotate_and_frames_are_cut() {
    const FRAMES: u32 = 3000;
    let Some(net) = net() else { return };
    let folder = Folder::new("listen-rotate");
    let path = folder.path("ring");
    let count = FRAMES.to_string();
    let listen = [
        "listen",
        "eth0",
        "udp port 53",
        "--count",
        &count,
        "-w",
        &path,
    ];
    let whole = [&listen[..], &["-C", "1", "-W", "3", "--queue", "8MiB"]].concat();
    let running = net.weir(&whole).until("weir: port");
    let cut = folder.path("cut");
    let short = [
        "listen",
        "eth0",
        "udp port 53",
        "--count",
        &count,
        "-w",
        &cut,
        "-s",
        "60",
    ];
    let short = net
        .weir(&[&short[..], &["--queue", "8MiB"]].concat())
        .until("weir: port");
    net.a.run(|| {
        let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
        for _ in 0..FRAMES {
            let _ = socket.send_to(&[7; 1000], "10.0.0.2:53");
        }
    });
    let (ended, short) = (running.end(), short.end());
    assert_eq!(
        (ended.code, short.code),
        (Some(0), Some(0)),
        "{ended:?} {short:?}"
    );
    // 1,042 bytes for a frame and 34 more: a file has 930 frames, and the
    // fourth file overwrites the first.
    let files = ["ring0", "ring1", "ring2"].map(|name| frames_in(&folder.path(name)));
    let [(first, _), (second, longest), (third, _)] = files;
    assert_eq!(longest, 1042);
    assert_eq!(second, third, "{files:?}");
    assert_eq!(u64::from(FRAMES) - 3 * second, first, "{files:?}");
    assert!(!folder.has("ring3") && !folder.has("ring"));
    assert_eq!(frames_in(&cut), (u64::from(FRAMES), 60));
}

/// A file that reaches a size limit, as on a full disk, is a valid capture, and
/// its number of frames is printed.
#[test]
fn a_file_that_cannot_grow_stays_whole() {
    let Some(net) = net() else { return };
    let folder = Folder::new("listen-full");
    let path = folder.path("full.pcapng");
    let mut limited = common::weir([]);
    limited.limit(Resource::Fsize, 400 * 512);
    let listen = ["listen", "eth0", "udp port 53", "-w", &path, "--for", "30"];
    let running = live::Running::start(&net.b, limited, &listen).until("weir: port");
    net.a.run(|| {
        let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
        for _ in 0..1000 {
            let _ = socket.send_to(&[7; 1000], "10.0.0.2:53");
        }
    });
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let (frames, _) = frames_in(&path);
    assert!(frames > 100 && frames < 200, "{frames}");
    let said = format!("it ends there, with {frames} frames");
    assert!(ended.stderr.contains(&said), "{said}: {ended:?}");
}

/// The reader of a pipe gets frames while more arrive, with delays below 100
/// ms.
#[test]
fn a_pipe_gets_frames_while_more_arrive() {
    let Some(net) = net() else { return };
    for more in [&[][..], &["-U"]] {
        let listen = ["listen", "-ni", "eth0", "udp port 53", "-w", "-"];
        let listen = [&listen[..], more].concat();
        let mut running = net.weir(&listen).until("weir: port");
        let out = running.take_stdout();
        let is_read = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut reader = Reader::new(out).unwrap();
                assert!(reader.next_frame().unwrap().is_some());
                is_read.store(true, Ordering::Relaxed);
            });
            // 400 frames are fewer than the buffer holds.
            for _ in 0..400 {
                net.send(53, 1);
                std::thread::sleep(Duration::from_millis(20));
                if is_read.load(Ordering::Relaxed) {
                    break;
                }
            }
            assert!(is_read.load(Ordering::Relaxed), "{more:?}");
        });
    }
}

/// A closed standard output ends the command even if no frame arrives.
#[test]
fn a_closed_output_ends_it_on_a_quiet_link() {
    let Some(net) = net() else { return };
    for more in [&[][..], &["-w", "-"], &["--quiet"]] {
        let listen = [&["listen", "eth0", "udp port 53"][..], more].concat();
        let mut running = if more == ["--quiet"] {
            net.weir(&listen)
        } else {
            net.weir(&listen).until("weir: port")
        };
        drop(running.take_stdout());
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{more:?}: {ended:?}");
    }
}
