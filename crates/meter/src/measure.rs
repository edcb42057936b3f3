//! Measures: what is counted of an owner's traffic of a service in a direction, a *row*.
//!
//! Packets and bytes are always counted, by the engine itself. Every other measure implements
//! [`Measurement`]; [the manual](../../../docs/how-to/add-a-measure.md) adds one as an example.
//!
//! A row has the words that the measure asks for: its columns, which go into records, and state that
//! does not. All are zero at the first frame of each period, so a record is of its period alone.

use crate::parse::{Addresses, Headers, Transport};
use crate::services::compile;
use crate::{Direction, Flags, Measure};
use ahash::RandomState;
use std::fmt;
use weir_filter::backend::Runner;
use weir_filter::lang::expr::{self, Names};
use weir_wire::LinkType;

/// A frame as measures see it.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The monotonic time, nanoseconds; never before that of an earlier frame.
    pub now_ns: u64,
    /// Its captured bytes.
    pub frame: &'a [u8],
    /// Its link type.
    pub linktype: LinkType,
    /// Its fields.
    pub headers: &'a Headers,
    /// Its bytes, in the unit of the configuration.
    pub bytes: u64,
    /// Its direction.
    pub direction: Direction,
    /// Its service.
    pub service: u16,
}

/// A measure: counts in columns of a row.
pub trait Measurement: fmt::Debug + Send {
    /// The columns of its counts in records.
    fn columns(&self) -> Vec<Measure>;

    /// Words of state that it needs for each row beside its columns.
    fn state_words(&self) -> usize {
        0
    }

    /// Prepares for frames of a link type, before the first one of it.
    ///
    /// # Errors
    /// If the measure means nothing there; it counts nothing then.
    fn prepare(&mut self, linktype: LinkType, names: &dyn Names) -> Result<(), expr::Error> {
        let _ = (linktype, names);
        Ok(())
    }

    /// Counts a frame: `columns` and `state` are the row's. Returns remarks for the row's record.
    fn add(&mut self, sample: &Sample<'_>, columns: &mut [u64], state: &mut [u64]) -> Flags;
}

/// A column whose values add up.
fn additive(name: impl Into<String>) -> Measure {
    Measure {
        name: name.into(),
        additive: true,
    }
}

/// `flows`: how many flows began.
///
/// A flow is what packets have in common that have the same addresses, protocol, transport ports,
/// direction, VLAN and PPPoE session; both directions of a connection are two flows (RFC 7011 §2). A
/// flow begins with its first packet, and anew with the first packet after `idle_ns` without one. It
/// is counted in the row of that packet, in the period in which it begins: sums over periods count no
/// flow twice. Fragments form a flow by their addresses and protocol; frames that are not IP have no
/// flow.
///
/// The count is exact as long as the table has room for all flows that are not idle. A packet whose
/// flow finds no room marks its row [`Flags::AT_LEAST`].
pub struct Flows {
    table: hashbrown::HashMap<FlowKey, u64, RandomState>,
    max: usize,
    idle_ns: u64,
    swept_ns: u64,
}

/// The common part of a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    addresses: Addresses,
    transport: Transport,
    direction: Direction,
    vlan: Option<(u16, Option<u16>)>,
    pppoe: Option<u16>,
}

/// How often a full table is searched for idle flows, at most: nanoseconds.
const SWEEP_INTERVAL_NS: u64 = 1_000_000_000;

impl Flows {
    /// A table for `max` flows that end after `idle_ns` nanoseconds without a packet; `seed` is a
    /// random number, against chosen flows that collide.
    pub fn new(max: usize, idle_ns: u64, seed: u64) -> Flows {
        Flows {
            table: hashbrown::HashMap::with_hasher(RandomState::with_seed(seed as usize)),
            max,
            idle_ns,
            swept_ns: 0,
        }
    }

    /// Whether there is room for one more flow.
    fn has_room(&mut self, now_ns: u64) -> bool {
        if self.table.len() >= self.max && now_ns - self.swept_ns >= SWEEP_INTERVAL_NS {
            self.swept_ns = now_ns;
            let idle_ns = self.idle_ns;
            self.table.retain(|_, last| now_ns - *last < idle_ns);
        }
        self.table.len() < self.max
    }
}

impl fmt::Debug for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flows({} of {})", self.table.len(), self.max)
    }
}

impl Measurement for Flows {
    fn columns(&self) -> Vec<Measure> {
        vec![additive("flows")]
    }

