//! Tests of summaries: known frames, hostile frames, and real captures compared
//! with tcpdump and tshark.

mod known;
mod tcpdump;

use std::path::Path;
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::pcap::Reader;
use weir_monitor::frame_summary::{LINE_MAX, line, summary};
use weir_wire::LinkType;

fn udp() -> Vec<u8> {
    let mut frame = vec![0; 60];
    (frame[12], frame[14], frame[23]) = (8, 0x45, 17);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..40].copy_from_slice(&[4, 0, 0, 99, 0, 26]);
    frame
}

#[test]
fn a_datagram_shows_its_ports_and_length() {
    let frame = udp();
    let expected = "10.0.0.1:1024 > 10.0.0.2:99 UDP, length 18";
    assert_eq!(summary(&frame, LinkType::EN10MB), expected);
    assert_eq!(summary(&frame[14..], LinkType::RAW), expected);
}

#[test]
fn a_later_fragment_has_no_ports() {
    let mut frame = udp();
    (frame[17], frame[21]) = (46, 1);
    let expected = "10.0.0.1 > 10.0.0.2 UDP, fragment 8:34";
    assert_eq!(summary(&frame, LinkType::EN10MB), expected);
}

#[test]
fn tags_and_strange_types_are_named() {
    let mut frame = vec![0; 12];
    frame.extend([0x81, 0, 0, 7, 0x88, 0xb5, 0, 0]);
    assert_eq!(
        summary(&frame, LinkType::EN10MB),
        "vlan 7 00:00:00:00:00:00 > 00:00:00:00:00:00 local experimental type 0x88b5, length 2"
    );
}

