//! Several writes in one system call: their order and results.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{IoSlice, Read};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::Duration;
use weir_lab::net::Lab;
use weir_lab::testenv;
use weir_link::net::{Tap, WriteBatch};

/// A `WriteBatch`; `None` if the system lacks io_uring.
fn run() -> Option<WriteBatch> {
    let run = WriteBatch::new();
    if let Err(error) = &run {
        testenv::skip(&format!("several writes at once need io_uring(7): {error}"));
    }
    run.ok()
}

/// Each frame as three buffers.
fn writes(frames: &[Vec<u8>]) -> Vec<[IoSlice<'_>; 3]> {
    frames
        .iter()
        .map(|frame| {
            let (first, rest) = frame.split_at(frame.len() / 2);
            let (second, third) = rest.split_at(rest.len() / 2);
            [first, second, third].map(IoSlice::new)
        })
        .collect()
}

fn do_not_block(fd: impl AsFd) {
    let flags = fcntl_getfl(&fd).unwrap();
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK).unwrap();
}

#[test]
fn what_is_written_comes_in_order_and_is_counted() {
    let Some(mut run) = run() else { return };
    let (mut reader, writer) = std::io::pipe().unwrap();
    do_not_block(&writer);
    for count in 0..=10 {
        let frames: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8; 50 + n]).collect();
        let taken = run.write(writer.as_fd(), &writes(&frames)).unwrap();
        assert_eq!(taken, count.min(8));
        let all: Vec<u8> = frames[..taken].concat();
        let mut got = vec![0; all.len()];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(got, all);
    }
}

#[test]
fn what_cannot_be_written_so_is_an_error_that_stays() {
    let Some(mut run) = run() else { return };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let frames = vec![vec![1; 9]; 4];
    assert_eq!(run.write(writer.as_fd(), &writes(&frames)).unwrap(), 4);
    reader.read_exact(&mut [0; 36]).unwrap();
    // Not open for writing.
    assert!(run.write(reader.as_fd(), &writes(&frames)).is_err());
    assert!(run.write(writer.as_fd(), &writes(&frames)).is_err());
}

#[test]
fn a_full_descriptor_that_does_not_block_is_not_waited_for() {
    let Some(mut run) = run() else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    do_not_block(&writer);
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let frames = vec![vec![1; 5000]; 4];
        let taken = run.write(writer.as_fd(), &writes(&frames)).unwrap();
        tell.send(taken).unwrap();
    });
    let taken = told.recv_timeout(Duration::from_secs(60));
    drop(reader);
    assert_eq!(taken, Ok(0));
}

#[test]
fn a_tap_interface_takes_frames_while_it_is_up() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let Some(mut run) = run() else { return };
    let lab = Lab::new();
    let host = lab.host("linux").unwrap();
    host.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")
        .unwrap();
    let tap = host.run(|| Tap::open_offloading("tap0")).unwrap();
    let device = host.device("tap0").unwrap();
    // The driver's header, then a broadcast Ethernet frame.
    let frame = |n: u8| {
        let mut frame = vec![0; 10];
        frame.extend_from_slice(&[0xff; 6]);
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        frame.extend(vec![n; 60_000]);
        frame
    };
    let frames: Vec<Vec<u8>> = (0..4).map(frame).collect();
    let mut taken = |frames: &[Vec<u8>]| run.write(tap.as_fd(), &writes(frames)).unwrap();
    assert_eq!(taken(&frames), 0, "it is down");
    device.up().unwrap();
    assert_eq!(taken(&frames), 4);
    let mut short = frames.clone();
    (short[1], short[2]) = (vec![0; 12], Vec::new());
    assert_eq!(taken(&short), 2, "what is no frame is not taken");
    device.delete().unwrap();
    assert_eq!(taken(&frames), 0, "it is gone");
}
