//! Periods: when they end, and how their rows become chunks of records.
//!
//! Boundaries lie on the monotonic clock. The wall clock names them, and a step of the wall clock is
//! noted in the manifest; it never moves a boundary.

use crate::{
    Chunk, ChunkId, Direction, Flags, InterfaceCounts, Manifest, Measure, Owner, Record, Totals,
};

/// Records of a chunk unless the configuration says otherwise.
pub const CHUNK_RECORDS: usize = 50_000;

/// Bytes of a chunk at which it is handed over however few records it has: half of what a ledger
/// accepts, since the next owner and record come on top.
const CHUNK_BYTES: usize = 32 << 20;

/// How far both clocks may differ over a period without being noted as a step: 1 ms, and 1/1000 of
/// the period, twice what the kernel slews the wall clock by at most (adjtimex(2): 500 ppm).
const STEP_MIN_NS: i64 = 1_000_000;

/// An instant on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic clock, nanoseconds.
    pub monotonic_ns: u64,
    /// The wall clock, nanoseconds of Unix time.
    pub unix_ns: i64,
}

impl Moment {
    /// The instant at another time of the monotonic clock, if the wall clock runs alike.
    #[must_use]
    pub fn at(self, monotonic_ns: u64) -> Moment {
        let passed = monotonic_ns.wrapping_sub(self.monotonic_ns).cast_signed();
        Moment {
            monotonic_ns,
            unix_ns: self.unix_ns.saturating_add(passed),
        }
    }
}

/// When periods end.
#[derive(Clone, Debug)]
pub struct Schedule {
    period_ns: u64,
    next_ns: u64,
}

impl Schedule {
    /// Periods of `period_ns`, of which the first begins at `start`. It ends at a multiple of the
    /// period in Unix time, as the wall clock is at `start`, so it may be shorter; the others have
    /// the full length on the monotonic clock.
    ///
    /// # Panics
    /// If `period_ns` is 0.
    pub fn new(start: Moment, period_ns: u64) -> Schedule {
        let into = i128::from(start.unix_ns).rem_euclid(i128::from(period_ns)) as u64;
        Schedule {
            period_ns,
            next_ns: start.monotonic_ns.saturating_add(period_ns - into),
        }
    }

    /// The end of the period, on the monotonic clock.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The boundary to cut at, if the period has ended by `now_ns`. To be asked until it is `None`:
    /// the period that just ended first, then all periods without a cut as one.
    #[inline]
    pub fn due(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.next_ns {
            return None;
        }
        let boundary = self.next_ns;
        // After a long time without a cut the boundary before `now_ns` comes next.
        let missed = (now_ns - boundary) / self.period_ns;
        self.next_ns = boundary.saturating_add(self.period_ns.saturating_mul(missed.max(1)));
        Some(boundary)
    }
}

/// A cut: the end of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of the period.
    pub period: u64,
    /// Its begin.
    pub began: Moment,
    /// Its end.
    pub ended: Moment,
    /// Totals of the link, counted apart from the records.
    pub link: Totals,
    /// Frames that weir itself lost after it had counted them.
    pub lost_inside: u64,
    /// If counts before this period are missing: from when to when, Unix nanoseconds.
    pub gap_unix_ns: Option<[i64; 2]>,
    /// The metered interfaces' own counts, if known.
    pub interfaces: Vec<InterfaceCounts>,
}

impl Cut {
    /// How far the wall clock was set within the period, nanoseconds; 0 if it was not.
    pub fn wall_step_ns(&self) -> i64 {
        let monotonic = self
            .ended
            .monotonic_ns
            .saturating_sub(self.began.monotonic_ns);
        let expected = self.began.at(self.ended.monotonic_ns).unix_ns;
        let step = self.ended.unix_ns.saturating_sub(expected);
        let slewed = STEP_MIN_NS.saturating_add((monotonic / 1000).cast_signed());
        if step.saturating_abs() <= slewed {
            0
        } else {
            step
        }
    }
}

/// Makes the chunks of one period: hands each over as soon as it is full.
pub struct ChunkWriter<'a> {
    chunk: Chunk,
    chunk_records: usize,
    chunk_bytes: usize,
    /// Bytes of the chunk's owners and records so far, as postcard writes them.
    bytes: usize,
    emit: &'a mut dyn FnMut(Chunk),
    /// The owner of the next record, until it is in the chunk.
    owner: Option<Owner>,
    /// Its number in the chunk.
    index: u32,
}

impl std::fmt::Debug for ChunkWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkWriter")
            .field("chunk", &self.chunk.manifest.id)
            .finish()
    }
}

