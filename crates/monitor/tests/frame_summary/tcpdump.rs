//! Lines compared with tcpdump's: each number, address and name of its line is in weir's.

use super::{known, output_of};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use weir_lab::testenv;
use weir_link::pcap::Reader;
use weir_monitor::Protocol;
use weir_monitor::frame_summary::line;

/// tcpdump's words for which weir has another, in lower case; an empty one says nothing beyond the
/// rest of the line.
const WORDS: &[(&str, &str)] = &[
    ("ip", ""),
    ("ip6", ""),
    ("icmp6", "ICMPv6"),
    ("ethertype", "type"),
    ("unknown", ""),
    ("bootp/dhcp", "DHCP"),
    ("bootp/dhcp", "BOOTP"),
    // IPv6.
    ("dstopt", "destination options"),
    ("hbh", "hop-by-hop options"),
    ("rt6", "routing header"),
    ("deprecated", "type 0"),
    ("donemax", "done max"),
    ("querymax", "query max"),
    ("reportmax", "report max"),
    ("ip-proto-97", "EtherIP"),
    ("ip-proto-136", "UDP-Lite"),
    // IEEE 802.3.
    ("mpcp", "MAC control"),
    ("opcode", ""),
    // ONC RPC.
    ("request", "call"),
    // PPTP.
    ("ctrl_msgtype", ""),
    ("proto_ver", "version"),
    ("frame_cap", "framing"),
    ("bearer_cap", "bearer"),
    ("max_chan", "channels"),
    ("firm_rev", "firmware"),
    ("hostname", "host"),
    // IKE.
    ("ivr", "response by initiator higher version"),
    ("isakmp", ""),
    ("nonesp-encap", "NAT-T"),
    ("udp-encap", "NAT-T"),
    ("isakmp-nat-keep-alive", "NAT-T keepalive"),
    ("parent_sa", "msgid 0"),
    ("child_sa", "msgid"),
    ("2/others", "2"),
    ("ident", "Main Mode"),
    ("agg", "Aggressive"),
    ("inf", "Informational"),
    ("oakley-quick", "Quick Mode"),
    ("ikev2_init", "IKE_SA_INIT"),
    ("ikev2_auth", "IKE_AUTH"),
    ("inf2", "INFORMATIONAL"),
    ("i", "by initiator"),
    // From the cookies of earlier frames.
    ("i", "IKEv1 phase 2"),
    ("r", "response"),
    ("e", "encrypted"),
    // SCTP.
    ("hb", "HEARTBEAT"),
    ("req", "HEARTBEAT"),
    ("op", "ERROR"),
    ("err", "ERROR"),
    ("block", ""),
    ("start", ""),
    ("end", ""),
    // PPP.
    ("ses", "session"),
    ("ip6cp", "IPv6CP"),
    // A password, in tcpdump's line.
    ("name", "password"),
    // GRE.
    ("gre-proto-0x88be", "ERSPAN"),
    ("gre-proto-0x883e", "type 0x883e"),
    ("gre-proto-0x0", "type 0x0000"),
    // DNS.
    ("type65", "HTTPS"),
    ("type65?", "HTTPS?"),
    ("type257", "CAA"),
];

