//! What can be wrong with a capture file, and where.

use std::io;
use std::path::PathBuf;

use super::Compression;

/// Why a capture could not be read, or not to its end. Every frame given out
/// before it stays valid.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system failed to give more of the file.
    #[error("cannot read on at byte {offset}: {source}")]
    Read {
        /// Bytes read before (unpacked ones, of a packed file).
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not those of a whole capture file.
    #[error("at byte {offset}{}: {damage}", unpacked(*packing))]
    Damaged {
        /// Where the record starts that is damaged; every record before it was
        /// read whole. Counted in the unpacked bytes of a packed file.
        offset: u64,
        /// How the file is packed, if it is.
        packing: Option<Compression>,
        /// What is wrong there.
        damage: Damage,
    },
}

impl Error {
    /// The offset of the first byte that was not understood, if the file was
    /// opened.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Error::Open { .. } => None,
            Error::Read { offset, .. } | Error::Damaged { offset, .. } => Some(*offset),
        }
    }
}

fn unpacked(packing: Option<Compression>) -> String {
    packing.map_or_else(String::new, |packing| {
        format!(" of the data unpacked from {packing}")
    })
}

fn cut_short(region: Region, have: u64, need: u64) -> String {
    match (region, have) {
        (Region::FileHeader, 0) => "the file is empty".into(),
        _ => format!("the file ends inside a {region}: {have} of {need} bytes are there"),
    }
}

/// What is wrong with the bytes of a capture file.
#[derive(thiserror::Error, Debug)]
pub enum Damage {
    /// The file ends inside a record.
    #[error("{}", cut_short(*region, *have, *need))]
    CutShort {
        /// The record.
        region: Region,
        /// Bytes of it that are there.
        have: u64,
        /// Bytes it says it has.
        need: u64,
    },
    /// The first bytes are not those of pcap, pcapng, gzip or zstd.
    #[error(
        "not a capture file: it starts with the bytes {:02x} {:02x} {:02x} {:02x}; expected pcap \
         or pcapng, plain or packed with gzip or zstd",
        .0[0], .0[1], .0[2], .0[3]
    )]
    Magic([u8; 4]),
    /// A version of the format that is not known.
    #[error("{format} version {major}.{minor} is not supported")]
    Version {
        /// `pcap` or `pcapng`.
        format: &'static str,
        /// Major version number.
        major: u16,
        /// Minor version number.
        minor: u16,
    },
    /// The link type field of a pcap file has bits set that must be zero.
    #[error("the link type field {0:#010x} has reserved bits set")]
    LinkType(u32),
    /// A frame claims more captured bytes than any of its link type has.
    #[error("a frame of {captured} captured bytes; at most {max} are possible")]
    FrameLength {
        /// Captured bytes by the header.
        captured: u32,
        /// The limit for the link type.
        max: u32,
    },
    /// A pcapng block whose length cannot be.
    #[error(
        "a block of type {kind:#010x} with length {length}; expected a multiple of 4 from {min} \
         to {max}"
    )]
    BlockLength {
        /// The block's type.
        kind: u32,
        /// The length it says it has, header and trailer included.
        length: u32,
        /// The least for a block of its type.
        min: u32,
        /// The limit.
        max: u32,
    },
    /// The lengths before and behind a pcapng block differ.
    #[error("a block has length {before} before it but {behind} behind it")]
    BlockTrailer {
        /// The length in the block's header.
        before: u32,
        /// The length in its trailer.
        behind: u32,
    },
    /// A pcapng section whose byte-order magic is wrong.
    #[error("a section starts with byte-order magic {0:#010x}; expected 0x1a2b3c4d")]
    ByteOrder(u32),
    /// An option of a pcapng interface runs over the block, or has the wrong
    /// length or value.
    #[error("interface option {code} of {length} bytes is malformed")]
    Option {
        /// The option's code.
        code: u16,
        /// The length it says it has.
        length: u16,
    },
    /// A timestamp resolution finer than 64 bits of it can count a second.
    #[error("timestamp resolution {0:#04x} is finer than 10^-19 or 2^-63 seconds")]
    Resolution(u8),
    /// A frame names an interface that its section has not described.
    #[error("a frame of interface {interface}, but the section describes {known} so far")]
    Interface {
        /// The number in the frame's block.
        interface: u32,
        /// Interfaces that the section has described before it.
        known: u32,
    },
    /// More interfaces than weir keeps track of.
    #[error("more than {0} interfaces")]
    Interfaces(usize),
    /// The packed data is corrupt or ends early.
    #[error("the packed data is damaged: {0}")]
    Packed(io::Error),
}

/// A region of a capture file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// The start of the file.
    FileHeader,
    /// The 16 or 24 bytes before a frame in a pcap file.
    FrameHeader,
    /// A frame's bytes in a pcap file.
    Frame,
    /// The type and length of a pcapng block.
    BlockHeader,
    /// A pcapng block.
    Block,
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Region::FileHeader => "file header",
            Region::FrameHeader => "frame header",
            Region::Frame => "frame",
            Region::BlockHeader => "block header",
            Region::Block => "block",
        })
    }
}
