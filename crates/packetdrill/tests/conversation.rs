//! A conversation through the shared object, with the calls that packetdrill
//! makes; does not need packetdrill.

#![allow(unsafe_code)] // It calls the C ABI.

mod common;

use common::{Drill, EINPROGRESS};

const LOCAL: [u8; 4] = [192, 168, 0, 1];
const REMOTE: [u8; 4] = [192, 0, 2, 1];

/// A TCP segment from the peer over IPv4, with correct checksums.
fn segment(ports: (u16, u16), numbers: (u32, u32), flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend_from_slice(&ports.0.to_be_bytes());
    tcp.extend_from_slice(&ports.1.to_be_bytes());
    tcp.extend_from_slice(&numbers.0.to_be_bytes());
    tcp.extend_from_slice(&numbers.1.to_be_bytes());
    tcp.extend_from_slice(&[5 << 4, flags, 0x40, 0, 0, 0, 0, 0]);
    tcp.extend_from_slice(payload);
    let mut sum = Vec::new();
    sum.extend_from_slice(&REMOTE);
    sum.extend_from_slice(&LOCAL);
    sum.extend_from_slice(&[0, 6]);
    sum.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
    sum.extend_from_slice(&tcp);
    tcp[16..18].copy_from_slice(&checksum(&sum).to_be_bytes());
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0]);
    packet.extend_from_slice(&REMOTE);
    packet.extend_from_slice(&LOCAL);
    let header = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&header);
    packet.extend(tcp);
    packet
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [a, b] => u32::from(u16::from_be_bytes([a, b])),
        _ => u32::from(pair[0]) << 8,
    });
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The fields of a segment: ports, numbers, flags, payload.
struct Said {
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

fn said(packet: &[u8]) -> Said {
    let header = usize::from(packet[0] & 15) * 4;
    let tcp = &packet[header..];
    let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    Said {
        ports: (half(0), half(2)),
        seq: word(4),
        ack: word(8),
        flags: tcp[13],
        payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
    }
}

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

#[test]
fn a_server_is_opened_read_and_written() {
    let drill = Drill::new("");
    let listener = drill.socket();
    drill.bind(listener, LOCAL, 8080);
    assert_eq!(drill.listen(listener, 1), 0);
    drill.input(&segment((4000, 8080), (100, 0), SYN, b""));
    let (answer, first_us) = drill.output();
    let answer = said(&answer);
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, 101));
    drill.input(&segment((4000, 8080), (101, answer.seq + 1), ACK, b""));
    drill.input(&segment((4000, 8080), (101, answer.seq + 1), ACK, b"hello"));
    let stream = drill.accept(listener);
    assert_eq!(drill.read(stream, 100), b"hello");
    assert_eq!(said(&drill.output().0).ack, 106);
    assert_eq!(drill.write(stream, b"world"), 5);
    let (reply, _) = drill.output();
    assert_eq!(said(&reply).payload, b"world");
    // Not acknowledged: retransmitted at the right virtual time.
    let (again, again_us) = drill.output();
    assert_eq!(said(&again).payload, b"world");
    let waited_ms = (again_us - first_us) / 1000;
    assert!((200..=1100).contains(&waited_ms), "{waited_ms} ms");
    // Unread data is lost by closing, which the peer learns by a RST.
    drill.input(&segment((4000, 8080), (106, answer.seq + 6), ACK, b"late"));
    drill.output();
    assert_eq!(drill.close(stream), 0);
    assert_ne!(said(&drill.output().0).flags & RST, 0);
}

#[test]
fn calls_that_block_end_when_they_should_by_the_virtual_clock() {
    let drill = Drill::new("mtu=1400");
    let socket = drill.socket();
    let start_us = drill.now_us();
    std::thread::scope(|scope| {
        // packetdrill blocks on a second thread, which reads the clock.
        let opener = scope.spawn(|| {
            let answer = drill.connect(socket, REMOTE, 80);
            (answer, drill.now_us())
        });
        let syn = loop {
            drill.sleep(10);
            if let Some((syn, _)) = drill.output_now() {
                break said(&syn);
            }
        };
        assert_eq!(syn.flags & 0x3f, SYN);
        drill.sleep(50_000);
        let ends = (syn.ports.1, syn.ports.0);
        drill.input(&segment(ends, (7, syn.seq + 1), SYN | ACK, b""));
        let at_us = drill.now_us();
        drill.sleep(70_000);
        let (answer, ended_us) = opener.join().unwrap();
        assert_eq!(answer, Ok(0));
        assert!(ended_us.abs_diff(at_us) <= 3, "{ended_us} for {at_us}");
        assert!(drill.now_us() - start_us >= 120_000);
    });
}

#[test]
fn errors_are_those_of_the_system() {
    let drill = Drill::new("");
    let socket = drill.socket();
    drill.nonblocking(socket);
    assert_eq!(drill.connect(socket, REMOTE, 80), Err(EINPROGRESS));
    assert_eq!(
        drill.try_write(socket, std::ptr::null(), 10),
        Err(libc::EFAULT)
    );
    assert_eq!(
        drill.try_write(12_345, [0; 1].as_ptr(), 1),
        Err(libc::EBADF)
    );
    assert_eq!(drill.listen(socket, 1), -1);
    let syn = said(&drill.output().0);
    let ends = (syn.ports.1, syn.ports.0);
    drill.input(&segment(ends, (0, syn.seq + 1), RST | ACK, b""));
    let refused = Err(libc::ECONNREFUSED);
    assert_eq!(drill.try_write(socket, [0; 1].as_ptr(), 1), refused);
    assert_eq!(
        drill.try_write(socket, [0; 1].as_ptr(), 1),
        Err(libc::EPIPE)
    );
    assert_eq!(drill.close(socket), 0);
    assert_eq!(drill.close(socket), -1);
}

#[test]
fn nothing_to_send_is_an_empty_packet() {
    let drill = Drill::new("");
    assert_eq!(drill.output_now(), None);
    assert!(drill.output().0.is_empty());
}