impl<'a> ChunkWriter<'a> {
    /// Begins the chunks of a period. `measures` begins with packets and bytes, whose totals the
    /// manifests have; `previous` in the manifests is left to the spool.
    pub fn new(
        counter: &str,
        boot_epoch: u64,
        cut: &Cut,
        measures: Vec<Measure>,
        services: Vec<String>,
        chunk_records: usize,
        emit: &'a mut dyn FnMut(Chunk),
    ) -> ChunkWriter<'a> {
        let wall_step_ns = cut.wall_step_ns();
        let manifest = Manifest {
            id: ChunkId {
                counter: counter.to_owned(),
                boot_epoch,
                period: cut.period,
                number: 0,
            },
            last: false,
            monotonic_ns: [cut.began.monotonic_ns, cut.ended.monotonic_ns],
            unix_ns: [
                cut.began.unix_ns,
                cut.ended.unix_ns.saturating_sub(wall_step_ns),
            ],
            wall_step_ns,
            records: 0,
            totals: Totals::default(),
            link: cut.link,
            lost_inside: cut.lost_inside,
            gap_unix_ns: cut.gap_unix_ns,
            interfaces: cut.interfaces.clone(),
            previous: [0; 32],
        };
        ChunkWriter {
            chunk: Chunk {
                manifest,
                measures,
                services,
                owners: Vec::new(),
                records: Vec::new(),
            },
            chunk_records: chunk_records.max(1),
            chunk_bytes: CHUNK_BYTES,
            bytes: 0,
            emit,
            owner: None,
            index: 0,
        }
    }

    /// The records that follow are of this owner.
    pub fn owner(&mut self, owner: Owner) {
        self.owner = Some(owner);
    }

    /// Adds a record of the last owner; a record without packets is left out.
    ///
    /// # Panics
    /// Without an owner, or if there are not as many counts as measures.
    pub fn record(&mut self, service: u16, direction: Direction, flags: Flags, counts: &[u64]) {
        assert_eq!(
            counts.len(),
            self.chunk.measures.len(),
            "a count for each measure"
        );
        if counts[0] == 0 {
            return;
        }
        let is_full =
            self.chunk.records.len() == self.chunk_records || self.bytes >= self.chunk_bytes;
        if is_full && !self.chunk.records.is_empty() {
            // The owner may go on in the next chunk, which names it again.
            if self.owner.is_none() {
                self.owner = self.chunk.owners.last().cloned();
            }
            self.hand_over(false);
        }
        if let Some(owner) = self.owner.take() {
            self.bytes += owner_len(&owner);
            self.chunk.owners.push(owner);
            self.index = (self.chunk.owners.len() - 1) as u32;
        }
        assert!(!self.chunk.owners.is_empty(), "a record has an owner");
        let totals = &mut self.chunk.manifest.totals;
        totals.packets[direction as usize] += counts[0];
        totals.bytes[direction as usize] += counts[1];
        let counts_len: usize = counts.iter().map(|count| varint_len(*count)).sum();
        self.bytes += RECORD_LEN + counts_len;
        self.chunk.records.push(Record {
            owner: self.index,
            service,
            direction,
            flags,
            counts: counts.to_vec(),
        });
    }

    /// Hands the last chunk over; a period without records has one, which is empty.
    pub fn finish(mut self) {
        self.hand_over(true);
    }

    fn hand_over(&mut self, last: bool) {
        let mut manifest = self.chunk.manifest.clone();
        manifest.last = last;
        manifest.records = self.chunk.records.len() as u32;
        (self.emit)(Chunk {
            manifest,
            measures: self.chunk.measures.clone(),
            services: self.chunk.services.clone(),
            owners: std::mem::take(&mut self.chunk.owners),
            records: std::mem::take(&mut self.chunk.records),
        });
        self.chunk.manifest.id.number += 1;
        self.chunk.manifest.totals = Totals::default();
        self.bytes = 0;
    }
}

/// Bytes of a record without its counts, at most.
const RECORD_LEN: usize = 12;

/// Bytes of an owner, at most.
fn owner_len(owner: &Owner) -> usize {
    /// A prefix of IPv6, the longest key.
    const KEY_LEN: usize = 20;
    /// Kind, time, reported counts, and the lengths of what follows.
    const FIXED_LEN: usize = 80;
    let class: usize = owner.class.iter().map(|class| class.len() + 5).sum();
    let user = owner.chargeable_user.as_ref().map_or(0, Vec::len);
    let texts = owner.subscriber.len() + owner.session.len() + user;
    FIXED_LEN + texts + class + owner.keys.len() * KEY_LEN
}

