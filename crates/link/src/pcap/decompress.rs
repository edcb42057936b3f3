//! Unpacking gzip (RFC 1952) and zstd (RFC 8878) as bytes arrive.
//!
//! The stream adaptors of `flate2` and `zstd` throw away what the failing call
//! had already unpacked. Here the bytes before the damage are kept: gzip by its
//! count of bytes written, zstd by feeding one block a call.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{self, InBuffer, Operation, OutBuffer};

/// Packed bytes taken from the input at a time.
const INPUT_LEN: usize = 64 * 1024;
/// Enough of a zstd frame to learn how long its header is.
const ZSTD_FIRST_LEN: usize = 5;

/// How a capture file is packed, told by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// gzip, of one or several members.
    Gzip,
    /// zstd, of one or several frames.
    Zstd,
}

impl Compression {
    /// The packing that `start`, the first four bytes of a file, announces.
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
    /// A zstd decoder and how many bytes it wants next: those up to the end of
    /// the block it is in.
    Zstd(raw::Decoder<'static>, usize),
}

impl Engine {
    fn new(packing: Compression) -> io::Result<Engine> {
        Ok(match packing {
            Compression::Gzip => Engine::Gzip(Box::new(Decompress::new_gzip(15))),
            Compression::Zstd => Engine::Zstd(raw::Decoder::new()?, ZSTD_FIRST_LEN),
        })
    }

    /// Unpacks once: the bytes taken, the bytes made, and how it went: whether
    /// a member or frame ended, or what was wrong.
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

/// Why unpacking failed.
#[derive(Debug)]
pub(super) enum UnpackError {
    /// The packed bytes could not be had.
    Read(io::Error),
    /// They are not those of a whole packed file.
    Packed(io::Error),
}

impl UnpackError {
    fn packed(kind: io::ErrorKind, message: &'static str) -> UnpackError {
        UnpackError::Packed(io::Error::new(kind, message))
    }
}

/// A reader that unpacks another one.
pub(super) struct Unpack<R> {
    inner: R,
    packing: Compression,
    engine: Engine,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// Inside a member or frame: the end of the input here is damage.
    inside: bool,
    /// What went wrong, told after the bytes before it were given out.
    failed: Option<io::Error>,
}

impl<R: Read> Unpack<R> {
    /// Unpacks what `inner` gives.
    ///
    /// # Errors
    /// When the decoder cannot be made.
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

    /// Reads more packed bytes; false at their end.
    fn refill(&mut self) -> Result<bool, UnpackError> {
        self.start = 0;
        self.end = 0;
        let read = self.inner.read(&mut self.input);
        self.end = read.map_err(UnpackError::Read)?;
        Ok(self.end > 0)
    }

    /// Between members: skips padding (tapes fill with zeros) and starts the
    /// next one. False at the end of all.
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

    /// Unpacks some bytes into `output`; none at the end of all.
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
