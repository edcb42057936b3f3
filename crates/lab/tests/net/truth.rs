//! Received frames are as on a wire, unless offloads are enabled.

use rustix::net::{RecvFlags, recv};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::net::{Device, Lab, Offloads};
use weir_lab::{testenv, wait};
use weir_wire::{ethernet, ipv4, tcp};

const SENT_BYTES: usize = 200_000;

/// The IPv4 frames that host `b` receives from host `a` while a TCP
/// connection carries [`SENT_BYTES`] bytes.
fn frames_of_a_transfer(offloads: Offloads) -> (Vec<Vec<u8>>, [Device; 2]) {
    let lab = Lab::new();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (eth_a, eth_b) = lab
        .link(&a, &b)
        .addresses([10, 0, 0, 1], [10, 0, 0, 2], 24)
        .offloads(offloads)
        .connect()
        .unwrap();
    let socket = b.capture().unwrap();
    let listener = b.run(|| TcpListener::bind("10.0.0.2:9")).unwrap();
    let mut client = a.run(|| TcpStream::connect("10.0.0.2:9")).unwrap();
    let writer = thread::spawn(move || client.write_all(&vec![7; SENT_BYTES]).unwrap());
    let mut stream = wait::accept(&listener).unwrap().0;
    let mut frames = Vec::new();
    let (mut got, mut buffer) = (0, vec![0; 1 << 17]);
    let start = Instant::now();
    while got < SENT_BYTES {
        assert!(start.elapsed() < Duration::from_secs(10), "{got} bytes");
        got += stream.read(&mut buffer).unwrap();
        while let Ok((len, _)) = recv(&socket, &mut buffer, RecvFlags::empty()) {
            let frame = ethernet::Frame::new(&buffer[..len]).unwrap();
            if frame.src() == eth_a.mac() && frame.ether_type() == ethernet::EtherType::IPV4 {
                frames.push(buffer[..len].to_vec());
            }
        }
    }
    writer.join().unwrap();
    (frames, [eth_a, eth_b])
}

fn checksum_is_right(frame: &[u8]) -> bool {
    let packet = ipv4::Packet::new(&frame[14..]).unwrap();
    let addresses = weir_wire::AddrPair::V4(packet.src(), packet.dst());
    let segment = tcp::Segment::new(packet.payload()).unwrap();
    packet.checksum_is_right() && segment.checksum_is_right(addresses)
}

#[test]
fn without_offloads_every_frame_is_whole() {
    if !testenv::root() {
        return;
    }
    let (frames, [eth_a, eth_b]) = frames_of_a_transfer(Offloads::OFF);
    assert!(frames.len() >= SENT_BYTES / 1500, "{}", frames.len());
    for frame in &frames {
        assert!(frame.len() <= 1514, "{} bytes", frame.len());
        assert!(checksum_is_right(frame), "{frame:x?}");
    }
    assert_eq!(eth_a.offloads().unwrap(), Offloads::OFF);
    assert_eq!(eth_b.offloads().unwrap(), Offloads::OFF);
}

/// The reason for the setting: with a veth's defaults neither holds.
#[test]
fn with_offloads_they_are_not() {
    if !testenv::root() {
        return;
    }
    let (frames, [eth_a, _]) = frames_of_a_transfer(Offloads::VETH);
    assert!(frames.iter().any(|frame| frame.len() > 1514));
    assert!(!frames.iter().any(|frame| checksum_is_right(frame)));
    assert_eq!(eth_a.offloads().unwrap(), Offloads::VETH);
}