/// Links other than Ethernet.
#[test]
fn packets_are_found_behind_every_link_header() {
    let mut frame = udp();
    frame[17] = 46;
    let packet = &frame[14..];
    let expected = "10.0.0.1:1024 > 10.0.0.2:99 UDP, length 18";
    let cooked = [
        &[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0][..],
        packet,
    ]
    .concat();
    let header_2 = [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    for (header, linktype) in [
        (&[][..], LinkType::IPV4),
        (&[2, 0, 0, 0], LinkType::NULL),
        (&[0, 0, 0, 2], LinkType::LOOP),
        (&[0xff, 3, 0, 0x21], LinkType::PPP),
        (&[0x21], LinkType::PPP),
    ] {
        let frame = [header, packet].concat();
        assert_eq!(summary(&frame, linktype), expected, "{linktype}");
    }
    assert_eq!(summary(&cooked, LinkType::LINUX_SLL), expected);
    let cooked_2 = [&header_2[..], packet].concat();
    assert_eq!(
        summary(&cooked_2, LinkType::LINUX_SLL2),
        format!("ifindex 3 Out {expected}")
    );
    let marked = line(&cooked[..30], 30, LinkType::LINUX_SLL);
    assert!(
        marked.starts_with("truncated-ip - 32 bytes missing! "),
        "{marked}"
    );
    for linktype in [
        LinkType::NULL,
        LinkType::LOOP,
        LinkType::PPP,
        LinkType::LINUX_SLL,
        LinkType::LINUX_SLL2,
    ] {
        let cut = summary(&[0], linktype);
        assert!(cut.starts_with(&format!("{linktype} [|")), "{cut}");
    }
}

/// A question whose name contains a line feed and an escape character, and one
/// whose name points to itself.
#[test]
fn names_cannot_drive_a_terminal_nor_loop() {
    let with = |name: &[u8]| {
        let mut frame = udp();
        (frame[36], frame[37]) = (0, 53);
        frame.truncate(42);
        frame.extend([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        frame.extend(name);
        frame.extend([0, 1, 0, 1]);
        let len = (frame.len() - 34) as u8;
        (frame[39], frame[17]) = (len, len + 20);
        summary(&frame, LinkType::EN10MB)
    };
    let told = with(b"\x04a\n\x1bb\x03com\x00");
    assert!(told.ends_with("DNS 7+ A? a\\n\\x1bb.com."), "{told}");
    let told = with(&[0xc0, 12]);
    assert!(told.ends_with(", DNS 7+"), "{told}");
}

/// An answer of text records, whose bytes take four characters each.
#[test]
fn a_line_has_a_limit() {
    let mut frame = udp();
    (frame[34], frame[35]) = (0, 53);
    frame.truncate(42);
    frame.extend([0, 7, 0x80, 0, 0, 0, 0, 14, 0, 0, 0, 0]);
    for _ in 0..14 {
        frame.extend([0, 0, 16, 0, 1, 0, 0, 0, 0, 0x10, 0]);
        frame.extend([0xff; 16 * 256]);
    }
    let len = (frame.len() - 34) as u16;
    frame[38..40].copy_from_slice(&len.to_be_bytes());
    frame[16..18].copy_from_slice(&(len + 20).to_be_bytes());
    let line = line(&frame, frame.len(), LinkType::EN10MB);
    assert!(
        line.contains("DNS 7- [0q] 14/0/0 TXT \"\\xff"),
        "{}",
        &line[..200]
    );
    assert_eq!(line.len(), LINE_MAX);
}

/// Every frame of a file, with its link type.
fn frames_of(path: &Path) -> Vec<(Vec<u8>, LinkType)> {
    let mut reader = Reader::open(path).expect("a capture");
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = reader.next_frame() {
        frames.push((frame.bytes.to_vec(), frame.interface.linktype));
    }
    frames
}

#[test]
fn hostile_frames_get_a_harmless_line() {
    let mut frames = vec![(udp(), LinkType::EN10MB)];
    for path in testenv::capture_files() {
        frames.extend(frames_of(&path).into_iter().take(200));
    }
    let known = known::all().into_iter();
    frames.extend(known.map(|frame| (frame.bytes, LinkType::EN10MB)));
    for seed in 0..4 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        for (bytes, linktype) in &frames {
            let mut bytes = bytes.clone();
            for _ in 0..rng.below(6) {
                if !bytes.is_empty() {
                    let at = rng.below(bytes.len().min(200));
                    bytes[at] = rng.bits() as u8;
                }
            }
            let cut = rng.below(bytes.len() + 1);
            for some in [&bytes[..], &bytes[..cut]] {
                let line = line(some, bytes.len(), *linktype);
                assert!(!line.is_empty() && line.len() <= LINE_MAX, "{some:02x?}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }
}

#[test]
fn no_cut_frame_is_too_short() {
    let frame = udp();
    for len in 0..frame.len() {
        for linktype in [LinkType::EN10MB, LinkType::RAW, LinkType(9999)] {
            assert!(!summary(&frame[..len], linktype).is_empty());
        }
    }
}

/// Marked as by tcpdump.
#[test]
fn what_ends_early_is_marked() {
    let mut frame = udp();
    frame[17] = 46;
    let of = |len: usize| summary(&frame[..len], LinkType::EN10MB);
    assert!(of(13).ends_with(" [|ether]"), "{}", of(13));
    assert!(
        of(20).ends_with("type 0x0800, length 6 [|ip]"),
        "{}",
        of(20)
    );
    assert_eq!(of(34), "10.0.0.1 > 10.0.0.2 UDP [|udp]");
    assert_eq!(of(42), "10.0.0.1:1024 > 10.0.0.2:99 UDP, length 18");
    frame[23] = 1;
    let of = |len: usize| summary(&frame[..len], LinkType::EN10MB);
    assert!(of(36).ends_with(" [|icmp]"), "{}", of(36));
    frame[23] = 6;
    let of = |len: usize| summary(&frame[..len], LinkType::EN10MB);
    assert_eq!(of(40), "10.0.0.1:1024 > 10.0.0.2:99 TCP [|tcp]");
    // The header states 146 bytes, of which 46 were on the wire.
    frame[17] = 146;
    let told = line(&frame, 60, LinkType::EN10MB);
    assert!(
        told.starts_with("truncated-ip - 100 bytes missing! 10.0.0.1"),
        "{told}"
    );
    assert_eq!(
        line(&frame, 160, LinkType::EN10MB),
        summary(&frame, LinkType::EN10MB)
    );
    let mut raw = vec![0; 48];
    (raw[0], raw[5], raw[6]) = (0x60, 20, 59);
    let told = line(&raw, 48, LinkType::RAW);
    assert!(
        told.starts_with("truncated-ip6 - 12 bytes missing! :: > ::"),
        "{told}"
    );
}

/// A program's output; `None`, after a skip, if the program is missing.
fn output_of(program: &str, arguments: &[&str], path: &Path) -> Option<String> {
    let mut command = testenv::program(program)?;
    let output = command.args(arguments).arg("-r").arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn servers_names_are_tsharks() {
    let files = testenv::capture_files();
    let mut named = 0;
    for path in &files {
        let field = "tls.handshake.extensions_server_name";
        let fields = [
            "-Y",
            field,
            "-T",
            "fields",
            "-e",
            "frame.number",
            "-e",
            field,
        ];
        let frames = frames_of(path);
        // Takes seconds for each file.
        let has_hello = |(bytes, linktype): &(Vec<u8>, LinkType)| {
            summary(bytes, *linktype).contains("TLS client hello")
        };
        if !frames.iter().any(has_hello) {
            continue;
        }
        let Some(theirs) = output_of("tshark", &fields, path) else {
            return;
        };
        for line in theirs.lines() {
            let Some((number, name)) = line.split_once('\t') else {
                continue;
            };
            let number: usize = number.parse().expect("a frame's number");
            let (bytes, linktype) = &frames[number - 1];
            let ours = summary(bytes, *linktype);
            // Other messages span several segments, or are in QUIC.
            if ours.contains("TLS client hello") {
                assert!(ours.ends_with(&format!(" for {name}")), "{ours}: {name}");
                named += 1;
            }
        }
    }
    assert!(files.is_empty() || named >= 10, "{named}");
}
