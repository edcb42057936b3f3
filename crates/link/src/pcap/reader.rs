//! Reading a capture, whatever its format.

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
    /// The end or damage was met.
    Over,
}

/// Reads a capture frame by frame, in memory that does not grow with it.
pub struct Reader {
    input: Input,
    format: Format,
    interfaces: Vec<Interface>,
    total: Option<u64>,
}

/// How far a reader has come in its file, counted in the file's own (packed)
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes taken from the file, those read ahead included.
    pub consumed: u64,
    /// The file's length, if it has one: a pipe has none.
    pub total: Option<u64>,
}

impl Reader {
    /// Opens the capture file at `path`; `-` is standard input.
    ///
    /// # Errors
    /// [`Error::Open`] when it cannot be opened, else as [`Reader::new`].
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

    /// Reads a capture from `input`, in large pieces: no buffer in front of it
    /// helps.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Damaged`] when the file's header cannot be
    /// had or is no capture's, or a pcapng file is damaged before the first
    /// interface's description ends.
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

    /// The next frame, or `None` at the end. After an error there is none.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Damaged`]; the frames before stay valid.
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

    /// The interfaces met so far. A pcap file has one from the start, and a
    /// pcapng file its first, unless it ends or has a frame before it describes
    /// any; the others come as they are described, none is ever removed.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// How far the reader has come.
    pub fn progress(&self) -> Progress {
        Progress {
            consumed: self.input.consumed(),
            total: self.total,
        }
    }

    /// The offset behind the last frame lent, in unpacked bytes.
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    /// How the file is packed, if it is.
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
