//! Errors of capture files, with offsets.

use std::io;
use std::path::PathBuf;

use super::Compression;

/// Why a capture could not be read completely. Every frame returned before
/// stays valid.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system could not read more of the file.
    #[error("cannot read further at byte {offset}: {source}")]
    Read {
        /// Bytes read before the error; of a compressed file, decompressed
        /// bytes.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file is damaged or truncated.
    #[error("at byte {offset}{}: {damage}", unpacked(*packing))]
    Damaged {
        /// Offset of the damaged record; every record before it was read. In a
        /// compressed file, an offset into the decompressed bytes.
        offset: u64,
        /// The file's compression, if any.
        packing: Option<Compression>,
        /// The damage.
        damage: Damage,
    },
}

impl Error {
    /// Offset of the first byte that could not be interpreted; `None` if the
    /// file was not opened.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Error::Open { .. } => None,
            Error::Read { offset, .. } | Error::Damaged { offset, .. } => Some(*offset),
        }
    }
}

fn unpacked(packing: Option<Compression>) -> String {
    packing.map_or_else(String::new, |packing| {
        format!(" of the data decompressed from {packing}")
    })
}

fn cut_short(region: Region, have: u64, need: u64) -> String {
    match (region, have) {
        (Region::FileHeader, 0) => "the file is empty".into(),
        _ => format!("the file ends inside a {region}: {have} of {need} bytes are there"),
    }
}

/// The kind of damage.
#[derive(thiserror::Error, Debug)]
pub enum Damage {
    /// The file ends inside a record.
    #[error("{}", cut_short(*region, *have, *need))]
    CutShort {
        /// The region of the file.
        region: Region,
        /// Bytes present.
        have: u64,
        /// Bytes that the region should have.
        need: u64,
    },
    /// The first bytes are not the magic number of pcap, pcapng, gzip or zstd.
    #[error(
        "not a capture file: it starts with the bytes {:02x} {:02x} {:02x} {:02x}; expected pcap or pcapng, plain or compressed with gzip or zstd",
        .0[0], .0[1], .0[2], .0[3]
    )]
    Magic([u8; 4]),
    /// The format's version is not supported.
    #[error("{format} version {major}.{minor} is not supported")]
    Version {
        /// `pcap` or `pcapng`.
        format: &'static str,
        /// Major version number.
        major: u16,
        /// Minor version number.
        minor: u16,
    },
    /// The link type field of a pcap file has reserved bits set.
    #[error("the link type field {0:#010x} has reserved bits set")]
    LinkType(u32),
    /// A frame's captured length exceeds the limit of its link type.
    #[error("a frame of {captured} captured bytes; at most {max} are possible")]
    FrameLength {
        /// The captured length in the header, in bytes.
        captured: u32,
        /// The limit for the link type.
        max: u32,
    },
    /// A pcapng block has an invalid length.
    #[error(
        "a block of type {kind:#010x} with length {length}; expected a multiple of 4 from {min} \
         to {max}"
    )]
    BlockLength {
        /// The block's type.
        kind: u32,
        /// The length in the block, including header and trailer.
        length: u32,
        /// The minimum for a block of its type.
        min: u32,
        /// The limit.
        max: u32,
    },
    /// The lengths at the start and end of a pcapng block differ.
    #[error("a block has length {before} before it but {behind} behind it")]
    BlockTrailer {
        /// The length in the block's header.
        before: u32,
        /// The length in its trailer.
        behind: u32,
    },
    /// A pcapng section has a wrong byte-order magic.
    #[error("a section starts with byte-order magic {0:#010x}; expected 0x1a2b3c4d")]
    ByteOrder(u32),
    /// An option of a pcapng interface overruns its block, or has an invalid
    /// length or value.
    #[error("interface option {code} of {length} bytes is malformed")]
    Option {
        /// The option's code.
        code: u16,
        /// The option's length field.
        length: u16,
    },
    /// The timestamp resolution is so fine that 64 bits cannot count one
    /// second.
    #[error("timestamp resolution {0:#04x} is finer than 10^-19 or 2^-63 seconds")]
    Resolution(u8),
    /// A frame refers to an interface that its section has not described.
    #[error("a frame of interface {interface}, but the section describes {known} so far")]
    Interface {
        /// The number in the frame's block.
        interface: u32,
        /// Number of interfaces that the section has described so far.
        known: u32,
    },
    /// The file has more interfaces than the limit.
    #[error("more than {0} interfaces")]
    Interfaces(usize),
    /// The compressed data is corrupt or truncated.
    #[error("the compressed data is damaged: {0}")]
    Packed(io::Error),
}

/// A region of a capture file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// The file header.
    FileHeader,
    /// The 16 or 24 bytes before each frame of a pcap file.
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
