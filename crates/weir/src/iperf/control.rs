//! The control connection, on which both sides exchange their states.

use super::{IO_TIMEOUT, JSON_LEN_MAX, unexpected};
use crate::signals::ShutdownSignal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};
use weir_socket::TcpStream;

/// How often waits check for a signal.
pub(super) const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The shortest valid time-out; 0 is not valid.
const SHORTEST: Duration = Duration::from_micros(1);

/// Fails if a signal has arrived.
pub(super) fn stopped(stop: &ShutdownSignal) -> io::Result<()> {
    if stop.is_requested() {
        Err(unexpected("asked to stop"))
    } else {
        Ok(())
    }
}

/// The control connection. Waits on it end with a signal, when the peer
/// disconnects, and after a time limit.
pub(super) struct Control<'a> {
    stream: &'a TcpStream,
    stop: &'a ShutdownSignal,
    /// The peer's role, for messages.
    peer: &'static str,
}

impl<'a> Control<'a> {
    pub(super) fn new(
        stream: &'a TcpStream,
        other: &'static str,
        stop: &'a ShutdownSignal,
    ) -> io::Result<Control<'a>> {
        stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(Control {
            stream,
            stop,
            peer: other,
        })
    }

    /// Reads available bytes, waiting briefly; `None` if there are none.
    fn poll_bytes(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        stopped(self.stop)?;
        match { self.stream }.read(out) {
            Ok(0) => Err(unexpected(format!(
                "{} has closed the connection",
                self.peer
            ))),
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fills `out` within the time limit, in any number of reads.
    pub(super) fn read(&self, mut out: &mut [u8]) -> io::Result<()> {
        let until = Instant::now() + IO_TIMEOUT;
        while !out.is_empty() {
            if let Some(count) = self.poll_bytes(out)? {
                out = &mut out[count..];
            }
            if !out.is_empty() && Instant::now() >= until {
                let (other, seconds) = (self.peer, IO_TIMEOUT.as_secs());
                return Err(unexpected(format!(
                    "{other} has not answered within {seconds} s"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> io::Result<u8> {
        let mut state = [0];
        self.read(&mut state)?;
        Ok(state[0])
    }

    /// The peer's next state; `None` if it does not arrive within this time.
    pub(super) fn state_within(&self, time: Duration) -> io::Result<Option<u8>> {
        let mut state = [0];
        self.stream.set_read_timeout(Some(time.max(SHORTEST)))?;
        let looked = self.poll_bytes(&mut state);
        self.stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
        Ok(looked?.map(|_| state[0]))
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        { self.stream }.write_all(bytes)
    }

    pub(super) fn write_json(&self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(value)?;
        let len = u32::try_from(text.len()).map_err(|_| unexpected("too much JSON"))?;
        self.write(&[&len.to_be_bytes()[..], &text].concat())
    }

    pub(super) fn read_json<T: DeserializeOwned>(&self) -> io::Result<T> {
        let mut len = [0; 4];
        self.read(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > JSON_LEN_MAX {
            return Err(unexpected(format!("{len} bytes of JSON are too many")));
        }
        let mut text = vec![0; len];
        self.read(&mut text)?;
        serde_json::from_slice(&text).map_err(|error| unexpected(format!("bad JSON: {error}")))
    }
}