    fn add(&mut self, sample: &Sample<'_>, columns: &mut [u64], _: &mut [u64]) -> Flags {
        let Some(addresses) = sample.headers.addresses else {
            return Flags::default();
        };
        let key = FlowKey {
            addresses,
            transport: sample.headers.transport,
            direction: sample.direction,
            vlan: sample.headers.vlan,
            pppoe: sample.headers.pppoe,
        };
        if let Some(last) = self.table.get_mut(&key) {
            let is_idle = sample.now_ns - *last >= self.idle_ns;
            columns[0] += u64::from(is_idle);
            *last = sample.now_ns;
            return Flags::default();
        }
        if !self.has_room(sample.now_ns) {
            return Flags::AT_LEAST;
        }
        columns[0] += 1;
        self.table.insert(key, sample.now_ns);
        Flags::default()
    }
}

/// `active_ms`: the time in which the row was active.
///
/// Time is divided into slots of equal length on the monotonic clock. The count is the length of all
/// slots with a packet, in milliseconds. Bytes divided by it are the average rate while active.
#[derive(Debug)]
pub struct ActiveTime {
    slot_ms: u64,
}

impl ActiveTime {
    /// With slots of this many milliseconds.
    ///
    /// # Panics
    /// If that is 0.
    pub fn new(slot_ms: u64) -> ActiveTime {
        assert!(slot_ms > 0, "a slot of time has a length");
        ActiveTime { slot_ms }
    }
}

impl Measurement for ActiveTime {
    fn columns(&self) -> Vec<Measure> {
        vec![additive("active_ms")]
    }

    fn state_words(&self) -> usize {
        1
    }

    fn add(&mut self, sample: &Sample<'_>, columns: &mut [u64], state: &mut [u64]) -> Flags {
        // From 1: 0 stands for none.
        let slot = sample.now_ns / (self.slot_ms * 1_000_000) + 1;
        if state[0] != slot {
            state[0] = slot;
            columns[0] += self.slot_ms;
        }
        Flags::default()
    }
}

/// `gap_N`: histogram of the time between a packet of the row and the one before it, in the same
/// period.
///
/// The buckets are powers of two of a microsecond: `gap_0us` counts gaps below 1 µs, `gap_1us` below
/// 2 µs, `gap_2us` below 4 µs, and so on; the last, `gap_4194304us`, has all of 4.2 s and more. The
/// buckets of two records add up, and all together are the packets less one.
#[derive(Debug)]
pub struct Gaps;

impl Gaps {
    /// Number of buckets.
    pub const BUCKETS: usize = 24;

    /// The bucket of a gap in nanoseconds.
    #[inline]
    pub fn bucket(gap_ns: u64) -> usize {
        match (gap_ns / 1000).checked_ilog2() {
            None => 0,
            Some(log) => (log as usize + 1).min(Gaps::BUCKETS - 1),
        }
    }

    /// The least gap of a bucket, in microseconds.
    pub fn least_us(bucket: usize) -> u64 {
        if bucket == 0 { 0 } else { 1 << (bucket - 1) }
    }
}

impl Measurement for Gaps {
    fn columns(&self) -> Vec<Measure> {
        let name = |bucket| format!("gap_{}us", Gaps::least_us(bucket));
        (0..Gaps::BUCKETS)
            .map(|bucket| additive(name(bucket)))
            .collect()
    }

    fn state_words(&self) -> usize {
        1
    }

    fn add(&mut self, sample: &Sample<'_>, columns: &mut [u64], state: &mut [u64]) -> Flags {
        // One more than the time: 0 stands for none.
        if state[0] != 0 {
            columns[Gaps::bucket(sample.now_ns - (state[0] - 1))] += 1;
        }
        state[0] = sample.now_ns + 1;
        Flags::default()
    }
}

/// Any name: the packets that a filter expression accepts.
#[derive(Debug)]
pub struct Accepted {
    name: String,
    text: String,
    filters: Vec<(LinkType, Runner)>,
}

impl Accepted {
    /// The packets that the expression `text` accepts.
    pub fn new(name: &str, text: &str) -> Accepted {
        Accepted {
            name: name.to_owned(),
            text: text.to_owned(),
            filters: Vec::new(),
        }
    }
}

impl Measurement for Accepted {
    fn columns(&self) -> Vec<Measure> {
        vec![additive(&*self.name)]
    }

    fn prepare(&mut self, linktype: LinkType, names: &dyn Names) -> Result<(), expr::Error> {
        let program = compile(&self.text, linktype, names)?;
        self.filters.push((linktype, Runner::new(program)));
        Ok(())
    }

