//! The bytes of a capture, decompressed if necessary, in one reused buffer.

use std::io::{self, Read};

use super::decompress::{Unpack, UnpackError};
use super::{Compression, Damage, Error, Region};

/// Initial length of the buffer: it fits a second-level cache, which makes
/// reading fast. The buffer grows only for a longer record.
const BUFFER_LEN: usize = 256 * 1024;

/// A reader that counts the bytes it returned.
struct Counted {
    inner: Box<dyn Read + Send>,
    consumed: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(buffer) {
                Ok(count) => {
                    self.consumed += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

enum Source {
    Plain(Counted),
    Packed(Box<Unpack<Counted>>),
}

impl Source {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        match self {
            Source::Plain(plain) => plain.read(buffer).map_err(UnpackError::Read),
            Source::Packed(unpack) => unpack.read(buffer),
        }
    }
}

/// A stream of bytes, of which one record at a time is parsed in place.
pub(super) struct Input {
    source: Source,
    buffer: Vec<u8>,
    /// The unread bytes are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// The stream offset of `buffer[0]`.
    base: u64,
}

impl Input {
    /// Wraps `inner`, decompressing it if its first bytes indicate a
    /// compression, and reads ahead at least four bytes if the input has them.
    pub(super) fn new(inner: Box<dyn Read + Send>) -> Result<Input, Error> {
        let plain = Source::Plain(Counted { inner, consumed: 0 });
        let mut input = Input {
            source: plain,
            buffer: vec![0; BUFFER_LEN],
            start: 0,
            end: 0,
            base: 0,
        };
        input.has_unread(4)?;
        let Some(packing) = Compression::of(input.unread()) else {
            return Ok(input);
        };
        let Source::Plain(mut counted) = input.source else {
            unreachable!("made plain above");
        };
        // The bytes read ahead precede the rest of the input.
        let ahead = input.buffer[..input.end].to_vec();
        counted.inner = Box::new(io::Cursor::new(ahead).chain(counted.inner));
        counted.consumed = 0;
        let unpack = Unpack::new(counted, packing);
        let unpack = unpack.map_err(|source| Error::Read { offset: 0, source })?;
        input.source = Source::Packed(Box::new(unpack));
        input.end = 0;
        input.has_unread(4)?;
        Ok(input)
    }

    /// The stream offset of the next unread byte.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Bytes read from the file so far; of a compressed file, compressed bytes.
    pub(super) fn consumed(&self) -> u64 {
        match &self.source {
            Source::Plain(plain) => plain.consumed,
            Source::Packed(unpack) => unpack.inner().consumed,
        }
    }

    pub(super) fn packing(&self) -> Option<Compression> {
        match &self.source {
            Source::Plain(_) => None,
            Source::Packed(unpack) => Some(unpack.packing()),
        }
    }

    /// The unread bytes in the buffer, from [`Input::offset`] on.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The unread bytes' position for [`Input::slice`], valid until the next
    /// call of [`Input::has_unread`].
    #[inline]
    pub(super) fn position(&self) -> usize {
        self.start
    }

    /// The `len` bytes at `position`, consumed but still in the buffer.
    #[inline]
    pub(super) fn slice(&self, position: usize, len: usize) -> &[u8] {
        &self.buffer[position..position + len]
    }

    /// Consumes `count` unread bytes.
    #[inline]
    pub(super) fn take(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "taken more than there is");
    }

    /// Reads until `count` bytes are unread; `false` if the stream ends before.
    #[inline]
    pub(super) fn has_unread(&mut self, count: usize) -> Result<bool, Error> {
        if self.end - self.start >= count {
            return Ok(true);
        }
        self.refill(count)
    }

    #[cold]
    fn refill(&mut self, count: usize) -> Result<bool, Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while self.end < count {
            // The buffer grows as bytes arrive, so that a false length in a
            // short file costs no memory.
            if self.end == self.buffer.len() {
                let longer = count.min(self.end * 2);
                self.buffer.resize(longer, 0);
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.end += read,
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(true)
    }

    fn failed(&self, error: UnpackError) -> Error {
        match error {
            UnpackError::Packed(source) => self.damaged(Damage::Packed(source)),
            UnpackError::Read(source) => Error::Read {
                offset: self.base + self.end as u64,
                source,
            },
        }
    }

    /// An error at the next unread byte.
    #[cold]
    pub(super) fn damaged(&self, damage: Damage) -> Error {
        Error::Damaged {
            offset: self.offset(),
            packing: self.packing(),
            damage,
        }
    }

    /// The error for a stream that ends inside `region`, which should have
    /// `need` bytes.
    #[cold]
    pub(super) fn cut_short(&self, region: Region, need: usize) -> Error {
        self.damaged(Damage::CutShort {
            region,
            have: self.unread().len() as u64,
            need: need as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_grows_as_bytes_arrive() {
        const ASKED: usize = 16 << 20;
        for there in [0, 8, BUFFER_LEN - 1, BUFFER_LEN, BUFFER_LEN + 1, 1 << 20] {
            let source = io::Cursor::new(vec![7; there]);
            let mut input = Input::new(Box::new(source)).unwrap();
            assert!(!input.has_unread(ASKED).unwrap(), "{there}");
            assert_eq!(input.unread().len(), there);
            let most = BUFFER_LEN.max(2 * there);
            assert!(
                input.buffer.len() <= most,
                "{there}: {}",
                input.buffer.len()
            );
        }
    }
}
