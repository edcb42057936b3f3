//! An open port.
#![allow(unsafe_code)] // The promise that a ring is read by one reader.

use super::PortError;
use super::builder::Builder;
use super::connection::{Connection, unexpected_reply};
use super::local::Local;
use super::sigio::SigioThread;
use super::tx::TxPath;
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

/// Frames of one [`Port::send_batch`].
const BATCH_FRAMES_MAX: usize = 1024;

/// How long to wait for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeout(Option<Duration>);

impl Timeout {
    /// Until there is a frame, or a signal comes.
    pub const NEVER: Timeout = Timeout(None);
    /// Not at all.
    pub const NOW: Timeout = Timeout(Some(Duration::ZERO));

    /// As long as this at most.
    #[must_use]
    pub fn after(time: Duration) -> Timeout {
        Timeout(Some(time))
    }
}

/// Who opened the port for us.
#[derive(Debug)]
pub(super) enum PortBackend {
    Broker(Connection),
    Local(Local),
}

/// What was counted for a port since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Frames put into its queue.
    pub delivered: u64,
    /// Frames that its queue had no room for.
    pub lost: u64,
    /// Frames for anybody that the interface has dropped, as the kernel
    /// counts: for want of room, and those of protocols that the host does
    /// not know, though ports may have seen these.
    pub interface_lost: u64,
    /// Frames sent by a path that checks; 0 for the superuser, who needs
    /// none.
    pub sent: u64,
    /// Frames that were dropped there: the policy does not allow them.
    pub refused: u64,
}

/// An open port; closed when it is dropped.
///
/// Frames come from the kernel, not through the broker: when that ends they
/// go on coming. Only what is asked of it fails ([`PortError::NoBroker`]),
/// until there is another one.
#[derive(Debug)]
pub struct Port {
    backing: PortBackend,
    asked: OpenPort,
    opened: Opened,
    reader: Reader,
    /// What frames are sent by, once it was asked for.
    tx: Option<TxPath>,
    /// Raises a signal when frames come, if asked for.
    alarm: Option<SigioThread>,
    /// As long as it is open the port outlives the broker.
    _lifetime: Option<OwnedFd>,
}

impl Port {
    /// A port on an interface, to be stated further and opened.
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
        // SAFETY: whoever opens ports, the broker or this process, makes a ring
        // for each, and gives it once; the broker is the superuser's, and
        // trusted so far. Whoever takes a port's descriptor from it to read
        // the ring a second time makes the same promise, and breaks it.
        let reader = unsafe { Reader::open(ring)? };
        let held = named.remove("held");
        Ok(Port {
            backing,
            asked,
            opened,
            reader,
            tx: None,
            alarm: None,
            _lifetime: held,
        })
    }

    /// The frames that are there; waits for the first as long as `timeout`
    /// says. None when the time is over, or a signal came. Their space is
    /// given back when the port is used again.
    ///
    /// # Errors
    /// If the ring is damaged.
    pub fn recv_batch(&mut self, timeout: Timeout) -> Result<Frames<'_>, PortError> {
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
            // Nothing is left; if something comes now, the signal does too.
            alarm.set();
        }
        let records = is_ready.then(|| self.reader.records()).transpose()?;
        Ok(Frames { records, booted })
    }

    /// Has a signal sent to this process when frames come, or none any more;
    /// at first there is none. It comes once, for the first frame; and again
    /// when [`recv_batch`](Self::recv_batch) has found nothing left to read.
    ///
    /// It takes a thread, which sleeps until then. The signal says nothing of
    /// the port: look at all that asked for it.
    ///
    /// # Errors
    /// If the system gives no thread or descriptor.
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

    /// Before waiting elsewhere (`epoll`, `tokio`) for [`as_fd`](Self::as_fd)
    /// to be readable: `false` if there is something to read already.
    pub fn arm(&mut self) -> bool {
        self.reader.arm()
    }

    /// Whether to wait for the least delay, rather than for the most frames
    /// a second.
    pub fn set_latency_mode(&mut self, latency: bool) {
        let mode = if latency {
            Mode::Latency
        } else {
            Mode::Throughput
        };
        self.reader.set_mode(mode);
    }

    /// Gives the port another filter, a pcap-filter(7) expression.
    ///
    /// From now on every frame that it accepts is delivered, once also if the
    /// old one accepts it too. The old one ends within moments, when no frame
    /// can be on its way past both; what it has delivered until then is in
    /// the queue.
    ///
    /// # Errors
    /// If it is wrong or refused; then the old one stays.
    pub fn set_filter(&mut self, text: &str) -> Result<(), PortError> {
        self.set_filter_in(Language::Expr, text)
    }

    /// Gives the port another filter, in any of the languages.
    ///
    /// # Errors
    /// If it is wrong or refused; then the old one stays.
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
                    // Few filters name hosts: they are looked up when one
                    // does not do without.
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

    /// Sends whole frames, and says how many were sent, which are the first
    /// ones: 1,024 at most, in one system call.
    ///
    /// The first time, what is sent by is asked for. As the superuser it is a
    /// packet socket; through a broker, for another user, it is a path that
    /// checks each frame: what the policy does not allow is dropped there and
    /// [counted](PortCounters::refused).
    ///
    /// # Errors
    /// If sending is not granted, or not even the first could be sent.
    pub fn send_batch(&mut self, frames: &[&[u8]]) -> Result<usize, PortError> {
        let frames = &frames[..frames.len().min(BATCH_FRAMES_MAX)];
        let mut way = match self.tx.take() {
            Some(way) => way,
            None => self.request_tx()?,
        };
        let mut sent = way.send(frames);
        // A broker that has come since may grant other rules: then the path
        // is gone, and there is another one for the asking.
        if sent.as_ref().is_err_and(PortError::is_egress_path_gone) {
            way = self.request_tx()?;
            sent = way.send(frames);
        }
        self.tx = Some(way);
        sent
    }

    /// Asks for what frames are sent by.
    pub(super) fn request_tx(&mut self) -> Result<TxPath, PortError> {
        let port = self.opened.port;
        let (Response::TxReady(sends), fds) = self.request(RequestKind::Send { port })? else {
            return Err(unexpected_reply());
        };
        TxPath::new(&sends, fds)
    }

    /// Asks for it before it is needed.
    pub(super) fn begin_to_send(&mut self) -> Result<(), PortError> {
        self.tx = Some(self.request_tx()?);
        Ok(())
    }

    /// What the port's interface is now.
    ///
    /// # Errors
    /// If it is gone.
    pub fn status(&mut self) -> Result<InterfaceStatus, PortError> {
        let port = self.opened.port;
        match self.request(RequestKind::PortInterface { port })?.0 {
            Response::Interface(status) => Ok(status),
            _ => Err(unexpected_reply()),
        }
    }

    /// What was counted for the port.
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

    /// What has happened to the port's interface since it was asked last.
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

    /// Asks; when the broker has gone, the one that has come since.
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

    /// Takes the port up again with the broker that there is now, since the
    /// one before has ended.
    fn resume(&mut self, ended: PortError) -> Result<(), PortError> {
        let port = self.opened.port;
        let secret = self.opened.secret.clone();
        let (PortBackend::Broker(connection), Some(secret)) = (&mut self.backing, secret) else {
            return Err(ended);
        };
        connection.reconnected()?;
        match connection.request(RequestKind::Resume { port, secret }) {
            // The one before, on its way out, whose socket was still there.
            Err(PortError::Ended { reason }) => Err(connection.no_broker(reason)),
            other => other.map(drop),
        }
    }

    /// How the frames begin.
    pub fn linktype(&self) -> LinkType {
        LinkType(self.opened.linktype)
    }

    /// Where frames were divided when the port was opened.
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
    /// Readable when there are frames: see [`arm`](Port::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Frames, in the order they came.
