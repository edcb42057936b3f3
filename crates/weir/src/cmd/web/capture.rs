//! A capture of the kept frames that a browser gets.

use crate::monitor::record::KeyLog;
use crate::monitor::session::Session;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use weir_link::pcap::{FrameRef, WriteError, Writer};

/// Time of a slice.
const SLICE_TIME_MAX: Duration = Duration::from_millis(5);
/// Frames between two looks at the clock.
const FRAMES_PER_CLOCK_READ: usize = 64;
/// Bytes of a TLS key log that go into a capture, at most: its last ones.
const KEYS_LEN_MAX: u64 = 16 << 20;

/// Who waits for a capture.
pub(super) type Waiting = oneshot::Sender<Result<Vec<u8>, String>>;

/// A pcapng file that is made in memory, a slice of time after the other: frames that come are taken
/// in between.
pub(super) struct Making {
    waiting: Waiting,
    file: Writer<Vec<u8>>,
    keys: Option<KeyLog>,
    /// The next frame, and the first one that came after it was asked for.
    next: u64,
    end: u64,
}

impl Making {
    /// Begins a capture of the frames that are kept now; `None` after a failure, which the
    /// waiting client gets.
    pub(super) fn begin(session: &Session, waiting: Waiting) -> Option<Making> {
        match Writer::new(Vec::new()) {
            Ok(file) => Some(Making {
                waiting,
                file,
                keys: session
                    .tls_keys()
                    .map(|path| KeyLog::last(path, KEYS_LEN_MAX)),
                next: session.store.first(),
                end: session.store.end(),
            }),
            Err(error) => {
                let _ = waiting.send(Err(error.to_string()));
                None
            }
        }
    }

    /// Continues for a slice of time; `None` once the waiting client has the capture or an error,
    /// or is gone.
    pub(super) fn slice(mut self, session: &Session) -> Option<Making> {
        if self.waiting.is_closed() {
            return None;
        }
        let made = match self.write(session) {
            Ok(false) => return Some(self),
            Ok(true) => self.file.finish(),
            Err(error) => Err(error),
        };
        let _ = self.waiting.send(made.map_err(|error| error.to_string()));
        None
    }

    /// Writes for a slice of time; returns whether all is written. Frames that the store has given
    /// up meanwhile are left out.
    fn write(&mut self, session: &Session) -> Result<bool, WriteError> {
        let began = Instant::now();
        if let Some(keys) = &mut self.keys {
            let lines = keys.next();
            if !lines.is_empty() {
                self.file.tls_keys(&lines)?;
                return Ok(false);
            }
            self.keys = None;
        }
        let frames = session.store.from(self.next);
        let frames = frames.take_while(|kept| kept.number < self.end);
        for (count, kept) in frames.enumerate() {
            if count % FRAMES_PER_CLOCK_READ == FRAMES_PER_CLOCK_READ - 1
                && began.elapsed() > SLICE_TIME_MAX
            {
                return Ok(false);
            }
            self.next = kept.number + 1;
            let Some(interface) = session.interfaces().get(kept.meta.interface as usize) else {
                continue;
            };
            self.file.write(&FrameRef {
                bytes: kept.bytes,
                wire_len: kept.meta.len,
                time_ns: kept.meta.time_ns,
                interface_index: kept.meta.interface,
                interface,
            })?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_link::pcap::Reader;
    use weir_monitor::Meta;
    use weir_wire::LinkType;

    fn frame(session: &mut Session, number: u32) {
        let meta = Meta {
            len: 1000,
            time_ns: Some(number.into()),
            linktype: LinkType::EN10MB,
            interface: session.interface("eth0", LinkType::EN10MB),
            is_outgoing: None,
            lost_before: 0,
        };
        let mut bytes = [0; 1000];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        session.frame(&bytes, meta);
    }

    /// Frames come between the slices: those that were kept when it was asked for are in it once
    /// each, but for what the store gave up.
    #[test]
    fn a_capture_in_slices_has_what_was_kept_when_it_began() {
        const FRAMES: u32 = 50_000;
        let mut session = Session::new(64 << 20, None, None);
        (0..FRAMES).for_each(|number| frame(&mut session, number));
        let (waiting, mut made) = oneshot::channel();
        let mut making = Making::begin(&session, waiting);
        let mut later = FRAMES;
        while let Some(one) = making.take() {
            making = one.slice(&session);
            frame(&mut session, later);
            later += 1;
        }
        let bytes = made.try_recv().unwrap().unwrap();
        let mut reader = Reader::new(std::io::Cursor::new(bytes)).unwrap();
        let mut expected = 0;
        while let Some(frame) = reader.next_frame().unwrap() {
            let number = u32::from_be_bytes(frame.bytes[..4].try_into().unwrap());
            assert_eq!(number, expected);
            expected += 1;
        }
        assert_eq!(expected, FRAMES);
    }

    #[test]
    fn a_capture_for_a_browser_that_is_gone_ends() {
        let mut session = Session::new(1 << 20, None, None);
        frame(&mut session, 0);
        let (waiting, made) = oneshot::channel();
        let making = Making::begin(&session, waiting).unwrap();
        drop(made);
        assert!(making.slice(&session).is_none());
    }
}