/// The parts of tcpdump's line that weir's must contain as they are, in weir's form; and the kind of
/// frame.
fn exact_parts(theirs: &str) -> Option<(&'static str, Vec<String>)> {
    if is_damaged(theirs) {
        return None;
    }
    let from = |mark: &str| theirs.find(mark).map(|at| &theirs[at..]);
    let up_to_length = |text: &str| -> Option<String> {
        let (before, after) = text.split_once(", length ")?;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{before}, length {digits}"))
    };
    let tcp = from("Flags [").and_then(|tcp| tcp["Flags [".len()..].split_once("], "));
    if let Some((flags, rest)) =
        tcp.filter(|(flags, rest)| are_of_tcp(flags) && rest.contains("win "))
    {
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
        // Where tcpdump has a blank too many, or one too few.
        let ours = ours.replace("  ", " ").replace("max resp", " max resp");
        let ours = ours.replace("unknown icmp6 type", "unknown type");
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
    let (_, rest) = theirs.split_once(": ")?;
    let (dns, _) = rest.rsplit_once(" (")?;
    let id: String = dns.chars().take_while(char::is_ascii_digit).collect();
    let is_dns =
        !has_odd_letters(dns) && theirs.ends_with(')') && !id.is_empty() && theirs.contains(".53");
    // Types newer than tcpdump.
    let dns = dns.replace("Type65", "HTTPS").replace("Type257", "CAA");
    is_dns.then(|| ("dns", vec![format!("DNS {dns}")]))
}

/// Whether there are bytes other than printable ASCII, which tcpdump writes in another way.
fn has_odd_letters(theirs: &str) -> bool {
    ["M-", "^", "\t"].iter().any(|mark| theirs.contains(mark))
}

/// Truncated or invalid: tcpdump has words of its own.
fn is_damaged(theirs: &str) -> bool {
    [
        "[|",
        "bad-",
        "bad ",
        "invalid",
        "truncated",
        "too short",
        "[!init",
    ]
    .iter()
    .any(|mark| theirs.contains(mark))
}

/// tcpdump's line of each frame of a file, by the frame's number from 0; `None`, after a skip, if
/// tcpdump is missing.
fn lines_of_tcpdump(path: &Path) -> Option<BTreeMap<usize, String>> {
    let output = output_of("tcpdump", &["-nnS", "-t", "--number"], path)?;
    let mut lines = BTreeMap::new();
    let mut last = 0;
    for line in output.lines() {
        let numbered = line
            .trim_start()
            .split_once("  ")
            .and_then(|(number, rest)| {
                let number: usize = number.parse().ok()?;
                Some((number, rest))
            });
        match numbered {
            Some((number, rest)) => {
                last = number - 1;
                lines.insert(last, rest.to_owned());
            }
            // A dump of bytes.
            None if line.trim_start().starts_with("0x") => {}
            None => *lines.entry(last).or_default() += &format!(" {}", line.trim_start()),
        }
    }
    Some(lines)
}

/// A line in words, without punctuation, in lower case.
fn words(line: &str) -> impl Iterator<Item = String> {
    let is_between = |letter: char| letter.is_whitespace() || ",;()[]{}<>\"'=|#*".contains(letter);
    line.split(is_between).map(|word| {
        let word = word
            .trim_end_matches(['.', ':', '+'])
            .trim_start_matches('.');
        word.to_ascii_lowercase()
    })
}

/// tcpdump's `address.port` as weir's.
fn with_port(word: &str) -> Option<String> {
    let (address, port) = word.rsplit_once('.')?;
    let (address, port): (IpAddr, u16) = (address.parse().ok()?, port.parse().ok()?);
    Some(SocketAddr::new(address, port).to_string())
}

/// tcpdump's protocol without a printer as weir's.
fn with_protocol(word: &str) -> Option<String> {
    let number: u8 = word.strip_prefix("ip-proto-")?.parse().ok()?;
    let protocol = Protocol {
        ether_type: 0x0800,
        ip_protocol: Some(number),
        service: 0,
    };
    protocol
        .to_string()
        .strip_prefix("IPv4/")
        .map(str::to_owned)
}

fn are_of_tcp(flags: &str) -> bool {
    flags == "none" || flags.chars().all(|flag| "SFRPUEWe.".contains(flag))
}

/// tcpdump's offset and length of a fragment as weir's first and last byte.
fn with_fragment(line: &str) -> Option<String> {
    let (before, rest) = line.split_once("frag (")?;
    let (place, rest) = rest.split_once(')')?;
    let (offset, len) = place.split_once('|')?;
    let (offset, len): (usize, usize) = (offset.parse().ok()?, len.parse().ok()?);
    let end = offset + len;
    Some(format!("{before}fragment {offset}:{end}{rest}"))
}

/// Frames for which tcpdump's line is no measure.
const NOT_COMPARED: &[&str] = &[
    // tcpdump takes the last bit for the unit; in RFC 5482 it is the first.
    "tcp: uto",
    // tcpdump asks for a key.
    "tcp: md5",
    // Reserved fields.
    "ptp: sync",
    "ptp: l2",
];

/// The line without TCP's flags, which [`exact_parts`] has, and without the ordinal numbers of SCTP's
/// chunks and ranges.
fn without_flags(line: &str) -> String {
    let cut = || {
        let (before, rest) = line.split_once("Flags [")?;
        let (flags, rest) = rest.split_once(']')?;
        are_of_tcp(flags).then(|| format!("{before}{rest}"))
    };
    let mut line = cut().unwrap_or_else(|| line.to_owned());
    // Where tcpdump has nothing between two words, or a prefix that says nothing.
    line = line
        .replace("LDP, Label-Space", " LDP, Label-Space")
        .replace("Unknown/", "");
    line = with_fragment(&line).unwrap_or(line);
    if line.contains(": sctp (1)") {
        for number in 1..=9 {
            line = line.replace(&format!("({number}) ["), "[");
            line = line.replace(&format!("#{number}:"), "");
        }
    }
    line
}

/// tcpdump's words that weir's line has not.
fn missing_words(theirs: &str, ours: &str) -> Vec<String> {
    let mut ours: BTreeSet<String> = words(ours).collect();
    // A host and its transport port also count by themselves.
    let parts: Vec<String> = ours
        .iter()
        .flat_map(|word| {
            word.splitn(2, ':')
                .map(str::to_owned)
                .collect::<Vec<String>>()
        })
        .collect();
    ours.extend(parts);
    let has = |word: &str| word.is_empty() || ours.contains(word);
    let mut missing: Vec<String> = Vec::new();
    for word in words(&without_flags(theirs)) {
        let weirs = WORDS.iter().filter(|(theirs, _)| *theirs == word);
        let mut weirs: Vec<String> = weirs.map(|(_, weirs)| (*weirs).to_owned()).collect();
        weirs.extend(with_port(&word));
        weirs.extend(with_protocol(&word));
        let is_there = has(&word) || weirs.iter().any(|it| words(it).all(|word| has(&word)));
        if !is_there {
            missing.push(word);
        }
    }
    missing
}

/// A file that is deleted when dropped.
struct ScratchFile(PathBuf);

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The frames as a classic capture file of Ethernet.
fn written<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> ScratchFile {
    let mut file: Vec<u8> = Vec::new();
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|it| it.to_ne_bytes()).collect() };
    // Magic number, version 2.4, no zone, no accuracy, snaplen, link type.
    file.extend(words(&[0xa1b2_c3d4]));
    file.extend([2_u16, 4].iter().flat_map(|it| it.to_ne_bytes()));
    file.extend(words(&[0, 0, 65_535, 1]));
    for frame in frames {
        let len = u32::try_from(frame.len()).expect("a short frame");
        file.extend(words(&[0, 0, len, len]));
        file.extend(frame);
    }
    let name = format!("weir-frame-lines-{}.pcap", std::process::id());
    let scratch = ScratchFile(std::env::temp_dir().join(name));
    std::fs::write(&scratch.0, file).expect("the folder of temporary files is writable");
    scratch
}

