//! A blocking byte stream.

use super::{LinkError, Node};
use std::time::{Duration, Instant};
use weir_pup::bsp::{Connection, Ended, Read};
use weir_pup::datagram::Port;
use weir_pup::ftp::{Piece, Reader};

/// How often a call checks whether it shall stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a stream fails.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The connection has ended.
    #[error("{0}")]
    Ended(Ended),
    /// The host has too many connections.
    #[error("too many connections")]
    Full,
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// A connection of a node that the caller's thread drives.
pub struct Stream<'a> {
    node: &'a mut Node,
    number: u32,
    stop: &'a dyn Fn() -> bool,
    next_poll: Instant,
}

impl<'a> Stream<'a> {
    /// Opens a connection; `stop` is asked several times a second.
    ///
    /// # Errors
    /// If the peer cannot be reached, or the caller asks to stop.
    pub fn open(
        node: &'a mut Node,
        remote: Port,
        stop: &'a dyn Fn() -> bool,
    ) -> Result<Stream<'a>, StreamError> {
        let now = node.now();
        let number = node.host.open(now, remote).ok_or(StreamError::Full)?;
        let mut stream = Stream {
            node,
            number,
            stop,
            next_poll: Instant::now(),
        };
        let opened = stream.until(|connection| connection.is_open().then_some(()));
        if matches!(opened, Err(StreamError::Ended(Ended::NoAnswer))) {
            stream.node.link().check_sent()?;
        }
        opened.map(|()| stream)
    }

    /// The stream on a connection that a peer has opened.
    pub fn of(node: &'a mut Node, number: u32, stop: &'a dyn Fn() -> bool) -> Stream<'a> {
        Stream {
            node,
            number,
            stop,
            next_poll: Instant::now(),
        }
    }

    /// The connection.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        self.node.connection(self.number)
    }

    /// Drives the node until `done` gives a value.
    ///
    /// # Errors
    /// If the connection ends before, or the caller asks to stop.
    pub fn until<T>(
        &mut self,
        mut done: impl FnMut(&mut Connection) -> Option<T>,
    ) -> Result<T, StreamError> {
        loop {
            let Some(connection) = self.node.connection(self.number) else {
                return Err(StreamError::Ended(Ended::Closed));
            };
            if let Some(value) = done(connection) {
                return Ok(value);
            }
            if let Some(reason) = connection.ended() {
                return Err(StreamError::Ended(reason));
            }
            self.node.turn(STOP_POLL_INTERVAL)?;
            let now = Instant::now();
            if now >= self.next_poll {
                self.next_poll = now + STOP_POLL_INTERVAL;
                if (self.stop)() {
                    return Err(StreamError::Stopped);
                }
            }
        }
    }

    /// Drives the node for at most this time.
    ///
    /// # Errors
    /// If the link fails.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), StreamError> {
        Ok(self.node.turn(timeout)?)
    }

    /// Queues all bytes, as there is room.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            let count = self.until(|connection| match connection.write(bytes) {
                0 => None,
                count => Some(count),
            })?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Queues a mark.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn mark(&mut self, mark: u8) -> Result<(), StreamError> {
        self.until(|connection| connection.write_mark(mark).then_some(()))
    }

    /// Waits until all that was written is acknowledged.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn flush(&mut self) -> Result<(), StreamError> {
        self.until(|connection| connection.is_flushed().then_some(()))
    }

    /// Waits for data, a mark, or the end.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Read, StreamError> {
        self.until(|connection| match connection.read(buffer) {
            Read::Nothing => None,
            read => Some(read),
        })
    }

    /// Sends an FTP command with its argument.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn command(&mut self, mark: u8, argument: &[u8]) -> Result<(), StreamError> {
        self.mark(mark)?;
        self.write_all(argument)?;
        self.mark(weir_pup::ftp::mark::END_OF_COMMAND)
    }

    /// Waits for the next piece of an FTP stream.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn piece(&mut self, reader: &mut Reader) -> Result<Piece, StreamError> {
        self.until(|connection| reader.poll(connection))
    }

    /// Ends the connection, and waits until the peer has agreed.
    ///
    /// # Errors
    /// If the peer aborts it, or does not answer.
    pub fn close(&mut self) -> Result<(), StreamError> {
        if let Some(connection) = self.node.connection(self.number) {
            connection.close();
        }
        let mut rest = [0; 4096];
        loop {
            let read = self.until(|connection| match connection.read(&mut rest) {
                Read::Nothing => connection.ended().map(Err),
                Read::End => Some(Err(connection.ended().unwrap_or(Ended::Closed))),
                Read::Data(_) | Read::Mark(_) => Some(Ok(())),
            })?;
            match read {
                Ok(()) => {}
                Err(Ended::Closed) => break,
                Err(other) => return Err(StreamError::Ended(other)),
            }
        }
        // The reply to the peer's reply.
        Ok(self.node.turn(Duration::ZERO)?)
    }
}
