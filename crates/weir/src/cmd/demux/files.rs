//! One pcapng file a port.

use crate::failure::Failure;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use weir_link::pcap::{FrameRef, Writer};

/// The files that ports are written to.
pub(crate) struct PortFiles {
    ports: Vec<PortFile>,
}

struct PortFile {
    path: PathBuf,
    writer: Writer<File>,
}

impl PortFiles {
    /// Makes `folder` if need be and a file in it for each name; none may be
    /// one of the inputs.
    pub(crate) fn create(
        folder: &Path,
        names: &[&str],
        inputs: &[PathBuf],
    ) -> Result<PortFiles, Failure> {
        fs::create_dir_all(folder)
            .map_err(|error| Failure::run(format!("cannot make {}: {error}", folder.display())))?;
        allow_open_files(names.len());
        let inputs: Vec<PathBuf> = inputs
            .iter()
            .filter_map(|path| path.canonicalize().ok())
            .collect();
        let mut ports = Vec::with_capacity(names.len());
        for name in names {
            let path = folder.join(format!("{name}.pcapng"));
            let same = path.canonicalize().is_ok_and(|path| inputs.contains(&path));
            if same {
                return Err(Failure::refused(format!(
                    "{} is being read: choose another folder with --write",
                    path.display()
                )));
            }
            let writer = Writer::create(&path).map_err(Failure::run)?;
            ports.push(PortFile { path, writer });
        }
        Ok(PortFiles { ports })
    }

    /// Writes the first `snap_len` bytes of a frame to a port's file.
    #[inline]
    pub(crate) fn write(
        &mut self,
        port: usize,
        frame: &FrameRef<'_>,
        snap_len: usize,
    ) -> Result<(), Failure> {
        let file = &mut self.ports[port];
        let kept = frame.bytes.len().min(snap_len);
        let written = file.writer.write(&FrameRef {
            bytes: &frame.bytes[..kept],
            ..*frame
        });
        written.map_err(|error| Failure::run(format!("{}: {error}", file.path.display())))
    }

    /// The frames that follow come from another file.
    pub(crate) fn next_source(&mut self) {
        for port in &mut self.ports {
            port.writer.next_source();
        }
    }

    /// Completes every file, and says of the first that could not be.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for PortFile { path, writer } in self.ports {
            if let Err(error) = writer.finish() {
                let failure = Failure::run(format!("{}: {error}", path.display()));
                outcome = outcome.and(Err(failure));
            }
        }
        outcome
    }
}

/// Raises the soft limit on open files as far as is needed and allowed; where
/// it is not, opening says so.
fn allow_open_files(files: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let wanted = files as u64 + OTHERS;
    if limit.current.is_some_and(|current| current < wanted) {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let raised = Rlimit {
            current: Some(current),
            maximum: limit.maximum,
        };
        let _ = setrlimit(Resource::Nofile, raised);
    }
}
