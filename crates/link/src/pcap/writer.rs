//! Writing pcapng (draft-ietf-opsawg-pcapng): one section, little-endian,
//! nanoseconds. Or pcap (draft-ietf-opsawg-pcap), of the same byte order and unit.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::block_writer::Gather;
use super::classic;
use super::{FrameRef, Interface, NAME_LEN_MAX, frame_len_max};
use weir_wire::LinkType;

/// Bytes buffered before a write; moderate, since many writers may be open at
/// once.
const BUFFER_LEN: usize = 64 * 1024;
/// The header and trailer of an enhanced packet block.
const ENHANCED_LEN: usize = 32;
const APPLICATION: &str = "weir";

/// Why a capture could not be written.
#[derive(thiserror::Error, Debug)]
pub enum WriteError {
    /// The file cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a write. Nothing can be written afterwards.
    #[error("cannot write the capture after byte {whole}: {source}")]
    Write {
        /// Bytes of complete blocks that were written. Truncated to this
        /// length, the file is a valid capture.
        whole: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The frame is longer than its link type allows.
    #[error("a frame of {len} bytes cannot be written; at most {max} are possible")]
    TooLong {
        /// The frame's captured length, in bytes.
        len: usize,
        /// The limit for its link type.
        max: u32,
    },
    /// The link type does not fit the 16-bit field of capture files.
    #[error("link type {0} cannot be written; at most 65535 are possible")]
    LinkType(u32),
    /// A pcap file has no block for keys.
    #[error("a pcap file has no place for TLS keys: write pcapng")]
    NoSecrets,
    /// A pcap file has the link type of its header, and no other.
    #[error(
        "a pcap file has frames of one link type, here {first}, and not of link type {other} too: write pcapng"
    )]
    OtherLinkType {
        /// The file's.
        first: LinkType,
        /// The frame's.
        other: LinkType,
    },
}

/// Writes a pcapng file, or a pcap file ([`Writer::classic`]). Interfaces are described as their
/// first frame comes.
///
/// Timestamps are nanoseconds since 1970; a frame without a timestamp, or with
/// one before 1970, is written with 0. Dropping a writer writes the buffered
/// blocks but cannot report a failure: call [`Writer::finish`].
pub struct Writer<W: Write> {
    output: Gather<W>,
    /// The file is pcap; of this link type, as soon as its header is written.
    classic: Option<Option<LinkType>>,
    /// Interfaces described so far.
    described: u32,
    /// The last frame's interface: its number in the present source, and the
    /// number in this file.
    last: Option<(u32, u32)>,
    /// The same numbers for every interface met. A map, since a source may have
    /// many interfaces of which each of many writers meets few.
    numbers: HashMap<u32, u32>,
}

impl Writer<File> {
    /// Creates or truncates the file at `path` and starts a capture.
    ///
    /// # Errors
    /// [`WriteError::Create`], or [`WriteError::Write`].
    pub fn create(path: impl AsRef<Path>) -> Result<Writer<File>, WriteError> {
        let path = path.as_ref();
        let file = File::create(path).map_err(|source| WriteError::Create {
            path: path.to_owned(),
            source,
        })?;
        Writer::new(file)
    }
}

impl<W: Write> Writer<W> {
    /// Starts a capture in `output`, which needs no buffer of its own.
    ///
    /// # Errors
    /// [`WriteError::Write`].
    pub fn new(output: W) -> Result<Writer<W>, WriteError> {
        Writer::with_buffer(output, BUFFER_LEN)
    }

