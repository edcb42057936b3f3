//! An open port.
#![allow(unsafe_code)] // The promise that a ring is read by one reader.

use super::PortError;
use super::builder::Builder;
use super::connection::{Connection, unexpected_reply};
use super::local::Local;
use super::sigio::SigioThread;
use super::tx::TxPath;
use crate::Bytes;
use crate::compile::{CompileError, Source, with_hosts};
use crate::protocol::{ErrorKind, Event, InterfaceStatus, OpenPort, Opened, RequestKind, Response};
use rustix::process::Signal;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};
use weir_demux::kernel::record::{FLAG_CUT, FLAG_EGRESS, FLAG_GSO, FLAG_VLAN, Record};
use weir_filter::lang::Language;
use weir_link::gso::{Segments, segments};
use weir_ring::{Mode, Reader, Records, Woke};
use weir_wire::LinkType;

/// Largest number of frames of one [`Port::send_batch`].
const BATCH_FRAMES_MAX: usize = 1024;

/// Limit on the time to wait for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeout(Option<Duration>);

impl Timeout {
    /// Waits until there is a frame, or a signal interrupts.
    pub const NEVER: Timeout = Timeout(None);
    /// Does not wait.
    pub const NOW: Timeout = Timeout(Some(Duration::ZERO));

    /// Waits for at most this time.
    #[must_use]
    pub fn after(time: Duration) -> Timeout {
        Timeout(Some(time))
    }
}

/// The engine that opened the port.
#[derive(Debug)]
pub(super) enum PortBackend {
    Broker(Connection),
    Local(Local),
}

/// The counters of a port since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Number of frames put into the queue.
    pub delivered: u64,
    /// Number of frames lost because the queue was full.
    pub lost: u64,
    /// Number of frames that the interface dropped, by the kernel's count, for
    /// any receiver: for lack of room, and frames of protocols unknown to the
    /// host, which ports may have received nevertheless.
    pub interface_lost: u64,
    /// Number of frames sent by the egress path that checks; 0 for the
    /// superuser, who sends without it.
    pub sent: u64,
    /// Number of frames that the egress path dropped by the policy.
    pub refused: u64,
}

/// An open port; closed when it is dropped.
///
/// The kernel delivers frames directly, not through the broker, and continues
/// when the broker ends. Only requests to the broker then fail
/// ([`PortError::NoBroker`]), until another broker runs.
#[derive(Debug)]
pub struct Port {
    backing: PortBackend,
    asked: OpenPort,
    opened: Opened,
    reader: Reader,
    /// The egress path or socket, once it was requested.
    tx: Option<TxPath>,
    /// Raises a signal when frames arrive, if requested.
    alarm: Option<SigioThread>,
    /// A descriptor that keeps the port alive without the broker.
    lifetime: Option<OwnedFd>,
}

impl Port {
    /// Starts to build a port on an interface.
    pub fn on(interface: &str) -> Builder {
        Builder::on(interface)
    }

    pub(super) fn new(
        backing: PortBackend,
        asked: OpenPort,
        opened: Opened,
        fds: Vec<OwnedFd>,
    ) -> Result<Port, PortError> {
        let mut named: BTreeMap<&str, OwnedFd> =
            opened.fds.iter().map(String::as_str).zip(fds).collect();
        let ring = named.remove("ring").ok_or_else(unexpected_reply)?;
        // SAFETY: the opener of ports, the broker or this process, makes a ring
        // for each port and hands it out once; the broker is root's, or of the
        // user to whom root has given the socket's folder, and is trusted so
        // far. A process that takes a port's descriptor from it to read the
        // ring a second time makes the same promise, and breaks it.
        let reader = unsafe { Reader::open(ring)? };
        let held = named.remove("held");
        Ok(Port {
            backing,
            asked,
            opened,
            reader,
            tx: None,
            alarm: None,
            lifetime: held,
        })
    }

