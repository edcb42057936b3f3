//! The output of `weir demux`: a pcapng file for each port.

use crate::error::CliError;
use crate::input::capture_file::make_folder;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weir_link::pcap::{Error, FrameRef, Interface, WriteError, Writer};

/// Total size of all files' write buffers, in bytes.
const BUFFERS_LEN: usize = 256 << 20;
/// Smallest and largest buffer of one file, in bytes.
const BUFFER_LEN_MIN: usize = 4 << 10;
const BUFFER_LEN_MAX: usize = 64 << 10;

/// The files that ports are written to.
pub(crate) struct PortFiles {
    ports: Vec<PortFile>,
}

struct PortFile {
    path: PathBuf,
    writer: Writer<File>,
    /// Writing failed, and the failure was printed.
    failed: bool,
}

/// The identity of a file, whatever its names: device and inode.
type Identity = (u64, u64);

/// A port's file before it is written to.
struct Opened {
    path: PathBuf,
    file: File,
    /// `None` unless it is a regular file, since only those can be read back.
    identity: Option<Identity>,
}

impl PortFiles {
    /// Creates `folder` if necessary and a file in it for each name; none may
    /// be one of the inputs or another port's file. No existing file is
    /// truncated before all files could be opened.
    pub(crate) fn create(
        folder: &Path,
        names: &[&str],
        inputs: &[PathBuf],
    ) -> Result<PortFiles, CliError> {
        allow_open_files(names.len())?;
        make_folder(folder)?;
        let files = open_all(folder, names)?;
        check_apart(&files, names, inputs)?;
        let buffer_len = (BUFFERS_LEN / names.len().max(1)).clamp(BUFFER_LEN_MIN, BUFFER_LEN_MAX);
        let begin = |Opened {
                         path,
                         file,
                         identity,
                     }: Opened| {
            let emptied = match identity {
                Some(_) => file.set_len(0),
                None => Ok(()),
            };
            emptied.map_err(|error| {
                CliError::run(format!("cannot empty {}: {error}", path.display()))
            })?;
            let writer = Writer::with_buffer(file, buffer_len)
                .map_err(|error| CliError::run(format!("{}: {error}", path.display())))?;
            Ok(PortFile {
                path,
                writer,
                failed: false,
            })
        };
        let ports = files.into_iter().map(begin).collect::<Result<_, _>>()?;
        Ok(PortFiles { ports })
    }

    /// Writes the first `snap_len` bytes of a frame to a port's file. The error
    /// is the complete message, with the file's name.
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

    /// Declares that the following frames come from another file.
    pub(crate) fn next_source(&mut self) {
        for port in &mut self.ports {
            port.writer.next_source();
        }
    }

    /// Completes every file; returns messages for those that failed. A file
    /// without frames describes `interface`, since readers need a link type.
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
    /// Truncates a file that could not be written to a valid capture of the
    /// frames that were written. Returns the message for `error`.
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

/// Opens a file in `folder` for each name, creates it if necessary, and
/// truncates none.
fn open_all(folder: &Path, names: &[&str]) -> Result<Vec<Opened>, CliError> {
    let open = |name: &&str| {
        let path = folder.join(format!("{name}.pcapng"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let opened = options.open(&path).and_then(|file| {
            let identity = identity(&file.metadata()?);
            Ok((file, identity))
        });
        match opened {
            Ok((file, identity)) => Ok(Opened {
                path,
                file,
                identity,
            }),
            Err(error) => Err(CliError::run(format!(
                "cannot create {}: {error}",
                path.display()
            ))),
        }
    };
    names.iter().map(open).collect()
}

/// Refuses a file that belongs to two ports or is an input: reading a file
/// while writing it would never end. The inputs are checked only now, since a
/// path may be both an input and a port's file that was just created.
fn check_apart(files: &[Opened], names: &[&str], inputs: &[PathBuf]) -> Result<(), CliError> {
    let read: HashSet<Identity> = inputs
        .iter()
        .filter_map(|path| input(path).transpose())
        .collect::<Result<_, CliError>>()?;
    let mut owners = HashMap::with_capacity(names.len());
    for (file, name) in files.iter().zip(names) {
        let Some(identity) = file.identity else {
            continue;
        };
        let path = file.path.display();
        if read.contains(&identity) {
            return Err(CliError::refused(format!(
                "{path} is being read: choose another folder with --write"
            )));
        }
        if let Some(other) = owners.insert(identity, *name) {
            return Err(CliError::refused(format!(
                "{path} is also the file of port `{other}`: remove that link, or choose another folder with --write"
            )));
        }
    }
    Ok(())
}

/// The identity of a capture that could be overwritten; `None` for others.
fn input(path: &Path) -> Result<Option<Identity>, CliError> {
    if path == Path::new("-") {
        let Ok(stat) = rustix::fs::fstat(std::io::stdin()) else {
            return Ok(None);
        };
        let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        return Ok(regular.then_some((stat.st_dev, stat.st_ino)));
    }
    match fs::metadata(path) {
        Ok(metadata) => Ok(identity(&metadata)),
        Err(source) => Err(CliError::run(Error::Open {
            path: path.to_owned(),
            source,
        })),
    }
}

fn identity(metadata: &Metadata) -> Option<Identity> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// Raises the soft limit on open files as far as necessary; fails before any
/// file is created if the hard limit is too low.
fn allow_open_files(files: usize) -> Result<(), CliError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// Descriptors of standard streams, inputs and signals, and those inherited
    /// from the caller.
    const OTHER_FDS: u64 = 16;
    let limit = getrlimit(Resource::Nofile);
    let wanted = files as u64 + OTHER_FDS;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if let Some(maximum) = limit.maximum.filter(|maximum| *maximum < wanted) {
        return Err(CliError::run(format!(
            "{files} ports need {wanted} open files, and this process may have {maximum}: raise the limit (ulimit -Hn), or write fewer ports"
        )));
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| CliError::run(format!("cannot have {wanted} open files: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_comes_with_the_ports_files_is_refused() {
        let folder = std::env::temp_dir().join(format!("weir-meet-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(folder.join("b.pcapng"), &link).unwrap();
        // Neither input exists before the port's file does.
        let outcomes = [("a", folder.join("a.pcapng")), ("b", link)]
            .map(|(name, input)| PortFiles::create(&folder, &[name], &[input]).err());
        fs::remove_dir_all(&folder).unwrap();
        for outcome in outcomes {
            let refusal = outcome.expect("refused").to_string();
            assert!(refusal.contains("is being read"), "{refusal}");
        }
    }
}
