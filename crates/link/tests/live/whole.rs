//! Super-frames: segments that the device is to cut are delivered whole, as
//! the kernel handles them, and marked.

use super::one::{OnePort, read_all};
use super::{Link, link};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use weir_demux::kernel::record::{FLAG_EGRESS, FLAG_GSO};
use weir_lab::net::Offloads;
use weir_link::bpf::Hook;
use weir_link::gso::segments;

const SENT: usize = 1 << 20;

/// Where TCP's checksum stands in such a frame.
const CHECKSUM_AT: usize = IP_END + 16;

/// Bytes of an Ethernet header and an IPv4 header without options.
const IP_END: usize = 14 + 20;

#[test]
fn super_frames_are_delivered_whole_and_marked() {
    let Some(link) = link() else { return };
    let port = OnePort::new("tcp dst port 7000", 1 << 23);
    let _dispatcher = port.attach(&link.eth_a, Hook::TcEgress);
    let text = send_text(&link);
    let mut reader = port.reader();
    let (mut first, mut seen) = (None, vec![None; SENT]);
    let (mut whole, mut longest) = (0, 0);
    read_all(&mut reader, |record| {
        assert_eq!(record.bytes.len(), record.wire_len as usize);
        assert!(record.flags & FLAG_EGRESS != 0 && record.lost_before == 0);
        let segment = &record.bytes[IP_END..];
        let payload = &segment[usize::from(segment[12] >> 4) * 4..];
        let sequence = u32::from_be_bytes(segment[4..8].try_into().unwrap());
        // The first is the SYN, which takes a number.
        let first = *first.get_or_insert(sequence.wrapping_add(1));
        if record.flags & FLAG_GSO != 0 {
            let size = usize::from(record.gso_size);
            assert!(size > 500 && size < 1_500, "{size}");
            assert_eq!(usize::from(record.gso_segs), payload.len().div_ceil(size));
            whole += 1;
        } else {
            assert!(record.wire_len <= 1_514);
        }
        longest = longest.max(record.bytes.len());
        let at = sequence.wrapping_sub(first) as usize;
        for (byte, place) in payload.iter().zip(seen.iter_mut().skip(at)) {
            *place = Some(*byte);
        }
    });
    println!("{whole} super-frames, of {longest} bytes at most");
    assert!(seen.iter().copied().eq(text.iter().copied().map(Some)));
    assert!(whole > 5 && longest > 20_000, "{whole}, {longest}");
}

/// Sends the text from a to b.
fn send_text(link: &Link) -> Vec<u8> {
    let text: Vec<u8> = (0..SENT).map(|at| (at / 7 + at / 4096) as u8).collect();
    let server = link.b.run(|| TcpListener::bind("10.0.0.2:7000")).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut got = Vec::new();
            let (mut stream, _) = weir_lab::wait::accept(&server).unwrap();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        let mut client = link.a.run(|| TcpStream::connect("10.0.0.2:7000")).unwrap();
        client.write_all(&text).unwrap();
        drop(client);
        assert!(reading.join().unwrap() == text);
    });
    text
}

/// Where the kernel cuts: the plan sees super-frames as they leave the first
/// host, and their segments as they come to the second.
#[test]
fn super_frames_are_cut_as_the_kernel_cuts_them() {
    let Some(link) = link() else { return };
    // Made by the stack, and cut before the device has them.
    let by_kernel = Offloads {
        generic_segmentation: true,
        ..Offloads::OFF
    };
    link.eth_a.set_offloads(by_kernel).unwrap();
    link.eth_b.set_offloads(Offloads::OFF).unwrap();
    let port = OnePort::new("tcp dst port 7000", 1 << 23);
    let _leaving = port.attach(&link.eth_a, Hook::TcEgress);
    let _coming = port.attach(&link.eth_b, Hook::TcIngress);
    send_text(&link);
    let mut reader = port.reader();
    let (mut cut, mut came, mut whole) = (Vec::new(), Vec::new(), 0);
    read_all(&mut reader, |record| {
        assert_eq!(record.lost_before, 0);
        if record.flags & FLAG_EGRESS == 0 {
            assert_eq!(record.flags & FLAG_GSO, 0, "it came in pieces");
            came.push(record.bytes.to_vec());
            return;
        }
        whole += u32::from(record.flags & FLAG_GSO != 0);
        let pieces = segments(&record);
        let count = pieces.len();
        let before = cut.len();
        let is_cut = count > 1;
        cut.extend(pieces.map(|piece| (is_cut, piece.into_owned())));
        assert_eq!(cut.len() - before, count);
        for pair in cut[before..].windows(2) {
            let step = name(&pair[1].1).0.wrapping_sub(name(&pair[0].1).0);
            assert!((1..1_500).contains(&step), "{step}");
        }
    });
    println!("{whole} super-frames, {} segments", came.len());
    assert!(whole > 5 && came.len() > 500, "{whole}, {}", came.len());
    assert_eq!(cut.len(), came.len());
    // What two CPUs send, one that writes and one that has an
    // acknowledgement, the other host may take up in either order.
    cut.sort_by_key(|(_, frame)| name(frame));
    came.sort_by_key(|frame| name(frame));
    for (number, ((is_cut, cut), came)) in cut.iter_mut().zip(&mut came).enumerate() {
        if !*is_cut {
            // As it leaves: the kernel has yet to sum it.
            cut[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
            came[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
        }
        assert!(cut == came, "{number}:\n{cut:02x?}\n{came:02x?}");
    }
}

/// What names a segment of one connection: its sequence number, and for what
/// is sent again IPv4's identification.
fn name(frame: &[u8]) -> (u32, u16) {
    let sequence = frame[IP_END + 4..IP_END + 8].try_into().unwrap();
    let identification = frame[18..20].try_into().unwrap();
    (
        u32::from_be_bytes(sequence),
        u16::from_be_bytes(identification),
    )
}
