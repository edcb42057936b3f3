//! The source of a stream's server: bytes in memory, or a file that is read from the disk (§6.4).

use rustix::fs::{Advice, fadvise};
use std::fs::{File, remove_file};
use std::io::{self, Read, Seek, Write};

/// Where the file is: a folder whose files outlive a restart is on a disk.
const FOLDER: &str = "/var/tmp";
/// Bytes of the file.
const FILE_LEN: usize = 64 << 20;
/// Bytes of a read, and of what is sent at once from memory.
const BLOCK: usize = 64 << 10;

/// The content of memory, and of a file's blocks but for their first bytes, which are the block's
/// number.
static CONTENT: [u8; BLOCK] = [0xa5; BLOCK];

/// Bytes without end.
#[derive(Debug)]
pub(super) enum Source {
    /// These, again and again.
    Memory(&'static [u8]),
    /// A file's, again and again.
    File(DiskFile),
}

impl Source {
    /// The same bytes in memory for ever.
    pub(super) fn memory() -> Source {
        Source::Memory(&CONTENT)
    }

    /// A new file without a name.
    pub(super) fn disk() -> io::Result<Source> {
        Ok(Source::File(DiskFile::new()?))
    }

    /// The next bytes; at least one.
    pub(super) fn next(&mut self) -> io::Result<&[u8]> {
        match self {
            Source::Memory(bytes) => Ok(bytes),
            Source::File(file) => file.next(),
        }
    }

    /// Number of these bytes that were sent.
    pub(super) fn consume(&mut self, count: usize) {
        if let Source::File(file) = self {
            file.sent += count;
        }
    }
}

/// A file without a name. Its pages are forgotten whenever it begins again.
#[derive(Debug)]
pub(super) struct DiskFile {
    file: File,
    block: Vec<u8>,
    sent: usize,
}

impl DiskFile {
    fn new() -> io::Result<DiskFile> {
        let path = format!("{FOLDER}/weir-experiment-{}", std::process::id());
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        remove_file(&path)?;
        let mut block = CONTENT;
        for number in 0..(FILE_LEN / BLOCK) as u32 {
            block[..4].copy_from_slice(&number.to_be_bytes());
            file.write_all(&block)?;
        }
        file.sync_all()?;
        let mut file = DiskFile {
            file,
            block: Vec::with_capacity(BLOCK),
            sent: 0,
        };
        file.begin()?;
        Ok(file)
    }

    fn begin(&mut self) -> io::Result<()> {
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        self.file.rewind()
    }

    fn next(&mut self) -> io::Result<&[u8]> {
        if self.sent >= self.block.len() {
            self.sent = 0;
            self.block.resize(BLOCK, 0);
            let mut count = self.file.read(&mut self.block)?;
            if count == 0 {
                self.begin()?;
                count = self.file.read(&mut self.block)?;
            }
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            self.block.truncate(count);
        }
        Ok(&self.block[self.sent..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_in_order_and_begins_again_at_its_end() {
        let mut source = Source::disk().unwrap();
        let mut numbers = Vec::new();
        let mut at = 0;
        // Enough bytes at once for their end to be in all places of a block.
        while at < FILE_LEN + 2 * BLOCK {
            let next = source.next().unwrap();
            let count = next.len().min(if at % BLOCK < 4 { 1 } else { 9_999 });
            if at % BLOCK < 4 {
                numbers.push(next[0]);
            }
            source.consume(count);
            at += count;
        }
        let numbers: Vec<u32> = numbers
            .chunks(4)
            .map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()))
            .collect();
        let blocks = (FILE_LEN / BLOCK) as u32;
        let expected: Vec<u32> = (0..blocks).chain([0, 1]).collect();
        assert_eq!(numbers, expected);
    }
}
