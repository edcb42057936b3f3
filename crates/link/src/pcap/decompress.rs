//! Streaming decompression of gzip (RFC 1952) and zstd (RFC 8878).
//!
//! The stream adaptors of `flate2` and `zstd` discard the output of the call
//! that fails. This module keeps the bytes before the damage: with gzip by its
//! count of bytes written, with zstd by decoding one block a call.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{self, InBuffer, Operation, OutBuffer};

/// Compressed bytes read from the input at a time.
const INPUT_LEN: usize = 64 * 1024;
/// Bytes of a zstd frame that suffice to learn the length of its header.
const ZSTD_FIRST_LEN: usize = 5;

/// The compression of a capture file, recognised by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// gzip, of one or several members.
    Gzip,
    /// zstd, of one or several frames.
    Zstd,
}

impl Compression {
    /// The compression that the first four bytes of a file indicate; `None` for
    /// an uncompressed file.
    pub fn of(start: &[u8]) -> Option<Compression> {
        match start {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            // A skippable frame, as pzstd writes before each data frame.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            _ => None,
        }
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        })
    }
}

enum Engine {
    Gzip(Box<Decompress>),
    /// A zstd decoder and the number of bytes up to the end of its current
    /// block.
    Zstd(raw::Decoder<'static>, usize),
}

impl Engine {
    fn new(packing: Compression) -> io::Result<Engine> {
        Ok(match packing {
            Compression::Gzip => Engine::Gzip(Box::new(Decompress::new_gzip(15))),
            Compression::Zstd => Engine::Zstd(raw::Decoder::new()?, ZSTD_FIRST_LEN),
        })
    }

    /// One decoder step: bytes consumed, bytes produced, and whether a member
    /// or frame ended, or the error.
    fn run(&mut self, input: &[u8], output: &mut [u8]) -> (usize, usize, io::Result<bool>) {
        match self {
            Engine::Gzip(inflate) => {
                let (taken, made) = (inflate.total_in(), inflate.total_out());
                let status = inflate.decompress(input, output, FlushDecompress::None);
                let taken = (inflate.total_in() - taken) as usize;
                let made = (inflate.total_out() - made) as usize;
                let ended = match status {
                    Ok(status) => Ok(status == Status::StreamEnd),
                    Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                };
                (taken, made, ended)
            }
            Engine::Zstd(decoder, wanted) => {
                let one_block = &input[..input.len().min(*wanted)];
                let mut from = InBuffer::around(one_block);
                let mut to = OutBuffer::around(output);
                let hint = decoder.run(&mut from, &mut to);
                let (taken, made) = (from.pos(), to.pos());
                let ended = hint.map(|hint| {
                    *wanted = if hint == 0 { ZSTD_FIRST_LEN } else { hint };
                    hint == 0
                });
                (taken, made, ended)
            }
        }
    }
}

/// Why decompression failed.
#[derive(Debug)]
pub(super) enum UnpackError {
    /// The compressed bytes could not be read.
    Read(io::Error),
    /// The compressed data is corrupt or truncated.
    Packed(io::Error),
}

impl UnpackError {
    fn packed(kind: io::ErrorKind, message: &'static str) -> UnpackError {
        UnpackError::Packed(io::Error::new(kind, message))
    }
}

/// A reader that decompresses another reader.
pub(super) struct Unpack<R> {
    inner: R,
    packing: Compression,
    engine: Engine,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// Inside a member or frame: end of input here is damage.
    inside: bool,
    /// An error, reported after the bytes before it were returned.
    failed: Option<io::Error>,
}

impl<R: Read> Unpack<R> {
    /// Decompresses `inner`.
    ///
    /// # Errors
    /// If the decoder cannot be created.
    pub(super) fn new(inner: R, packing: Compression) -> io::Result<Unpack<R>> {
        Ok(Unpack {
            inner,
            packing,
            engine: Engine::new(packing)?,
            input: vec![0; INPUT_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            inside: true,
            failed: None,
        })
    }

    pub(super) fn inner(&self) -> &R {
        &self.inner
    }

    pub(super) fn packing(&self) -> Compression {
        self.packing
    }

    /// Reads more compressed bytes; `false` at the end of the input.
    fn refill(&mut self) -> Result<bool, UnpackError> {
        self.start = 0;
        self.end = 0;
        let read = self.inner.read(&mut self.input);
        self.end = read.map_err(UnpackError::Read)?;
        Ok(self.end > 0)
    }

    /// Between members: skips padding (tapes pad with zeros) and starts the
    /// next member; `false` at the end of the input.
    fn begin_member(&mut self) -> Result<bool, UnpackError> {
        loop {
            let packed = &self.input[self.start..self.end];
            let padding = packed.iter().take_while(|byte| **byte == 0).count();
            self.start += padding;
            if self.start < self.end {
                if self.packing == Compression::Gzip {
                    self.engine = Engine::new(self.packing).map_err(UnpackError::Read)?;
                }
                self.inside = true;
                return Ok(true);
            }
            if !self.refill()? {
                return Ok(false);
            }
        }
    }

    /// Decompresses bytes into `output`; returns 0 at the end.
    pub(super) fn read(&mut self, output: &mut [u8]) -> Result<usize, UnpackError> {
        if let Some(error) = self.failed.take() {
            return Err(UnpackError::Packed(error));
        }
        loop {
            if !self.inside && !self.begin_member()? {
                return Ok(0);
            }
            let packed = &self.input[self.start..self.end];
            let (taken, made, ended) = self.engine.run(packed, output);
            self.start += taken;
            match ended {
                Ok(ended) => self.inside = !ended,
                Err(error) if made == 0 => return Err(UnpackError::Packed(error)),
                Err(error) => self.failed = Some(error),
            }
            if made > 0 || output.is_empty() {
                return Ok(made);
            }
            let starved = self.start == self.end;
            if self.inside && starved && !self.refill()? {
                let message = "it ends in the middle";
                return Err(UnpackError::packed(io::ErrorKind::UnexpectedEof, message));
            }
            if taken == 0 && !starved {
                let message = "the decoder makes no progress";
                return Err(UnpackError::packed(io::ErrorKind::InvalidData, message));
            }
        }
    }
}