    fn add(&mut self, sample: &Sample<'_>, columns: &mut [u64], _: &mut [u64]) -> Flags {
        let mut filters = self.filters.iter();
        if let Some((_, filter)) = filters.find(|(linktype, _)| *linktype == sample.linktype) {
            let verdict = filter.run(sample.frame, sample.headers.wire_bytes);
            columns[0] += u64::from(verdict != 0);
        }
        Flags::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_filter::lang::expr::NoNames;

    fn headers(port: u16) -> Headers {
        Headers {
            src_mac: None,
            dst_mac: None,
            vlan: None,
            pppoe: None,
            addresses: Some(Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
            transport: Transport::Ports(weir_wire::Protocol::UDP, port, 53),
            ip_bytes: 28,
            wire_bytes: 42,
        }
    }

    fn sample(headers: &Headers, now_ns: u64) -> Sample<'_> {
        Sample {
            now_ns,
            frame: &[],
            linktype: LinkType::EN10MB,
            headers,
            bytes: 28,
            direction: Direction::Up,
            service: 0,
        }
    }

    #[test]
    fn a_flow_begins_once_until_it_is_idle() {
        let mut flows = Flows::new(10, 100, 1);
        let mut columns = [0];
        for (port, now, count) in [(1, 0, 1), (1, 99, 1), (2, 100, 2), (1, 198, 2), (1, 298, 3)] {
            let headers = headers(port);
            let flags = flows.add(&sample(&headers, now), &mut columns, &mut []);
            assert_eq!(
                (columns[0], flags),
                (count, Flags::default()),
                "{port} {now}"
            );
        }
        let not_ip = Headers {
            addresses: None,
            ..headers(9)
        };
        flows.add(&sample(&not_ip, 299), &mut columns, &mut []);
        assert_eq!(columns, [3]);
    }

    #[test]
    fn a_full_table_counts_at_least_and_makes_room_of_idle_flows() {
        let mut flows = Flows::new(2, 5, 1);
        let mut columns = [0];
        let mut add = |port, now_ns| {
            let headers = headers(port);
            let flags = flows.add(&sample(&headers, now_ns), &mut columns, &mut []);
            (columns[0], flags)
        };
        assert_eq!(add(1, 0), (1, Flags::default()));
        assert_eq!(add(2, 1), (2, Flags::default()));
        assert_eq!(add(3, 2), (2, Flags::AT_LEAST));
        assert_eq!(add(2, SWEEP_INTERVAL_NS - 1), (3, Flags::default()));
        assert_eq!(add(3, SWEEP_INTERVAL_NS), (4, Flags::default()));
        assert_eq!(add(1, SWEEP_INTERVAL_NS + 1), (4, Flags::AT_LEAST));
    }

    #[test]
    fn active_time_counts_slots_with_a_packet() {
        let mut active = ActiveTime::new(1000);
        let (mut columns, mut state, headers) = ([0], [0], headers(1));
        for (ms, sum) in [
            (0, 1000),
            (999, 1000),
            (1000, 2000),
            (5000, 3000),
            (5001, 3000),
        ] {
            active.add(&sample(&headers, ms * 1_000_000), &mut columns, &mut state);
            assert_eq!(columns, [sum], "{ms}");
        }
    }

    #[test]
    fn gaps_fall_into_buckets_of_powers_of_two() {
        for (ns, us) in [
            (0, 0),
            (999, 0),
            (1000, 1),
            (1999, 1),
            (2000, 2),
            (4_194_303_999, 2_097_152),
            (4_194_304_000, 4_194_304),
            (u64::MAX, 4_194_304),
        ] {
            assert_eq!(Gaps::least_us(Gaps::bucket(ns)), us, "{ns}");
        }
        let (mut columns, mut state, headers) = ([0; Gaps::BUCKETS], [0], headers(1));
        for now in [0, 500, 2500] {
            Gaps.add(&sample(&headers, now), &mut columns, &mut state);
        }
        assert_eq!(columns[..4], [1, 0, 1, 0]);
        assert_eq!(columns.iter().sum::<u64>(), 2);
        assert_eq!(Gaps.columns()[23].name, "gap_4194304us");
    }

    #[test]
    fn accepted_frames_are_counted_on_the_link_types_that_are_prepared() {
        let mut arp = Accepted::new("arp", "arp");
        assert!(
            Accepted::new("x", "tcp prot 1")
                .prepare(LinkType::EN10MB, &NoNames)
                .is_err()
        );
        let mut columns = [0];
        let headers = headers(1);
        let frame = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
        let sample = Sample {
            frame: &frame,
            ..sample(&headers, 0)
        };
        arp.add(&sample, &mut columns, &mut []);
        assert_eq!(columns, [0]);
        arp.prepare(LinkType::EN10MB, &NoNames).unwrap();
        arp.add(&sample, &mut columns, &mut []);
        assert_eq!(columns, [1]);
    }
}
