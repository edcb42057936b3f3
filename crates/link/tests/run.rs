//! Several writes in one system call: their order, and what of them counts.

use std::io::{IoSlice, Read};
use std::os::fd::AsFd;
use weir_link::net::Run;
fn writes<'a>(parts: &'a [Vec<u8>]) -> Vec<[IoSlice<'a>; 3]> {
    parts
        .iter()
        .map(|p| {
            let (a, b) = p.split_at(p.len() / 2);
            let (b, c) = b.split_at(b.len() / 2);
            [a, b, c].map(IoSlice::new)
        })
        .collect()
}
#[test]
fn in_order_and_counted() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    do_not_block(&writer);
    let mut run = Run::new().unwrap();
    for count in 0..=10 {
        let parts: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8; 50 + n]).collect();
        let taken = run.write(writer.as_fd(), &writes(&parts)).unwrap();
        assert_eq!(taken, count.min(8));
        let all: Vec<u8> = parts[..taken].concat();
        let mut got = vec![0; all.len()];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(got, all);
    }
}
#[test]
fn what_cannot_be_written_so_is_an_error_that_stays() {
    let mut run = Run::new().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let parts = vec![vec![1; 9]; 4];
    assert_eq!(run.write(writer.as_fd(), &writes(&parts)).unwrap(), 4);
    let mut got = [0; 36];
    reader.read_exact(&mut got).unwrap();
    // Not open for writing.
    assert!(run.write(reader.as_fd(), &writes(&parts)).is_err());
    assert!(run.write(writer.as_fd(), &writes(&parts)).is_err());
}
#[test]
fn a_full_descriptor_that_does_not_block_is_not_waited_for() {
    let (reader, writer) = std::io::pipe().unwrap();
    do_not_block(&writer);
    let full = vec![0; 4096];
    while rustix::io::write(&writer, &full).is_ok() {}
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut run = Run::new().unwrap();
        let parts = vec![vec![1; 5000]; 4];
        tell.send(run.write(writer.as_fd(), &writes(&parts)).unwrap())
            .unwrap();
    });
    let got = told.recv_timeout(std::time::Duration::from_secs(60));
    drop(reader);
    assert_eq!(got, Ok(0));
}
fn do_not_block(fd: impl AsFd) {
    let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
    rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
}
#[test]
fn a_tap_interface_takes_a_run() {
    if !weir_lab::need::root() {
        return;
    }
    let lab = weir_lab::net::Lab::new();
    let host = lab.host("linux").unwrap();
    host.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")
        .unwrap();
    let tap = host
        .run(|| weir_link::net::Tap::open_offloading("tap0"))
        .unwrap();
    let device = host.device("tap0").unwrap();
    let mut run = Run::new().unwrap();
    let frame = |n: u8| {
        let mut f = vec![0; 10];
        f.extend_from_slice(&[0xff; 6]);
        f.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        f.extend(vec![n; 60_000]);
        f
    };
    let parts: Vec<Vec<u8>> = (0..4).map(frame).collect();
    assert_eq!(
        run.write(tap.as_fd(), &writes(&parts)).unwrap(),
        0,
        "it is down"
    );
    device.up().unwrap();
    assert_eq!(run.write(tap.as_fd(), &writes(&parts)).unwrap(), 4);
    let mut short = parts.clone();
    short[1] = vec![0; 12];
    short[2] = vec![];
    assert_eq!(
        run.write(tap.as_fd(), &writes(&short)).unwrap(),
        2,
        "what is no frame is not taken"
    );
    device.delete().unwrap();
    assert_eq!(
        run.write(tap.as_fd(), &writes(&parts)).unwrap(),
        0,
        "it is gone"
    );
}