#[derive(Debug)]
pub struct Frames<'a> {
    records: Option<Records<'a>>,
    /// When the clock of timestamps began, since 1970.
    booted: Duration,
}

impl Frames<'_> {
    /// Whether there are none (left).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let record = self.records.as_mut()?.next()?;
        // The kernel half writes whole records.
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

/// A frame that came.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    record: Record<'a>,
    booted: Duration,
}

impl<'a> Frame<'a> {
    /// Its bytes, as many as were asked for.
    pub fn bytes(&self) -> &'a [u8] {
        self.record.bytes
    }

    /// Its length, whatever was asked for.
    pub fn original_len(&self) -> u32 {
        self.record.wire_len
    }

    /// When it came, if the port has timestamps.
    pub fn timestamp(&self) -> Option<SystemTime> {
        let ns = self.record.timestamp_ns;
        let since = self.booted + Duration::from_nanos(ns);
        (ns > 0).then(|| SystemTime::UNIX_EPOCH + since)
    }

    /// Frames that the port lost between the one before and this.
    pub fn lost_before(&self) -> u32 {
        self.record.lost_before
    }

    /// The port's tag.
    pub fn tag(&self) -> u32 {
        self.record.tag
    }

    /// Whether it leaves the host.
    pub fn is_outgoing(&self) -> bool {
        self.record.flags & FLAG_EGRESS != 0
    }

    /// The frames that go over the wire for it: itself, or its segments if it
    /// stands for several, each whole and with right checksums; see
    /// [`segments`](weir_link::gso::segments).
    pub fn segments(&self) -> Segments<'a> {
        segments(&self.record)
    }

    /// Whether it stands for several segments on the wire, of so many bytes
    /// each; its checksums may be partial.
    pub fn segment_size(&self) -> Option<u16> {
        (self.record.flags & FLAG_GSO != 0).then_some(self.record.gso_size)
    }

    /// Whether a VLAN tag that the device had taken out was put back.
    pub fn had_vlan_tag(&self) -> bool {
        self.record.flags & FLAG_VLAN != 0
    }

    /// Whether it has more bytes than were asked for.
    pub fn is_cut(&self) -> bool {
        self.record.flags & FLAG_CUT != 0
    }
}

/// When the clock of timestamps (time since boot) began, since 1970: asked
/// anew for each batch, since the time of day may be set.
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
