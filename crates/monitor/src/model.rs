//! The counts of a monitor.

use crate::digest::{Digest, Flow, Host};
use crate::history::History;
use crate::protocol::Protocol;
use crate::table::Table;
use crate::tree;
use weir_wire::LinkType;

/// Largest numbers of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of hosts.
    pub talkers: usize,
    /// Of conversations.
    pub conversations: usize,
    /// Of protocols.
    pub protocols: usize,
}

impl Default for Limits {
    /// A hundred thousand hosts and conversations: some 40 MB.
    fn default() -> Limits {
        Limits {
            talkers: 100_000,
            conversations: 100_000,
            protocols: 4_096,
        }
    }
}

/// A frame, as a port or a file gives it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Bytes on the wire.
    pub len: u32,
    /// Time of capture, in nanoseconds since 1970.
    pub time_ns: Option<i64>,
    /// The link-layer header type.
    pub linktype: LinkType,
    /// Number of frames that were lost since the frame before.
    pub lost_before: u32,
}

/// The sums, as `weir listen` prints them at its end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Number of frames.
    pub frames: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Number of frames that were lost for lack of room in the port's queue.
    pub lost: u64,
}

/// Everything that is counted.
#[derive(Debug)]
pub struct Model {
    totals: Totals,
    /// Losses by the port's own counter, which may be ahead of the losses that frames carry.
    lost_by_port: u64,
    span_ns: Option<(i64, i64)>,
    talkers: Table<Host>,
    conversations: Table<Flow>,
    protocols: Table<Protocol>,
    history: History,
}

impl Model {
    /// An empty model; the seed keeps peers from choosing addresses that collide in the tables.
    pub fn new(limits: Limits, seed: [u64; 2]) -> Model {
        Model {
            totals: Totals::default(),
            lost_by_port: 0,
            span_ns: None,
            talkers: Table::new(limits.talkers, seed),
            conversations: Table::new(limits.conversations, seed),
            protocols: Table::new(limits.protocols, seed),
            history: History::default(),
        }
    }

    /// Counts a frame.
    pub fn frame(&mut self, frame: &Seen<'_>) {
        let bytes = u64::from(frame.len);
        let time_ns = frame.time_ns.unwrap_or(0);
        self.totals.frames += 1;
        self.totals.bytes += bytes;
        self.totals.lost += u64::from(frame.lost_before);
        if let Some(time_ns) = frame.time_ns {
            let (first, last) = self.span_ns.unwrap_or((time_ns, time_ns));
            self.span_ns = Some((first.min(time_ns), last.max(time_ns)));
        }
        self.history.add(time_ns, bytes);
        let digest = Digest::of(frame.bytes, frame.linktype);
        match self.talkers.row(digest.src, time_ns) {
            Some(row) => row.out.add(bytes),
            None => self.talkers.overflow_add(bytes),
        }
        match self.talkers.row(digest.dst, time_ns) {
            Some(row) => row.back.add(bytes),
            None => self.talkers.overflow_add(bytes),
        }
        match self.protocols.row(Protocol::of(&digest), time_ns) {
            Some(row) => row.out.add(bytes),
            None => self.protocols.overflow_add(bytes),
        }
        let (flow, is_forward) = digest.flow();
        match self.conversations.row(flow, time_ns) {
            Some(row) if is_forward => row.out.add(bytes),
            Some(row) => row.back.add(bytes),
            None => self.conversations.overflow_add(bytes),
        }
        let (start, end) = digest.payload;
        if digest.tcp.is_some()
            && end > start
            && let Some(name) = tree::server_name(&frame.bytes[start..end])
            && let Some(row) = self.conversations.row(flow, time_ns)
            && row.note.is_none()
        {
            row.note = Some(name.into());
        }
    }

    /// Sets the number of lost frames by the ports' own counters: the last losses are in no
    /// frame until one follows.
    pub fn set_lost_by_port(&mut self, lost: u64) {
        self.lost_by_port = lost;
    }

    /// Sets all rates to those since the last tick, `seconds` ago.
    pub fn tick(&mut self, seconds: f64) {
        self.talkers.tick(seconds);
        self.conversations.tick(seconds);
        self.protocols.tick(seconds);
    }

    /// The sums.
    pub fn totals(&self) -> Totals {
        Totals {
            lost: self.totals.lost.max(self.lost_by_port),
            ..self.totals
        }
    }

    /// The times of the earliest and the latest frame, in nanoseconds since 1970.
    pub fn span_ns(&self) -> Option<(i64, i64)> {
        self.span_ns
    }

    /// Seconds between the earliest and the latest frame.
    pub fn span_s(&self) -> f64 {
        let (first, last) = self.span_ns.unwrap_or_default();
        last.saturating_sub(first) as f64 / 1e9
    }

    /// The hosts. Each frame is counted at its sender and at its receiver.
    pub fn talkers(&self) -> &Table<Host> {
        &self.talkers
    }

    /// The conversations. Each frame is counted once.
    pub fn conversations(&self) -> &Table<Flow> {
        &self.conversations
    }

    /// The protocols. Each frame is counted once.
    pub fn protocols(&self) -> &Table<Protocol> {
        &self.protocols
    }

    /// The rates over time.
    pub fn history(&self) -> &History {
        &self.history
    }
}