    /// As [`Writer::new`], with a buffer of `buffer_len` bytes: for many
    /// writers that are open at once.
    ///
    /// # Errors
    /// [`WriteError::Write`].
    pub fn with_buffer(output: W, buffer_len: usize) -> Result<Writer<W>, WriteError> {
        let mut writer = Writer {
            output: Gather::new(output, buffer_len, ng_block_len),
            classic: None,
            described: 0,
            last: None,
            numbers: HashMap::new(),
        };
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4du32.to_le_bytes());
        body.extend(1u16.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        // The section's length is unknown.
        body.extend(u64::MAX.to_le_bytes());
        push_option(&mut body, 4, APPLICATION.as_bytes());
        push_option(&mut body, 0, &[]);
        writer.block(0x0a0d_0d0a, &body)?;
        Ok(writer)
    }

    /// Begins a capture of the older format, pcap, in `output`: its header is written with the first
    /// frame or interface, whose link type all frames must have. A frame's interface is not
    /// written, and a time from 2106 on becomes zero.
    pub fn classic(output: W) -> Writer<W> {
        Writer {
            output: Gather::new(output, BUFFER_LEN, classic::block_len),
            classic: Some(None),
            described: 0,
            last: None,
            numbers: HashMap::new(),
        }
    }

    /// Writes `frame`, describing its interface first if it is new.
    ///
    /// # Errors
    /// [`WriteError::Write`]; [`WriteError::TooLong`], [`WriteError::LinkType`] and
    /// [`WriteError::OtherLinkType`], after which the file is still whole.
    #[inline]
    pub fn write(&mut self, frame: &FrameRef<'_>) -> Result<(), WriteError> {
        let number = match self.last {
            Some((index, number)) if index == frame.interface_index => number,
            _ => self.turn_to(frame.interface_index, frame.interface)?,
        };
        let len = frame.bytes.len();
        let max = frame_len_max(frame.interface.linktype);
        if len > max as usize {
            return Err(WriteError::TooLong { len, max });
        }
        if self.classic.is_some() {
            let header = classic::frame_header(frame);
            return self.put([&header, frame.bytes, &[]]);
        }
        let padding = len.next_multiple_of(4) - len;
        let whole = ((ENHANCED_LEN + len + padding) as u32).to_le_bytes();
        let time_ns = u64::try_from(frame.time_ns.unwrap_or(0)).unwrap_or(0);
        let mut header = [0; 28];
        for (field, word) in header.chunks_exact_mut(4).zip([
            6,
            u32::from_le_bytes(whole),
            number,
            (time_ns >> 32) as u32,
            time_ns as u32,
            len as u32,
            frame.wire_len,
        ]) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        let mut trailer = [0; 7];
        trailer[padding..padding + 4].copy_from_slice(&whole);
        self.put([&header, frame.bytes, &trailer[..padding + 4]])
    }

    /// Writes a Decryption Secrets Block with lines of a TLS key log (draft-ietf-opsawg-pcapng
    /// section 4.7): readers decrypt the connections of the frames behind it.
    ///
    /// # Errors
    /// [`WriteError::Write`]; [`WriteError::NoSecrets`] in a pcap file, and [`WriteError::TooLong`]
    /// beyond 1 MiB, after which the file is still whole.
    pub fn tls_keys(&mut self, lines: &[u8]) -> Result<(), WriteError> {
        /// "TLSK".
        const TLS_KEY_LOG: u32 = 0x544c_534b;
        const LINES_MAX: u32 = 1 << 20;
        if self.classic.is_some() {
            return Err(WriteError::NoSecrets);
        }
        if lines.len() > LINES_MAX as usize {
            return Err(WriteError::TooLong {
                len: lines.len(),
                max: LINES_MAX,
            });
        }
        let mut body = Vec::with_capacity(lines.len() + 12);
        body.extend(TLS_KEY_LOG.to_le_bytes());
        body.extend((lines.len() as u32).to_le_bytes());
        body.extend(lines);
        body.resize(body.len().next_multiple_of(4), 0);
        self.block(10, &body)
    }

    /// Declares that the following frames come from another reader, with other
    /// interface numbers.
    pub fn next_source(&mut self) {
        self.last = None;
        // `clear` would keep the memory.
        self.numbers = HashMap::new();
    }