/// All frames of one file: the file's name, and tcpdump's and weir's line of each.
fn compared(path: &Path) -> Option<Vec<(String, String)>> {
    let mut theirs = lines_of_tcpdump(path)?;
    let mut reader = Reader::open(path).expect("a capture");
    let mut pairs = Vec::new();
    let mut number = 0;
    while let Ok(Some(frame)) = reader.next_frame() {
        let theirs = theirs.remove(&number).unwrap_or_default();
        let ours = line(
            frame.bytes,
            frame.wire_len as usize,
            frame.interface.linktype,
        );
        pairs.push((theirs, ours));
        number += 1;
    }
    Some(pairs)
}

#[test]
fn lines_have_what_tcpdump_says() {
    let known = known::all();
    let scratch = written(known.iter().map(|frame| &frame.bytes[..]));
    let captures = testenv::capture_files();
    let mut kinds = BTreeMap::new();
    // One frame for each set of words.
    let mut missing = BTreeMap::new();
    // The lengths in a fuzzed capture contradict each other.
    let is_sound = |path: &&PathBuf| !path.to_string_lossy().contains("/fuzz-");
    for path in captures.iter().filter(is_sound).chain([&scratch.0]) {
        let Some(pairs) = compared(path) else {
            return;
        };
        for (number, (theirs, ours)) in pairs.iter().enumerate() {
            let frame = known.get(number).filter(|_| *path == scratch.0);
            if frame.is_some_and(|frame| NOT_COMPARED.contains(&frame.name.as_str())) {
                continue;
            }
            let exact = exact_parts(theirs);
            let kind = exact.as_ref().map_or("other", |(kind, _)| *kind);
            *kinds.entry(kind).or_insert(0) += 1;
            let parts = exact.map(|(_, parts)| parts).unwrap_or_default();
            let mut lacks: Vec<String> = parts
                .into_iter()
                .filter(|part| !ours.contains(part.as_str()))
                .collect();
            if !is_damaged(theirs) && !has_odd_letters(theirs) {
                lacks.extend(missing_words(theirs, ours));
            }
            if lacks.is_empty() {
                continue;
            }
            let name = match frame {
                Some(frame) => frame.name.clone(),
                None => format!("{} {}", path.display(), number + 1),
            };
            let cut = |text: &str| text.chars().take(400).collect::<String>();
            let (theirs, ours) = (cut(theirs), cut(ours));
            let is_letter = |letter: &char| !letter.is_ascii_digit();
            let key: String = lacks.concat().chars().filter(is_letter).collect();
            missing
                .entry(key)
                .or_insert(format!("{name}: {lacks:?}\n  {theirs}\n  {ours}"));
        }
    }
    println!("{kinds:?}");
    let shown = missing.values().take(80).cloned().collect::<Vec<String>>();
    assert!(
        missing.is_empty(),
        "{} differences:\n{}",
        missing.len(),
        shown.join("\n")
    );
    if captures.is_empty() {
        // Then the known frames alone were compared.
        return;
    }
    assert!(kinds.values().sum::<usize>() >= known.len(), "{kinds:?}");
    for (kind, least) in [
        ("tcp", 5_000),
        ("dns", 50),
        ("icmp", 20),
        ("arp", 2),
        ("udp", 1_000),
        ("other", 500),
    ] {
        let count = kinds.get(kind).copied().unwrap_or(0);
        assert!(captures.is_empty() || count >= least, "{kind}: {count}");
    }
}
