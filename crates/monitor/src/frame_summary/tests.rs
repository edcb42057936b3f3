//! Tests of summaries: known frames, hostile frames, and real captures compared
//! with tcpdump and tshark.

use super::*;
use std::path::Path;
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::pcap::Reader;

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
        "vlan 7 00:00:00:00:00:00 > 00:00:00:00:00:00 type 0x88b5, length 2"
    );
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
    /// More than any summary of real frames.
    const LINE_MAX: usize = 64 << 10;
    let mut frames = vec![(udp(), LinkType::EN10MB)];
    for path in testenv::capture_files() {
        frames.extend(frames_of(&path).into_iter().take(200));
    }
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
                let line = summary(some, *linktype);
                assert!(!line.is_empty() && line.len() < LINE_MAX, "{some:02x?}");
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

/// The parts of tcpdump's line that weir's must contain, in weir's form; and
/// the kind of frame.
fn expected_of(theirs: &str) -> Option<(&'static str, Vec<String>)> {
    // Truncated or invalid: tcpdump has words of its own.
    if ["[|", "bad-", "invalid", "truncated"]
        .iter()
        .any(|mark| theirs.contains(mark))
    {
        return None;
    }
    let from = |mark: &str| theirs.find(mark).map(|at| &theirs[at..]);
    let up_to_length = |text: &str| -> Option<String> {
        let (before, after) = text.split_once(", length ")?;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{before}, length {digits}"))
    };
    if let Some(tcp) = from("Flags [") {
        let (flags, rest) = tcp["Flags [".len()..].split_once("], ")?;
        let name = |letter| match letter {
            'S' => " SYN",
            'F' => " FIN",
            'R' => " RST",
            'P' => " PSH",
            'U' => " URG",
            'E' => " ECE",
            'W' => " CWR",
            _ => " ACK",
        };
        let mut all: Vec<String> = match flags {
            "none" => Vec::new(),
            flags => flags
                .chars()
                .map(|letter| name(letter).to_owned())
                .collect(),
        };
        all.push(up_to_length(rest)?);
        return Some(("tcp", all));
    }
    if let Some(icmp) = from("ICMP6, ") {
        let ours = icmp.replacen("ICMP6, ", "ICMPv6 ", 1);
        return Some(("icmp6", vec![up_to_length(&ours)?]));
    }
    if let Some(icmp) = from("ICMP ") {
        return Some(("icmp", vec![up_to_length(icmp)?]));
    }
    if let Some(arp) = from("ARP, ") {
        return Some(("arp", vec![arp.to_owned()]));
    }
    if let Some(igmp) = from("igmp ") {
        return Some(("igmp", vec![igmp.to_owned()]));
    }
    if let Some(udp) = from("UDP, length ") {
        return Some(("udp", vec![up_to_length(udp)?]));
    }
    // tcpdump has no name for DNS here: an id, and the length at the end.
    let (_, told) = theirs.split_once(": ")?;
    let (dns, _) = told.rsplit_once(" (")?;
    let id: String = dns.chars().take_while(char::is_ascii_digit).collect();
    // tcpdump writes bytes other than ASCII differently, and names invalid
    // classes.
    let odd = ["M-", "^", "(Class", "[0q]"];
    let is_ascii = !odd.iter().any(|mark| dns.contains(mark));
    let is_dns = is_ascii && theirs.ends_with(')') && !id.is_empty() && theirs.contains(".53");
    is_dns.then(|| ("dns", vec![format!("DNS {dns}")]))
}

#[test]
fn lines_have_what_tcpdump_says() {
    let mut compared = std::collections::BTreeMap::new();
    let mut missing = Vec::new();
    let files = testenv::capture_files();
    for path in &files {
        let Some(theirs) = output_of("tcpdump", &["-nnS", "-t"], path) else {
            return;
        };
        let lines = theirs.lines().filter(|line| !line.starts_with([' ', '\t']));
        let lines: Vec<&str> = lines.collect();
        let frames = frames_of(path);
        // For some frames tcpdump writes several lines.
        if lines.len() != frames.len() {
            continue;
        }
        for (number, (line, (bytes, linktype))) in lines.iter().zip(&frames).enumerate() {
            let Some((kind, parts)) = expected_of(line) else {
                continue;
            };
            if ![LinkType::EN10MB, LinkType::RAW].contains(linktype) {
                continue;
            }
            *compared.entry(kind).or_insert(0) += 1;
            let ours = summary(bytes, *linktype);
            if let Some(part) = parts.iter().find(|part| !ours.contains(part.as_str())) {
                let cut = |text: &str| text.chars().take(300).collect::<String>();
                let (part, line, ours) = (cut(part), cut(line), cut(&ours));
                let file = path.display();
                missing.push(format!(
                    "{file} {}: `{part}`\n  {line}\n  {ours}",
                    number + 1
                ));
            }
        }
    }
    println!("{compared:?}");
    let shown = missing.iter().take(40).cloned().collect::<Vec<String>>();
    assert!(
        missing.is_empty(),
        "{} frames:\n{}",
        missing.len(),
        shown.join("\n")
    );
    for (kind, least) in [
        ("tcp", 5_000),
        ("dns", 50),
        ("icmp", 20),
        ("arp", 2),
        ("udp", 1_000),
    ] {
        let count = compared.get(kind).copied().unwrap_or(0);
        assert!(files.is_empty() || count >= least, "{kind}: {count}");
    }
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
