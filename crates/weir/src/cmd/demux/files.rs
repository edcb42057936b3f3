//! One pcapng file a port.

use crate::capture::make_folder;
use crate::failure::Failure;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weir_link::pcap::{FrameRef, Interface, WriteError, Writer};

/// What all files together gather before they write, in bytes.
const BUFFERS_LEN: usize = 256 << 20;
/// What one file gathers: at least so many bytes, and at most.
const BUFFER_LEN_MIN: usize = 4 << 10;
const BUFFER_LEN_MAX: usize = 64 << 10;

/// The files that ports are written to.
pub(crate) struct PortFiles {
    ports: Vec<PortFile>,
}

struct PortFile {
    path: PathBuf,
    writer: Writer<File>,
    /// Writing failed, which has been said.
    failed: bool,
}

/// A file, whatever its names: device and inode.
type Identity = (u64, u64);

impl PortFiles {
    /// Makes `folder` if need be and a file in it for each name; none may be
    /// one of the inputs or another port's. No file that is there is emptied
    /// before all could be opened.
    pub(crate) fn create(
        folder: &Path,
        names: &[&str],
        inputs: &[PathBuf],
    ) -> Result<PortFiles, Failure> {
        allow_open_files(names.len())?;
        make_folder(folder)?;
        let inputs: HashSet<Identity> = inputs.iter().filter_map(|path| input(path)).collect();
        let mut owners = HashMap::with_capacity(names.len());
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            let path = folder.join(format!("{name}.pcapng"));
            let trouble = |why: &dyn std::fmt::Display| {
                Failure::run(format!("cannot create {}: {why}", path.display()))
            };
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false);
            let file = options.open(&path).map_err(|error| trouble(&error))?;
            let metadata = file.metadata().map_err(|error| trouble(&error))?;
            if let Some(identity) = identity(&metadata) {
                if inputs.contains(&identity) {
                    return Err(Failure::refused(format!(
                        "{} is being read: choose another folder with --write",
                        path.display()
                    )));
                }
                if let Some(other) = owners.insert(identity, *name) {
                    return Err(Failure::refused(format!(
                        "{} is also the file of port `{other}`: remove that link, or choose another folder with --write",
                        path.display()
                    )));
                }
            }
            files.push((path, file, metadata.is_file()));
        }
        let buffer_len = (BUFFERS_LEN / names.len().max(1)).clamp(BUFFER_LEN_MIN, BUFFER_LEN_MAX);
        let begin = |(path, file, regular): (PathBuf, File, bool)| {
            let emptied = if regular { file.set_len(0) } else { Ok(()) };
            emptied.map_err(|error| {
                Failure::run(format!("cannot empty {}: {error}", path.display()))
            })?;
            let writer = Writer::with_buffer(file, buffer_len)
                .map_err(|error| Failure::run(format!("{}: {error}", path.display())))?;
            Ok(PortFile {
                path,
                writer,
                failed: false,
            })
        };
        let ports = files.into_iter().map(begin).collect::<Result<_, _>>()?;
        Ok(PortFiles { ports })
    }

    /// Writes the first `snap_len` bytes of a frame to a port's file. The
    /// error is the whole message, with the file's name.
    #[inline]
    pub(crate) fn write(
        &mut self,
        port: usize,
        frame: &FrameRef<'_>,
        snap_len: usize,
    ) -> Result<(), String> {
        let file = &mut self.ports[port];
        let kept = frame.bytes.len().min(snap_len);
        let written = file.writer.write(&FrameRef {
            bytes: &frame.bytes[..kept],
            ..*frame
        });
        written.map_err(|error| {
            file.failed = true;
            file.cut(&error)
        })
    }

    /// The frames that follow come from another file.
    pub(crate) fn next_source(&mut self) {
        for port in &mut self.ports {
            port.writer.next_source();
        }
    }

    /// Completes every file, and says which could not be. One that got no
    /// frame describes `interface`, since readers ask for a link type.
    pub(crate) fn finish(self, interface: &Interface) -> Vec<String> {
        let mut troubles = Vec::new();
        for mut port in self.ports.into_iter().filter(|port| !port.failed) {
            let described = if port.writer.is_empty() {
                port.writer.describe(interface).map(|_| ())
            } else {
                Ok(())
            };
            if let Err(error) = described.and_then(|()| port.writer.flush()) {
                troubles.push(port.cut(&error));
            }
        }
        troubles
    }
}

impl PortFile {
    /// Makes a file that could not be written on a whole capture again, of the
    /// frames that arrived. What to say of `error`.
    fn cut(&self, error: &WriteError) -> String {
        let file = self.writer.get_ref();
        let kept = match error {
            WriteError::Write { whole, .. } => file.set_len(*whole).is_ok(),
            _ => false,
        };
        let then = if kept { "; it ends there" } else { "" };
        format!("{}: {error}{then}", self.path.display())
    }
}

/// Which file a capture is, if it is one that could be written over.
fn input(path: &Path) -> Option<Identity> {
    if path == Path::new("-") {
        let stat = rustix::fs::fstat(std::io::stdin()).ok()?;
        let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        return regular.then_some((stat.st_dev, stat.st_ino));
    }
    identity(&fs::metadata(path).ok()?)
}

fn identity(metadata: &Metadata) -> Option<Identity> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// Raises the soft limit on open files as far as is needed; refuses where it
/// may not be raised so far, before any file is made.
fn allow_open_files(files: usize) -> Result<(), Failure> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// Standard streams, inputs, signals, and what the caller left open.
    const OTHERS: u64 = 16;
    let limit = getrlimit(Resource::Nofile);
    let wanted = files as u64 + OTHERS;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if let Some(maximum) = limit.maximum.filter(|maximum| *maximum < wanted) {
        return Err(Failure::run(format!(
            "{files} ports need {wanted} open files, and this process may have {maximum}: raise the limit (ulimit -Hn), or write fewer ports"
        )));
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| Failure::run(format!("cannot have {wanted} open files: {error}")))
}
