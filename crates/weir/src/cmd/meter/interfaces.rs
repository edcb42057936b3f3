//! The metered interfaces' own counts, read with each cut and recorded beside its totals.

use std::collections::HashMap;
use weir_link::net::{InterfaceCounters, Interfaces};
use weir_meter::{Direction, InterfaceCounts};

/// An interface of a counter.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) index: u32,
    /// Which way frames go that it receives; `None` at a mirror port.
    pub(super) ingress: Option<Direction>,
    /// Whether frames that it sends are metered here, too.
    pub(super) meters_tx: bool,
}

/// Counters of interfaces by their numbers.
type Readings = HashMap<u32, InterfaceCounters>;

/// The interfaces of a counter, and what they had counted at the last cut.
#[derive(Debug, Default)]
pub(super) struct OwnCounters {
    sides: Vec<Side>,
    /// At the last cut, or when the counters were made; `None` if that is not known.
    last: Option<Readings>,
    /// Of the period that was cut and is not durable.
    cut: Vec<InterfaceCounts>,
}

impl OwnCounters {
    /// Of these interfaces, whose programs count from now on; or since the last cut of an earlier
    /// process, which has noted `left`. Without that note the first period has no such counts.
    pub(super) fn new(sides: Vec<Side>, is_new: bool, left: Option<&[u8]>) -> OwnCounters {
        let last = match left {
            Some(bytes) => readings(bytes),
            None if is_new => read(&sides),
            None => None,
        };
        OwnCounters {
            sides,
            last,
            cut: Vec::new(),
        }
    }

    /// A period ends now.
    pub(super) fn note_cut(&mut self) {
        let now = read(&self.sides);
        let last = std::mem::replace(&mut self.last, now);
        let both = last.zip(self.last.as_ref());
        let counts = both.and_then(|(last, now)| between(&self.sides, &last, now));
        self.cut = counts.unwrap_or_default();
    }

    /// Their counts of the period that was cut last.
    pub(super) fn of_cut(&self) -> Vec<InterfaceCounts> {
        self.cut.clone()
    }

    /// The note beside that period for the next process.
    pub(super) fn note(&self) -> Vec<u8> {
        let readings = self.last.iter().flatten();
        let words = readings.flat_map(|(index, it)| {
            [
                (*index).into(),
                it.rx_frames,
                it.rx_bytes,
                it.tx_frames,
                it.tx_bytes,
            ]
        });
        words.flat_map(u64::to_le_bytes).collect()
    }
}

/// The readings of a [note](OwnCounters::note).
fn readings(bytes: &[u8]) -> Option<Readings> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (entries, more) = words.as_chunks::<5>();
    if entries.is_empty() || !rest.is_empty() || !more.is_empty() {
        return None;
    }
    let entry = |[index, rx_frames, rx_bytes, tx_frames, tx_bytes]: &[u64; 5]| {
        let counters = InterfaceCounters {
            rx_frames: *rx_frames,
            rx_bytes: *rx_bytes,
            tx_frames: *tx_frames,
            tx_bytes: *tx_bytes,
        };
        Some((u32::try_from(*index).ok()?, counters))
    };
    entries.iter().map(entry).collect()
}

/// The present counters of all sides; `None` if one of the interfaces has gone.
fn read(sides: &[Side]) -> Option<Readings> {
    let mut interfaces = Interfaces::open().ok()?;
    let counters = sides.iter().map(|side| {
        let counters = interfaces.counters(side.index);
        Some((side.index, counters.ok()?))
    });
    counters.collect()
}

/// The counts between two readings; `None` if an interface was made again meanwhile.
fn between(sides: &[Side], last: &Readings, now: &Readings) -> Option<Vec<InterfaceCounts>> {
    let counts = sides.iter().map(|side| {
        let (last, now) = (last.get(&side.index)?, now.get(&side.index)?);
        let more = |now: u64, last: u64| now.checked_sub(last);
        Some(InterfaceCounts {
            name: side.name.clone(),
            rx: [
                more(now.rx_frames, last.rx_frames)?,
                more(now.rx_bytes, last.rx_bytes)?,
            ],
            tx: [
                more(now.tx_frames, last.tx_frames)?,
                more(now.tx_bytes, last.tx_bytes)?,
            ],
            ingress: side.ingress,
            meters_tx: side.meters_tx,
        })
    });
    counts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(frames: u64) -> InterfaceCounters {
        InterfaceCounters {
            rx_frames: frames,
            rx_bytes: frames * 60,
            tx_frames: 2 * frames,
            tx_bytes: frames * 120,
        }
    }

    fn side(index: u32) -> Side {
        Side {
            name: format!("eth{index}"),
            index,
            ingress: Some(Direction::Up),
            meters_tx: true,
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let last: Readings = [(1, counters(7)), (2, counters(9))].into();
        let own = OwnCounters {
            last: Some(last.clone()),
            ..OwnCounters::default()
        };
        assert_eq!(readings(&own.note()), Some(last));
        // Of a process that could not read them, or of an earlier version.
        assert_eq!(readings(&OwnCounters::default().note()), None);
        assert_eq!(readings(&own.note()[1..]), None);
    }

    #[test]
    fn what_is_not_known_is_not_recorded() {
        let [before, after]: [Readings; 2] = [3, 10].map(|frames| [(1, counters(frames))].into());
        let found = between(&[side(1)], &before, &after).unwrap();
        assert_eq!(found[0].metered(), [21, 7 * 180]);
        // Made again: its counters began at zero, or it has another number.
        assert_eq!(between(&[side(1)], &after, &before), None);
        assert_eq!(between(&[side(2)], &before, &after), None);
    }
}
