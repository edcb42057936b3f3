//! The options that say which frames a monitor sees.

use super::input::{Input, Live, PortOptions, Replay, Speed};
use super::session::Session;
use crate::cmd::listen::ANY;
use crate::error::{CliError, say};
use crate::signals::ShutdownSignal;
use std::path::PathBuf;
use weir_broker::Bytes;
use weir_broker::protocol::Attach;

/// Interface or file, filter, port, and what is kept. The comments are help texts.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The interface; `any`, the default, is every one that is up now and that the policy grants
    #[arg(value_name = "IF")]
    pub(crate) first: Option<String>,

    /// A pcap-filter(7) expression; without one, all frames
    #[arg(value_name = "EXPR")]
    pub(crate) filter: Vec<String>,

    /// Read frames from a capture file (pcap or pcapng, compressed or not) instead of an interface;
    /// `-` is standard input. All arguments are then the filter
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["queue", "socket", "attach"])]
    pub(crate) read: Option<PathBuf>,

    /// How fast the file is replayed: a number, such as 1 or 10x, or `max`
    #[arg(long, value_name = "TIMES", requires = "read", default_value = "max")]
    pub(crate) speed: Speed,

    /// A TLS key log (SSLKEYLOGFILE): recorded and saved files contain its lines, so that readers
    /// decrypt the connections
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_keys: Option<PathBuf>,

    /// Keep the last frames, up to about this many bytes, for the list of frames and to save
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub(crate) keep: Bytes,

    /// Receive at most this many bytes of a frame; 0 means all
    #[arg(
        short = 's',
        long = "snapshot-length",
        value_name = "BYTES",
        default_value_t = 0
    )]
    snap_len: u32,

    /// Size of the port's queue, such as 65536, 64K or 8MiB; by default 8MiB, or
    /// less if the policy's grant has no room for it
    #[arg(long, value_name = "BYTES")]
    queue: Option<Bytes>,

    /// The broker's socket; then the port is opened through the broker only
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Hook in the kernel: auto, tc, xdp-generic or xdp-native
    #[arg(long, value_name = "MODE", default_value_t)]
    attach: Attach,
}

impl Options {
    fn snap_len(&self) -> Option<u32> {
        (self.snap_len > 0).then_some(self.snap_len)
    }

    fn expression(&self) -> String {
        let first = self.first.iter().filter(|_| self.read.is_some());
        let words: Vec<&str> = first.chain(&self.filter).map(String::as_str).collect();
        words.join(" ")
    }

    /// An empty session that keeps `keep` bytes of frames.
    pub(crate) fn session(&self, keep: usize) -> Session {
        Session::new(keep, self.snap_len(), self.tls_keys.as_deref())
    }

    /// Refuses a log of keys that cannot be read. One that is not there yet is said: browsers make
    /// it with their first connection.
    fn check_tls_keys(&self) -> Result<(), CliError> {
        let Some(path) = &self.tls_keys else {
            return Ok(());
        };
        let name = path.display();
        if path.is_dir() {
            let why =
                format!("--tls-keys {name}: a folder; give the file that SSLKEYLOGFILE names");
            return Err(CliError::refused(why));
        }
        match rustix::fs::access(path, rustix::fs::Access::READ_OK) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOENT) => say(&format!(
                "weir: --tls-keys {name}: no such file yet; its keys are recorded once it is there"
            )),
            Err(error) => {
                let error = std::io::Error::from(error);
                return Err(CliError::run(format!(
                    "--tls-keys {name}: cannot read it: {error}"
                )));
            }
        }
        Ok(())
    }

    /// Opens the file or the ports.
    pub(crate) fn input(&self, stop: &ShutdownSignal) -> Result<Input, CliError> {
        self.check_tls_keys()?;
        let filter = self.expression();
        if let Some(path) = &self.read {
            let replay = Replay::open(path, &filter, self.speed, self.snap_len(), stop)?;
            return Ok(Input::File(Box::new(replay)));
        }
        let options = PortOptions {
            interface: self.first.as_deref().unwrap_or(ANY),
            filter: &filter,
            socket: self.socket.as_deref(),
            queue: self.queue,
            snap_len: self.snap_len(),
            attach: self.attach,
        };
        Ok(Input::Live(Box::new(Live::open(&options)?)))
    }
}