    /// The frames in the queue; waits for the first for at most `timeout`.
    /// Empty if the time is over, or a signal interrupted. The frames' space is
    /// freed when the port is used again.
    ///
    /// # Errors
    /// If the ring is damaged.
    pub fn recv_batch(&mut self, timeout: Timeout) -> Result<Frames<'_>, PortError> {
        self.recv_at_most(usize::MAX, timeout)
    }

    /// As [`recv_batch`](Self::recv_batch), with at most this many frames; the
    /// others stay in the queue.
    ///
    /// # Errors
    /// If the ring is damaged.
    pub fn recv_at_most(
        &mut self,
        frames: usize,
        timeout: Timeout,
    ) -> Result<Frames<'_>, PortError> {
        let time_max = timeout.0;
        let is_ready =
            time_max == Some(Duration::ZERO) || self.reader.wait(time_max)? == Woke::Ready;
        let booted = if self.asked.timestamps {
            booted()
        } else {
            Duration::ZERO
        };
        if let Some(alarm) = &self.alarm
            && self.reader.arm()
        {
            // The queue is empty; the next frame raises the signal.
            alarm.set();
        }
        let records = is_ready.then(|| self.reader.records_at_most(frames));
        let records = records.transpose()?;
        Ok(Frames { records, booted })
    }

    /// Waits until there are frames, for at most `timeout`, and leaves them in the
    /// queue. Returns whether there are some: not if the time is over, or a signal
    /// interrupted. The frames of the last batch are freed.
    ///
    /// # Errors
    /// If waiting fails.
    pub fn wait(&mut self, timeout: Timeout) -> Result<bool, PortError> {
        Ok(self.reader.wait(timeout.0)? == Woke::Ready)
    }

    /// Sets or clears the signal that this process gets when frames arrive; by
    /// default none. The signal is sent once, for the first frame, and again
    /// after [`recv_batch`](Self::recv_batch) has emptied the queue.
    ///
    /// The call starts a thread, which sleeps until then. The signal does not
    /// identify the port: check all ports with a signal.
    ///
    /// # Errors
    /// If no thread or descriptor is available.
    pub fn set_signal(&mut self, signal: Option<Signal>) -> Result<(), PortError> {
        let start = |signal| SigioThread::start(self.reader.as_fd(), signal);
        let alarm = signal.map(start).transpose();
        self.alarm = alarm.map_err(|source| PortError::System {
            what: "have a signal sent",
            source,
        })?;
        if let Some(alarm) = &self.alarm {
            self.reader.arm();
            alarm.set();
        }
        Ok(())
    }

    /// Prepares to wait for [`as_fd`](Self::as_fd) with `epoll` or `tokio`;
    /// returns `false` if frames are already there.
    pub fn arm(&mut self) -> bool {
        self.reader.arm()
    }

    /// Sets whether waiting minimises the delay instead of maximising the frame
    /// rate.
    pub fn set_latency_mode(&mut self, latency: bool) {
        let mode = if latency {
            Mode::Latency
        } else {
            Mode::Throughput
        };
        self.reader.set_mode(mode);
    }

    /// Sets how long waiting looks for frames before the thread sleeps, while they
    /// come within that time; zero by default. For a protocol whose peer answers
    /// at once.
    pub fn set_busy_poll(&mut self, time: Duration) {
        self.reader.set_busy_poll(time);
    }

    /// Replaces the port's filter by a pcap-filter(7) expression.
    ///
    /// From now on every frame that the new filter accepts is delivered, once
    /// even if the old filter accepts it too. The old filter ends within
    /// moments, when no frame can be in transit past both; frames that it has
    /// delivered until then are in the queue.
    ///
    /// # Errors
    /// If the filter is invalid or refused; then the old filter stays.
    pub fn set_filter(&mut self, text: &str) -> Result<(), PortError> {
        self.set_filter_in(Language::Expr, text)
    }

    /// Replaces the port's filter, in any of the filter languages.
    ///
    /// # Errors
    /// If the filter is invalid or refused; then the old filter stays.
    pub fn set_filter_in(&mut self, language: Language, text: &str) -> Result<(), PortError> {
        let mut filter = Source {
            text: text.to_owned(),
            language,
            ..Source::default()
        };
        let port = self.opened.port;
        loop {
            let ask = RequestKind::SetFilter {
                port,
                filter: filter.clone(),
            };
            match self.request(ask) {
                Err(PortError::Refused(refusal)) if refusal.kind == ErrorKind::Filter => {
                    // Few filters contain host names: they are resolved only if
                    // the filter does not compile without.
                    let found = with_hosts(filter.clone(), self.linktype());
                    if found.hosts == filter.hosts {
                        return Err(CompileError::from(refusal).into());
                    }
                    filter = found;
                }
                other => return other.map(drop),
            }
        }
    }

    /// Sends whole frames, in one system call; at most 1,024. Returns how many
    /// frames were sent, which are the first ones.
    ///
    /// The first call requests the means to send. For the superuser that is a
    /// packet socket. For another user, through a broker, it is an egress path
    /// that checks each frame: it drops and [counts](PortCounters::refused)
    /// frames that the policy does not allow.
    ///
    /// # Errors
    /// If sending is not granted, or the first frame could not be sent.
    pub fn send_batch(&mut self, frames: &[&[u8]]) -> Result<usize, PortError> {
        let frames = &frames[..frames.len().min(BATCH_FRAMES_MAX)];
        let mut way = match self.tx.take() {
            Some(way) => way,
            None => self.request_tx()?,
        };
        let mut sent = way.send(frames);
        // A broker that was started since may have other rules: then the path
        // is gone, and the port can request another one.
        if sent.as_ref().is_err_and(PortError::is_egress_path_gone) {
            way = self.request_tx()?;
            sent = way.send(frames);
        }
        self.tx = Some(way);
        sent
    }

    /// Requests the socket or egress path for sending.
    pub(super) fn request_tx(&mut self) -> Result<TxPath, PortError> {
        let port = self.opened.port;
        let (Response::TxReady(sends), fds) = self.request(RequestKind::Send { port })? else {
            return Err(unexpected_reply());
        };
        TxPath::new(&sends, fds)
    }

    /// Requests the means to send in advance.
    pub(super) fn begin_to_send(&mut self) -> Result<(), PortError> {
        self.tx = Some(self.request_tx()?);
        Ok(())
    }

    /// Whether this process has opened the port without a broker. A fan-out group then
    /// has ports of this process only.
    pub fn is_in_process(&self) -> bool {
        matches!(self.backing, PortBackend::Local(_))
    }

    /// The present properties of the port's interface.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn status(&mut self) -> Result<InterfaceStatus, PortError> {
        let port = self.opened.port;
        match self.request(RequestKind::PortInterface { port })?.0 {
            Response::Interface(status) => Ok(status),
            _ => Err(unexpected_reply()),
        }
    }

    /// The port's counters.
    ///
    /// # Errors
    /// If the broker is gone.
    pub fn counters(&mut self) -> Result<PortCounters, PortError> {
        let port = self.opened.port;
        let after = Some(port - 1);
        let (Response::Ports { ports, .. }, _) = self.request(RequestKind::Ports { after })? else {
            return Err(unexpected_reply());
        };
        let own = ports
            .iter()
            .find(|one| one.port == port)
            .ok_or_else(unexpected_reply)?;
        let dropped = self.status().map_or(0, |status| status.dropped);
        Ok(PortCounters {
            interface_lost: dropped.saturating_sub(self.opened.dropped),
            delivered: own.delivered,
            lost: own.lost,
            sent: own.sent,
            refused: own.refused,
        })
    }

    /// The events of the port's interface since the last call.
    ///
    /// # Errors
    /// If the broker is gone.
    pub fn events(&mut self) -> Result<Vec<Event>, PortError> {
        let port = self.opened.port;
        let connection = match &mut self.backing {
            PortBackend::Local(local) => return Ok(local.events()),
            PortBackend::Broker(connection) => connection,
        };
        match connection.events(port) {
            Err(ended @ PortError::Ended { .. }) => {
                self.resume(ended)?;
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// Sends a request; if the broker has ended, to its successor.
    fn request(&mut self, ask: RequestKind) -> Result<(Response, Vec<OwnedFd>), PortError> {
        let connection = match &mut self.backing {
            PortBackend::Local(local) => return local.request(ask),
            PortBackend::Broker(connection) => connection,
        };
        match connection.request(ask.clone()) {
            Err(ended @ PortError::Ended { .. }) => {
                self.resume(ended)?;
                match &mut self.backing {
                    PortBackend::Broker(connection) => connection.request(ask),
                    PortBackend::Local(local) => local.request(ask),
                }
            }
            other => other,
        }
    }

    /// Resumes the port with the present broker, after the former one has
    /// ended.
    fn resume(&mut self, ended: PortError) -> Result<(), PortError> {
        let port = self.opened.port;
        let secret = self.opened.secret.clone();
        let (PortBackend::Broker(connection), Some(secret)) = (&mut self.backing, secret) else {
            return Err(ended);
        };
        let resumed = connection.reconnected().and_then(|()| {
            match connection.request(RequestKind::Resume { port, secret }) {
                // The former broker is ending, and its socket was still there.
                Err(PortError::Ended { reason }) => Err(connection.no_broker(reason)),
                other => other.map(drop),
            }
        });
        match resumed {
            Err(PortError::NoBroker { .. }) if self.is_removed() => Err(PortError::Removed),
            other => other,
        }
    }

    /// Whether the port was removed from the broker's state, as far as this process can see without a
    /// broker: the file that keeps the port alive has no name any more.
    fn is_removed(&self) -> bool {
        let lifetime = self.lifetime.as_ref().map(rustix::fs::fstat);
        lifetime.is_some_and(|stat| stat.is_ok_and(|stat| stat.st_nlink == 0))
    }

    /// The link type of the frames.
    pub fn linktype(&self) -> LinkType {
        LinkType(self.opened.linktype)
    }

    /// The queue's size in bytes: the requested one, rounded up, or what the grant had
    /// room for.
    pub fn queue(&self) -> Bytes {
        self.opened.ring
    }

    /// The hook at which frames were demultiplexed when the port was opened.
    pub fn attached(&self) -> &str {
        &self.opened.attach
    }

    /// The filter of the grant that the port was opened by, which is ANDed to its
    /// own; `None` if the grant has none, and for the superuser.
    pub fn within(&self) -> Option<&str> {
        self.opened.within.as_deref()
    }

    /// Whether the port's filter when it was opened, with the grant's, is known to
    /// accept no frame at all.
    pub fn accepts_nothing(&self) -> bool {
        self.opened.accepts_nothing
    }

    /// The port's number, as `weir ports` shows it.
    pub fn number(&self) -> u32 {
        self.opened.port
    }
}

impl AsFd for Port {
    /// The descriptor that is readable when there are frames: see
    /// [`arm`](Port::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Received frames, in order of arrival.
#[derive(Debug)]
pub struct Frames<'a> {
    records: Option<Records<'a>>,
    /// The origin of the timestamps' clock, as time since 1970.
    booted: Duration,
}

impl Frames<'_> {
    /// Whether no frames remain.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let record = self.records.as_mut()?.next()?;
        // The kernel program writes whole records only.
        let record = Record::parse(record).ok()?;
        Some(Frame {
            record,
            booted: self.booted,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.records.as_ref().map_or(0, ExactSizeIterator::len);
        (len, Some(len))
    }
}

impl ExactSizeIterator for Frames<'_> {}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    record: Record<'a>,
    booted: Duration,
}

impl<'a> Frame<'a> {
    /// The captured bytes, up to the port's snap length.
    pub fn bytes(&self) -> &'a [u8] {
        self.record.bytes
    }

    /// The frame's length on the wire, in bytes.
    pub fn original_len(&self) -> u32 {
        self.record.wire_len
    }

    /// The receive time; `None` if the port has no timestamps.
    pub fn timestamp(&self) -> Option<SystemTime> {
        let ns = self.record.timestamp_ns;
        let since = self.booted + Duration::from_nanos(ns);
        (ns > 0).then(|| SystemTime::UNIX_EPOCH + since)
    }

    /// Number of frames that the port lost between the previous frame and this
    /// one.
    pub fn lost_before(&self) -> u32 {
        self.record.lost_before
    }

    /// The port's tag.
    pub fn tag(&self) -> u32 {
        self.record.tag
    }

    /// Whether the host sent the frame.
    pub fn is_outgoing(&self) -> bool {
        self.record.flags & FLAG_EGRESS != 0
    }

    /// The frames on the wire: the frame itself, or its segments if it is a GSO
    /// frame, each complete and with valid checksums; see
    /// [`segments`](weir_link::gso::segments).
    pub fn segments(&self) -> Segments<'a> {
        segments(&self.record)
    }

    /// The segment size in bytes of a GSO frame, which stands for several
    /// segments on the wire and may have partial checksums; `None` for another
    /// frame.
    pub fn segment_size(&self) -> Option<u16> {
        (self.record.flags & FLAG_GSO != 0).then_some(self.record.gso_size)
    }

    /// Whether the frame contains a VLAN tag that the device had stripped.
    pub fn had_vlan_tag(&self) -> bool {
        self.record.flags & FLAG_VLAN != 0
    }

    /// Whether the frame was longer than its captured bytes.
    pub fn is_cut(&self) -> bool {
        self.record.flags & FLAG_CUT != 0
    }
}

/// The origin of the timestamps' clock (time since boot), as time since 1970.
/// Read for each batch, since the time of day may be set.
fn booted() -> Duration {
    let nanoseconds = |time: Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
    let day = nanoseconds(clock_gettime(ClockId::Realtime));
    let since = nanoseconds(clock_gettime(ClockId::Boottime));
    Duration::from_nanos(u64::try_from(day - since).unwrap_or(0))
}

impl From<PortError> for io::Error {
    fn from(error: PortError) -> io::Error {
        io::Error::other(error)
    }
}
