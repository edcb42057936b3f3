//! Buffers blocks before they are written, and counts those written completely.

use std::io::{self, ErrorKind, Write};

/// The length of the block at the beginning of these bytes, which are in the output behind this many
/// others.
pub(super) type BlockLen = fn(&[u8], u64) -> usize;

/// An output that receives many complete blocks at a time.
///
/// Unlike `BufWriter`, it knows after a failed write where the last complete
/// block ends: truncated there, the file is a valid capture.
pub(super) struct Gather<W: Write> {
    /// `None` once the output was returned.
    output: Option<W>,
    /// Complete blocks, at most `capacity` bytes.
    blocks: Vec<u8>,
    capacity: usize,
    block_len: BlockLen,
    /// Bytes of whole blocks that arrived.
    complete_bytes: u64,
    /// A write failed: later blocks would not be at a block boundary.
    failed: bool,
}

impl<W: Write> Gather<W> {
    pub(super) fn new(output: W, capacity: usize, block_len: BlockLen) -> Gather<W> {
        Gather {
            output: Some(output),
            blocks: Vec::with_capacity(capacity),
            capacity,
            block_len,
            complete_bytes: 0,
            failed: false,
        }
    }

    /// Bytes of complete blocks that the output has accepted.
    pub(super) fn blocks_written(&self) -> u64 {
        self.complete_bytes
    }

    /// Bytes of complete blocks that the output has accepted or that are
    /// buffered.
    pub(super) fn len(&self) -> u64 {
        self.complete_bytes + self.blocks.len() as u64
    }

    pub(super) fn output(&self) -> &W {
        self.output.as_ref().expect("not given back")
    }

    /// Buffers one block, which consists of these parts.
    #[inline]
    pub(super) fn block(&mut self, parts: [&[u8]; 3]) -> io::Result<()> {
        let len = parts[0].len() + parts[1].len() + parts[2].len();
        if self.blocks.len() + len > self.capacity {
            self.send()?;
        }
        if len > self.capacity {
            return self.directly(parts, len);
        }
        for part in parts {
            self.blocks.extend_from_slice(part);
        }
        Ok(())
    }

    /// Writes the buffered blocks and flushes the output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        let flushed = output(&mut self.output).flush();
        self.noted(flushed)
    }

    /// Writes the buffered blocks.
    #[cold]
    fn send(&mut self) -> io::Result<()> {
        self.sound()?;
        let (arrived, outcome) = write(output(&mut self.output), &self.blocks);
        self.complete_bytes += self.ends_before(arrived) as u64;
        self.blocks.clear();
        self.noted(outcome)
    }

    /// The end of the last of the blocks that ends at or before `arrived`.
    fn ends_before(&self, arrived: usize) -> usize {
        if arrived == self.blocks.len() {
            return arrived;
        }
        let mut end = 0;
        loop {
            let at = self.complete_bytes + end as u64;
            let next = end + (self.block_len)(&self.blocks[end..], at);
            if next > arrived {
                return end;
            }
            end = next;
        }
    }

    /// Writes a block longer than all that is gathered at a time.
    #[cold]
    fn directly(&mut self, parts: [&[u8]; 3], len: usize) -> io::Result<()> {
        self.sound()?;
        for part in parts {
            let (_, outcome) = write(output(&mut self.output), part);
            self.noted(outcome)?;
        }
        self.complete_bytes += len as u64;
        Ok(())
    }

    /// After a failure the buffer stays empty, so that each further block
    /// fails.
    fn noted(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        if outcome.is_err() {
            self.failed = true;
            self.capacity = 0;
        }
        outcome
    }

    fn sound(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier write failed"));
        }
        Ok(())
    }

    /// Returns the output. Buffered blocks are lost.
    pub(super) fn into_output(mut self) -> W {
        self.output.take().expect("not given back")
    }
}

impl<W: Write> Drop for Gather<W> {
    fn drop(&mut self) {
        if self.output.is_some() && !self.failed {
            // A destructor cannot report the error.
            let _ = self.send();
        }
    }
}

fn output<W>(output: &mut Option<W>) -> &mut W {
    output.as_mut().expect("not given back")
}

/// Writes all of `bytes`; returns how many were written, and whether all were.
fn write(output: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut arrived = 0;
    while arrived < bytes.len() {
        match output.write(&bytes[arrived..]) {
            Ok(0) => return (arrived, Err(ErrorKind::WriteZero.into())),
            Ok(taken) => arrived += taken,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (arrived, Err(error)),
        }
    }
    (arrived, Ok(()))
}