    /// Whether no interface has been described, and so no frame written.
    pub fn is_empty(&self) -> bool {
        self.described == 0
    }

    /// Bytes of the capture so far, including buffered ones.
    pub fn len(&self) -> u64 {
        self.output.len()
    }

    /// Writes the buffered blocks and flushes the output.
    ///
    /// # Errors
    /// [`WriteError::Write`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let flushed = self.output.flush();
        flushed.map_err(|source| self.failed(source))
    }

    /// The output, which may lack buffered blocks.
    pub fn get_ref(&self) -> &W {
        self.output.output()
    }

    /// Ends the capture: writes the buffered blocks and returns the output.
    ///
    /// # Errors
    /// [`WriteError::Write`].
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.flush()?;
        Ok(self.output.into_output())
    }

    #[cold]
    fn turn_to(&mut self, index: u32, interface: &Interface) -> Result<u32, WriteError> {
        let number = match self.numbers.get(&index) {
            Some(number) => *number,
            None => {
                let number = self.describe(interface)?;
                self.numbers.insert(index, number);
                number
            }
        };
        self.last = Some((index, number));
        Ok(number)
    }

    /// Describes an interface before its frames, so that a capture without
    /// frames has a link type; returns the interface's number in the file.
    /// [`Writer::write`] does not use this description: it describes the
    /// interfaces of its frames itself.
    ///
    /// # Errors
    /// [`WriteError::Write`]; [`WriteError::LinkType`] and [`WriteError::OtherLinkType`], after
    /// which the file is still whole.
    pub fn describe(&mut self, interface: &Interface) -> Result<u32, WriteError> {
        let linktype = interface.linktype.0;
        let field = u16::try_from(linktype).map_err(|_| WriteError::LinkType(linktype))?;
        if let Some(begun) = self.classic {
            match begun {
                None => self.put([&classic::file_header(interface.snaplen, field), &[], &[]])?,
                Some(first) if first == interface.linktype => {}
                Some(first) => {
                    let other = interface.linktype;
                    return Err(WriteError::OtherLinkType { first, other });
                }
            }
            self.classic = Some(Some(interface.linktype));
            self.described += 1;
            return Ok(self.described - 1);
        }
        let mut body = Vec::new();
        body.extend(field.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        body.extend(interface.snaplen.to_le_bytes());
        if let Some(name) = &interface.name {
            let end = name.floor_char_boundary(NAME_LEN_MAX);
            push_option(&mut body, 2, &name.as_bytes()[..end]);
        }
        // Nanoseconds, whatever the source's resolution.
        push_option(&mut body, 9, &[9]);
        push_option(&mut body, 0, &[]);
        self.block(1, &body)?;
        self.described += 1;
        Ok(self.described - 1)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> Result<(), WriteError> {
        let length = (body.len() as u32 + 12).to_le_bytes();
        let mut header = [0; 8];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[4..].copy_from_slice(&length);
        self.put([&header, body, &length])
    }

    #[inline]
    fn put(&mut self, parts: [&[u8]; 3]) -> Result<(), WriteError> {
        let put = self.output.block(parts);
        put.map_err(|source| self.failed(source))
    }

    #[cold]
    fn failed(&self, source: io::Error) -> WriteError {
        let whole = self.output.blocks_written();
        WriteError::Write { whole, source }
    }
}

/// Where a block has its length: behind its type.
fn ng_block_len(block: &[u8], _: u64) -> usize {
    let length = block[4..].first_chunk().expect("blocks are whole");
    u32::from_le_bytes(*length) as usize
}

/// Appends an option, padded to four bytes.
fn push_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;

    /// All but the interfaces is read as it was written; other link types are refused.
    #[test]
    fn a_classic_file_is_read_as_it_was_written() {
        let interface = Interface {
            snaplen: 90,
            ..Interface::ethernet()
        };
        let mut writer = Writer::classic(Vec::new());
        assert!(writer.is_empty());
        let frame = |bytes, time_ns| FrameRef {
            bytes,
            wire_len: 1000,
            time_ns,
            interface_index: 3,
            interface: &interface,
        };
        let long = [7; 90];
        let times = [Some(1_700_000_000_123_456_789), Some(0), None, Some(-5)];
        for time in times {
            writer.write(&frame(&long, time)).unwrap();
        }
        let other = Interface {
            linktype: LinkType::RAW,
            ..Interface::ethernet()
        };
        let refused = writer.write(&FrameRef {
            interface_index: 4,
            interface: &other,
            ..frame(&[], None)
        });
        let is_said = matches!(refused, Err(WriteError::OtherLinkType { .. }));
        assert!(is_said, "{refused:?}");
        assert_eq!(writer.len(), 24 + 4 * (16 + 90));
        let file = writer.finish().unwrap();
        let mut reader = Reader::new(std::io::Cursor::new(file)).unwrap();
        assert_eq!(reader.interfaces()[0].snaplen, 90);
        for time in [times[0], Some(0), Some(0), Some(0)] {
            let read = reader.next_frame().unwrap().unwrap();
            assert_eq!((read.bytes, read.wire_len), (&long[..], 1000));
            assert_eq!((read.time_ns, read.linktype()), (time, LinkType::EN10MB));
        }
        assert!(reader.next_frame().unwrap().is_none());
    }

    #[test]
    fn keys_are_a_block_that_readers_pass_over() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.tls_keys(b"CLIENT_RANDOM 00 11\n").unwrap();
        let interface = Interface::ethernet();
        let frame = FrameRef {
            bytes: &[1; 60],
            wire_len: 60,
            time_ns: Some(1),
            interface_index: 0,
            interface: &interface,
        };
        writer.write(&frame).unwrap();
        let long = writer.tls_keys(&vec![b'x'; (1 << 20) + 1]);
        assert!(matches!(long, Err(WriteError::TooLong { .. })), "{long:?}");
        let file = writer.finish().unwrap();
        assert!(file.windows(8).any(|bytes| bytes == b"KSLT\x14\0\0\0"));
        let mut reader = Reader::new(std::io::Cursor::new(file)).unwrap();
        assert_eq!(reader.next_frame().unwrap().unwrap().bytes, [1; 60]);
        assert!(reader.next_frame().unwrap().is_none());
        let refused = Writer::classic(Vec::new()).tls_keys(b"x\n");
        assert!(matches!(refused, Err(WriteError::NoSecrets)), "{refused:?}");
    }

    /// Takes this many bytes, and then no more.
    struct Full(Vec<u8>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_classic_file_that_is_cut_is_whole() {
        let interface = Interface::ethernet();
        for room in [10, 24, 100, 140, 155] {
            let mut writer = Writer::classic(Full(Vec::new(), room));
            for _ in 0..9 {
                let frame = FrameRef {
                    bytes: &[1; 34],
                    wire_len: 34,
                    time_ns: None,
                    interface_index: 0,
                    interface: &interface,
                };
                writer.write(&frame).unwrap();
            }
            let Err(WriteError::Write { whole, .. }) = writer.flush() else {
                panic!("there was no room");
            };
            let frames = room.checked_sub(24).map(|rest| rest / 50);
            assert_eq!(whole, frames.map_or(0, |frames| 24 + frames as u64 * 50));
        }
    }

    #[test]
    fn a_writer_remembers_only_the_interfaces_it_met() {
        let interface = Interface::ethernet();
        let mut writer = Writer::new(Vec::new()).unwrap();
        let indexes = [65_535, 7, 65_535, 7, 7];
        for interface_index in indexes {
            let frame = FrameRef {
                bytes: &[],
                wire_len: 0,
                time_ns: None,
                interface_index,
                interface: &interface,
            };
            writer.write(&frame).unwrap();
        }
        assert_eq!((writer.numbers.len(), writer.described), (2, 2));
    }
}
