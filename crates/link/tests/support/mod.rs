//! Builds capture files by hand, independently of the writer under test.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

use std::io::{Cursor, Write};

use weir_link::pcap::{Error, Reader};

/// An owned copy of a frame and its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub bytes: Vec<u8>,
    pub wire_len: u32,
    pub time_ns: Option<i64>,
    pub interface: u32,
    pub linktype: u32,
}

/// Reads to the end or to the first damage.
pub fn drain(reader: &mut Reader) -> (Vec<Seen>, Option<Error>) {
    let mut seen = Vec::new();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => seen.push(Seen {
                bytes: frame.bytes.to_vec(),
                wire_len: frame.wire_len,
                time_ns: frame.time_ns,
                interface: frame.interface_index,
                linktype: frame.linktype().0,
            }),
            Ok(None) => return (seen, None),
            Err(error) => return (seen, Some(error)),
        }
    }
}

/// Reads a file in memory.
pub fn read(bytes: &[u8]) -> (Vec<Seen>, Option<Error>) {
    match Reader::new(Cursor::new(bytes.to_vec())) {
        Ok(mut reader) => drain(&mut reader),
        Err(error) => (Vec::new(), Some(error)),
    }
}

/// Reads a file that must be undamaged.
pub fn read_whole(bytes: &[u8]) -> Vec<Seen> {
    let (seen, error) = read(bytes);
    assert!(error.is_none(), "{error:?}");
    seen
}

/// The byte order of written numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    pub fn u16(self, value: u16) -> [u8; 2] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }
    pub fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }
    pub fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }
}

pub const MICRO: u32 = 0xa1b2_c3d4;
pub const NANO: u32 = 0xa1b2_3c4d;
pub const MODIFIED: u32 = 0xa1b2_cd34;

/// A pcap file's header.
pub fn pcap_header(
    order: Order,
    magic: u32,
    version: (u16, u16),
    snaplen: u32,
    link: u32,
) -> Vec<u8> {
    let mut file = order.u32(magic).to_vec();
    file.extend(order.u16(version.0));
    file.extend(order.u16(version.1));
    file.extend([0; 8]);
    file.extend(order.u32(snaplen));
    file.extend(order.u32(link));
    file
}

/// Appends a frame of a pcap file: timestamp, the two length fields, the bytes.
pub fn pcap_frame(
    file: &mut Vec<u8>,
    order: Order,
    time: (u32, u32),
    lens: (u32, u32),
    bytes: &[u8],
) {
    for word in [time.0, time.1, lens.0, lens.1] {
        file.extend(order.u32(word));
    }
    file.extend(bytes);
}

/// `seen` as a pcap file; timestamps are truncated to the magic number's
/// resolution.
pub fn as_pcap(seen: &[Seen], order: Order, magic: u32, snaplen: u32) -> Vec<u8> {
    let link = seen.first().map_or(1, |frame| frame.linktype);
    let mut file = pcap_header(order, magic, (2, 4), snaplen, link);
    for frame in seen {
        let time_ns = frame.time_ns.unwrap_or(0) as u64;
        let unit = if magic == NANO { 1 } else { 1000 };
        let time = (time_ns / 1_000_000_000, time_ns % 1_000_000_000 / unit);
        let lens = (frame.bytes.len() as u32, frame.wire_len);
        pcap_frame(
            &mut file,
            order,
            (time.0 as u32, time.1 as u32),
            lens,
            &frame.bytes,
        );
    }
    file
}

/// Appends a pcapng block.
pub fn block(file: &mut Vec<u8>, order: Order, kind: u32, body: &[u8]) {
    assert_eq!(body.len() % 4, 0);
    let length = order.u32(body.len() as u32 + 12);
    file.extend(order.u32(kind));
    file.extend(length);
    file.extend(body);
    file.extend(length);
}

/// Appends a section header.
pub fn section(file: &mut Vec<u8>, order: Order) {
    let mut body = order.u32(0x1a2b_3c4d).to_vec();
    body.extend(order.u16(1));
    body.extend(order.u16(0));
    body.extend([0xff; 8]);
    block(file, order, 0x0a0d_0d0a, &body);
}

/// A pcapng option, padded.
pub fn option(order: Order, code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = order.u16(code).to_vec();
    bytes.extend(order.u16(value.len() as u16));
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Appends an interface with the given options.
pub fn interface(file: &mut Vec<u8>, order: Order, link: u16, snaplen: u32, options: &[Vec<u8>]) {
    let mut body = order.u16(link).to_vec();
    body.extend([0; 2]);
    body.extend(order.u32(snaplen));
    body.extend(options.concat());
    block(file, order, 1, &body);
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    padded
}

/// Appends an enhanced packet block.
pub fn enhanced(file: &mut Vec<u8>, order: Order, number: u32, time: u64, wire: u32, bytes: &[u8]) {
    let mut body = Vec::new();
    for word in [
        number,
        (time >> 32) as u32,
        time as u32,
        bytes.len() as u32,
        wire,
    ] {
        body.extend(order.u32(word));
    }
    body.extend(padded(bytes));
    block(file, order, 6, &body);
}

/// Appends an obsolete packet block.
pub fn obsolete(file: &mut Vec<u8>, order: Order, number: u16, time: u64, wire: u32, bytes: &[u8]) {
    let mut body = order.u16(number).to_vec();
    body.extend(order.u16(7));
    for word in [(time >> 32) as u32, time as u32, bytes.len() as u32, wire] {
        body.extend(order.u32(word));
    }
    body.extend(padded(bytes));
    block(file, order, 2, &body);
}

/// Appends a simple packet block.
pub fn simple(file: &mut Vec<u8>, order: Order, wire: u32, bytes: &[u8]) {
    let mut body = order.u32(wire).to_vec();
    body.extend(padded(bytes));
    block(file, order, 3, &body);
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}
