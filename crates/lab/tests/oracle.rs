//! The oracle's bindings, checked with simple facts about libpcap.

use weir_filter::lang::cbpf::Insn;
use weir_lab::oracle::{Oracle, SNAPLEN};
use weir_lab::testenv;
use weir_wire::LinkType;

/// `ldh [12]; jeq 0x800; ret; ret`, which is `ip` on Ethernet.
const IP: [Insn; 4] = [
    Insn::stmt(0x28, 12),
    Insn::jump(0x15, 0x800, 0, 1),
    Insn::stmt(0x06, SNAPLEN),
    Insn::stmt(0x06, 0),
];

fn ip_frame() -> Vec<u8> {
    let mut frame = vec![0; 34];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame
}

#[test]
fn compiles_runs_and_refuses() {
    let Some(oracle) = Oracle::load() else { return };
    assert!(
        oracle.version().starts_with("libpcap version "),
        "{}",
        oracle.version()
    );
    let (major, minor) = oracle.version_numbers().expect("numbers");
    assert!((major, minor) >= (1, 0));

    let filter = oracle
        .compile("ip", LinkType::EN10MB, true)
        .expect("compiles");
    assert_eq!(filter.insns(), IP);
    assert_eq!(filter.run(&ip_frame(), 34), SNAPLEN);
    assert_eq!(filter.run(&ip_frame()[..13], 34), 0);

    let error = oracle
        .compile("ip and", LinkType::EN10MB, true)
        .err()
        .expect("refused");
    assert!(error.contains("syntax error"), "{error}");
}

#[test]
fn runs_given_instructions_once_valid() {
    let Some(oracle) = Oracle::load() else { return };
    let filter = oracle.filter_of(&IP).expect("valid");
    assert_eq!(filter.run(&ip_frame(), 34), SNAPLEN);
    assert!(oracle.filter_of(&IP[..2]).is_err(), "falls off the end");
    assert!(oracle.filter_of(&[]).is_err());
}

#[test]
fn raw_ip_is_known_by_its_file_number() {
    let Some(oracle) = Oracle::load() else { return };
    let filter = oracle.compile("ip", LinkType::RAW, true).expect("compiles");
    assert_eq!(filter.run(&[0x45], 1), SNAPLEN);
    assert_eq!(filter.run(&[0x65], 1), 0);
}

#[test]
fn reads_capture_files() {
    let Some(oracle) = Oracle::load() else { return };
    let files = testenv::capture_files();
    let Some(path) = files.iter().find(|path| path.ends_with("ssh.pcap")) else {
        return;
    };
    let capture = oracle.read(path).expect("readable");
    assert_eq!(capture.linktype, LinkType::EN10MB);
    assert_eq!(capture.frames.len(), 295);
    assert_eq!(capture.error, None);
    assert!(oracle.read(&path.with_extension("absent")).is_err());
}