/// Bytes of a number as LEB128.
fn varint_len(number: u64) -> usize {
    (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnerKind;

    fn moment(monotonic_ns: u64, unix_ns: i64) -> Moment {
        Moment {
            monotonic_ns,
            unix_ns,
        }
    }

    #[test]
    fn periods_end_at_multiples_of_unix_time_by_the_monotonic_clock() {
        let mut schedule = Schedule::new(moment(1_000_000, 70), 60);
        assert_eq!(schedule.next_ns(), 1_000_050);
        assert_eq!(schedule.due(1_000_049), None);
        assert_eq!(schedule.due(1_000_050), Some(1_000_050));
        assert_eq!(schedule.due(1_000_109), None);
        // Four periods later: the one that ended, and the empty ones as one.
        assert_eq!(schedule.due(1_000_355), Some(1_000_110));
        assert_eq!(schedule.due(1_000_355), Some(1_000_350));
        assert_eq!(schedule.due(1_000_355), None);
        assert_eq!(schedule.next_ns(), 1_000_410);
        // Before 1970, and at a boundary.
        assert_eq!(Schedule::new(moment(5, -10), 60).next_ns(), 15);
        assert_eq!(Schedule::new(moment(5, 120), 60).next_ns(), 65);
    }

    fn cut() -> Cut {
        Cut {
            period: 3,
            began: moment(0, 1_000_000_000_000),
            ended: moment(300_000_000_000, 1_300_000_000_000),
            link: Totals::default(),
            lost_inside: 7,
            gap_unix_ns: None,
            interfaces: Vec::new(),
        }
    }

    #[test]
    fn a_step_of_the_wall_clock_is_noted_and_slewing_is_not() {
        let step = |by: i64| {
            let mut cut = cut();
            cut.ended.unix_ns += by;
            cut.wall_step_ns()
        };
        assert_eq!([step(0), step(150_000_000), step(-150_000_000)], [0; 3]);
        assert_eq!(step(-3_600_000_000_000), -3_600_000_000_000);
        assert_eq!(step(500_000_000), 500_000_000);
    }

    #[test]
    fn a_period_has_its_length_whatever_the_wall_clock_does() {
        for by in [0, 3_600_000_000_000, -3_600_000_000_000] {
            let mut cut = cut();
            cut.ended.unix_ns += by;
            let mut manifests = Vec::new();
            let mut emit = |chunk: Chunk| manifests.push(chunk.manifest);
            ChunkWriter::new("c", 9, &cut, Vec::new(), Vec::new(), 2, &mut emit).finish();
            assert_eq!(manifests[0].unix_ns, [1_000_000_000_000, 1_300_000_000_000]);
            assert_eq!(manifests[0].wall_step_ns, by);
        }
    }

    #[test]
    fn chunks_have_at_most_their_records_and_name_their_owners() {
        let mut chunks = Vec::new();
        let mut emit = |chunk| chunks.push(chunk);
        let measure = |name: &str| Measure {
            name: name.into(),
            additive: true,
        };
        let measures = vec![measure("packets"), measure("bytes")];
        let mut writer = ChunkWriter::new("c", 9, &cut(), measures, vec!["s".into()], 2, &mut emit);
        for name in ["a", "b"] {
            writer.owner(Owner {
                kind: OwnerKind::Session,
                subscriber: name.into(),
                session: name.into(),
                keys: Vec::new(),
                class: Vec::new(),
                chargeable_user: None,
                started_unix_ns: 0,
                reported: None,
            });
            for packets in [1, 0, 2, 3] {
                let counts = [packets, 10 * packets];
                writer.record(0, Direction::Down, Flags::default(), &counts);
            }
        }
        writer.finish();
        let owners = |chunk: &Chunk| {
            let owner = |record: &Record| chunk.owners[record.owner as usize].session.clone();
            chunk.records.iter().map(owner).collect::<String>()
        };
        let all: Vec<String> = chunks.iter().map(owners).collect();
        assert_eq!(all, ["aa", "ab", "bb"]);
        for (number, chunk) in chunks.iter().enumerate() {
            let manifest = &chunk.manifest;
            assert_eq!(manifest.id.number as usize, number);
            assert_eq!(manifest.last, number == 2);
            assert_eq!(manifest.records as usize, chunk.records.len());
            assert_eq!(manifest.lost_inside, 7);
            let sum: u64 = chunk.records.iter().map(|record| record.counts[1]).sum();
            assert_eq!(manifest.totals.bytes, [0, sum]);
        }
    }

    #[test]
    fn a_chunk_is_handed_over_by_its_bytes_too() {
        assert_eq!([0, 127, 128, u64::MAX].map(varint_len), [1, 1, 2, 10]);
        let mut sizes = Vec::new();
        let mut emit = |chunk: Chunk| sizes.push((chunk.owners.len(), chunk.records.len()));
        let measure = |name: &str| Measure {
            name: name.into(),
            additive: true,
        };
        let measures = vec![measure("packets"), measure("bytes")];
        let mut writer =
            ChunkWriter::new("c", 9, &cut(), measures, vec!["s".into()], 99, &mut emit);
        writer.chunk_bytes = 2000;
        for number in 0..5 {
            writer.owner(Owner {
                kind: OwnerKind::Session,
                subscriber: "s".repeat(900),
                session: number.to_string(),
                keys: vec![crate::Key::Pppoe(1)],
                class: vec![vec![0; 100]],
                chargeable_user: None,
                started_unix_ns: 0,
                reported: None,
            });
            writer.record(0, Direction::Up, Flags::default(), &[1, 100]);
        }
        writer.finish();
        assert_eq!(sizes, [(2, 2), (2, 2), (1, 1)]);
    }

    #[test]
    fn an_empty_period_is_an_empty_chunk() {
        let mut chunks = Vec::new();
        let mut emit = |chunk: Chunk| chunks.push(chunk.manifest);
        ChunkWriter::new("c", 9, &cut(), Vec::new(), Vec::new(), 2, &mut emit).finish();
        assert_eq!(
            (chunks.len(), chunks[0].last, chunks[0].records),
            (1, true, 0)
        );
    }
}
