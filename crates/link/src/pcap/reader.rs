//! Reads captures of any supported format.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::classic::{self, Classic};
use super::input::Input;
use super::ng::{self, Ng};
use super::{Compression, Damage, Error, FrameRef, Interface, Record, Region};

enum Format {
    Classic(Classic),
    Ng(Box<Ng>),
    /// The end of the file or damage was reached.
    Over,
}

/// Reads a capture frame by frame, with memory that does not grow with the
/// file.
pub struct Reader {
    input: Input,
    format: Format,
    interfaces: Vec<Interface>,
    total: Option<u64>,
}

/// A reader's position in its file, in the file's own (compressed) bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes read from the file, including those read ahead.
    pub consumed: u64,
    /// The file's length; `None` for a pipe.
    pub total: Option<u64>,
}

impl Reader {
    /// Opens the capture file at `path`; `-` is standard input.
    ///
    /// # Errors
    /// [`Error::Open`] if it cannot be opened, otherwise as for
    /// [`Reader::new`].
    pub fn open(path: impl AsRef<Path>) -> Result<Reader, Error> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Reader::new(std::io::stdin());
        }
        let refused = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        if metadata.is_dir() {
            return Err(refused(ErrorKind::IsADirectory.into()));
        }
        let total = metadata.is_file().then_some(metadata.len());
        let mut reader = Reader::new(file)?;
        reader.total = total;
        Ok(reader)
    }

    /// Reads a capture from `input`, in large parts: a buffer in front of it is
    /// unnecessary.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Damaged`] if the file header cannot be read
    /// or is not a capture's, or if a pcapng file is damaged before the end of
    /// its first interface description.
    pub fn new(input: impl Read + Send + 'static) -> Result<Reader, Error> {
        let mut input = Input::new(Box::new(input))?;
        let mut interfaces = Vec::new();
        let start = match *input.unread() {
            [a, b, c, d, ..] => [a, b, c, d],
            _ => return Err(input.cut_short(Region::FileHeader, 4)),
        };
        let format = if classic::is_magic(start) {
            let (classic, interface) = Classic::open(&mut input)?;
            interfaces.push(interface);
            Format::Classic(classic)
        } else if ng::is_magic(start) {
            let mut ng = Ng::new();
            ng.open(&mut input, &mut interfaces)?;
            Format::Ng(Box::new(ng))
        } else {
            return Err(input.damaged(Damage::Magic(start)));
        };
        Ok(Reader {
            input,
            format,
            interfaces,
            total: None,
        })
    }

    /// The next frame; `None` at the end and after an error.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Damaged`]; earlier frames stay valid.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<FrameRef<'_>>, Error> {
        let record = match &mut self.format {
            Format::Classic(classic) => classic.next(&mut self.input),
            Format::Ng(ng) => ng.next(&mut self.input, &mut self.interfaces),
            Format::Over => return Ok(None),
        };
        match record {
            Ok(Some(record)) => Ok(Some(self.lend(&record))),
            over => {
                self.format = Format::Over;
                over.map(|_| None)
            }
        }
    }

    #[inline]
    fn lend(&self, record: &Record) -> FrameRef<'_> {
        FrameRef {
            bytes: self.input.slice(record.position, record.len),
            wire_len: record.wire_len,
            time_ns: record.time_ns,
            interface_index: record.interface,
            interface: &self.interfaces[record.interface as usize],
        }
    }

    /// The interfaces described so far; none is ever removed. A pcap file has
    /// one from the start. A pcapng file has its first one from the start,
    /// unless the file ends or contains a frame before the description.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The reader's position in the file.
    pub fn progress(&self) -> Progress {
        Progress {
            consumed: self.input.consumed(),
            total: self.total,
        }
    }

    /// Offset of the end of the last frame, in decompressed bytes.
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    /// The file's compression; `None` for an uncompressed file.
    pub fn packing(&self) -> Option<Compression> {
        self.input.packing()
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("offset", &self.offset())
            .field("interfaces", &self.interfaces)
            .finish_non_exhaustive()
    }
}
