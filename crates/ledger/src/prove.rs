//! The proof: the link's totals, the sums of records, the chain of chunks and the outputs agree, or
//! the difference has a name.

use crate::output::given::{Found, Given};
use crate::output::totals;
use crate::store::of;
use crate::{Ledger, LedgerError};
use rusqlite::params;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use weir_meter::{InterfaceCounts, Manifest, Totals};

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum Difference {
    /// The records do not add up to the link's totals.
    Records {
        /// The link's totals.
        link: Totals,
        /// The sums of the records.
        records: Totals,
    },
    /// Chunks of the period are missing: those not here yet, or lost.
    Incomplete {
        /// Numbers of the chunks that are here.
        chunks: Vec<u32>,
    },
    /// The chunk's predecessor is not in the ledger: it is not here yet, or was lost or changed.
    Chain {
        /// Number of the chunk in the period.
        chunk: u32,
    },
    /// An output's file has other sums than the ledger for the period.
    Output {
        /// The output.
        output: String,
        /// Sums of the output's files.
        found: Totals,
        /// Sums of the ledger.
        ledger: Totals,
    },
    /// An output's file is gone, or cannot be read.
    OutputFile {
        /// The output.
        output: String,
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// The proof of one period of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeriodProof {
    /// The counter.
    pub counter: String,
    /// Its boot epoch.
    pub boot_epoch: u64,
    /// The period.
    pub period: u64,
    /// Start and end, Unix nanoseconds.
    pub unix_ns: [i64; 2],
    /// Start and end on the monotonic clock, nanoseconds.
    pub monotonic_ns: [u64; 2],
    /// The link's totals.
    pub link: Totals,
    /// Sums of sessions.
    pub sessions: Totals,
    /// Sums of traffic that no session owned.
    pub unattributed: Totals,
    /// Frames that weir itself lost after it had counted them.
    pub lost_inside: u64,
    /// Counts that are missing since the machine restarted: from when to when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_unix_ns: Option<[i64; 2]>,
    /// How far the wall clock was set within the period, nanoseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub wall_step_ns: i64,
    /// The interfaces' own counters beside the link's totals, if they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<InterfaceProof>,
    /// Outputs that have the period whole and agree.
    pub outputs: Vec<String>,
    /// The differences; empty if all agrees.
    pub differences: Vec<Difference>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(ns: &i64) -> bool {
    *ns == 0
}

/// The link's totals against the interfaces' own counters: no difference for the proof, since both
/// are read one after the other, and count at places of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceProof {
    /// Each interface's counts.
    pub interfaces: Vec<InterfaceCounts>,
    /// Frames of the metered sides of all interfaces.
    pub frames: u64,
    /// Their bytes, with the link header.
    pub bytes: u64,
    /// The link's packets less the interfaces' frames.
    pub more_packets: i64,
    /// The link's bytes less the interfaces'.
    pub more_bytes: i64,
}

impl InterfaceProof {
    fn of(manifest: &Manifest) -> Option<InterfaceProof> {
        let interfaces = &manifest.interfaces;
        if interfaces.is_empty() {
            return None;
        }
        let [mut frames, mut bytes] = [0_u64; 2];
        for [more_frames, more_bytes] in interfaces.iter().map(InterfaceCounts::metered) {
            frames = frames.saturating_add(more_frames);
            bytes = bytes.saturating_add(more_bytes);
        }
        let less = |counts: [u64; 2], other: u64| {
            let sum = counts[0].saturating_add(counts[1]);
            sum.wrapping_sub(other).cast_signed()
        };
        Some(InterfaceProof {
            interfaces: interfaces.clone(),
            frames,
            bytes,
            more_packets: less(manifest.link.packets, frames),
            more_bytes: less(manifest.link.bytes, bytes),
        })
    }
}

/// The proof of some periods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// The periods, by counter and time.
    pub periods: Vec<PeriodProof>,
}

impl Proof {
    /// Whether everything agrees.
    pub fn holds(&self) -> bool {
        self.periods
            .iter()
            .all(|period| period.differences.is_empty())
    }

    /// The totals of the links in all periods.
    pub fn link(&self) -> Totals {
        let mut sum = Totals::default();
        self.periods
            .iter()
            .for_each(|period| add(&mut sum, &period.link));
        sum
    }
}

pub(crate) fn add(sum: &mut Totals, more: &Totals) {
    for direction in 0..2 {
        sum.packets[direction] = sum.packets[direction].saturating_add(more.packets[direction]);
        sum.bytes[direction] = sum.bytes[direction].saturating_add(more.bytes[direction]);
    }
}

/// A period of a counter: counter, boot epoch, number.
pub(crate) type PeriodKey = (String, u64, u64);

impl Ledger {
    /// Compares everything for the periods that start within these Unix times in nanoseconds: reads
    /// each row, and each output's file.
    ///
    /// # Errors
    ///
    /// If the ledger cannot be read; what does not agree is no error, but in the proof.
    pub fn prove(&self, since: Option<i64>, until: Option<i64>) -> Result<Proof, LedgerError> {
        let error = of(&self.path);
        let hashes = self.hashes().map_err(&error)?;
        let outputs = self.output_totals()?;
        let mut select = self
            .db
            .prepare(
                "SELECT sequence, manifest FROM chunk WHERE start_ns >= ?1 AND start_ns < ?2
                 ORDER BY counter, start_ns, boot_epoch, period, number",
            )
            .map_err(&error)?;
        let range = params![since.unwrap_or(i64::MIN), until.unwrap_or(i64::MAX)];
        let rows = select
            .query_map(range, |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
            })
            .map_err(&error)?;
        let mut periods: Vec<(PeriodKey, Vec<(i64, Manifest)>)> = Vec::new();
        for row in rows {
            let (sequence, manifest) = row.map_err(&error)?;
            let manifest: Manifest =
                serde_json::from_str(&manifest).map_err(|wrong| LedgerError::Damaged {
                    id: format!("in row {sequence} of {}", self.path.display()),
                    why: wrong.to_string(),
                })?;
            let id = &manifest.id;
            let key = (id.counter.clone(), id.boot_epoch, id.period);
            match periods.last_mut() {
                Some((last, chunks)) if *last == key => chunks.push((sequence, manifest)),
                _ => periods.push((key, vec![(sequence, manifest)])),
            }
        }
        let periods = periods.into_iter().map(|(key, chunks)| {
            self.prove_period(&key, &chunks, &hashes, &outputs)
                .map_err(&error)
        });
        Ok(Proof {
            periods: periods.collect::<Result<_, _>>()?,
        })
    }

    fn prove_period(
        &self,
        key: &PeriodKey,
        chunks: &[(i64, Manifest)],
        hashes: &HashSet<[u8; 32]>,
        outputs: &[OutputTotals],
    ) -> rusqlite::Result<PeriodProof> {
        let first = &chunks[0].1;
        let mut differences = Vec::new();
        let numbers: Vec<u32> = chunks.iter().map(|(_, it)| it.id.number).collect();
        let whole = numbers.iter().zip(0..).all(|(number, at)| *number == at)
            && chunks.last().is_some_and(|(_, it)| it.last);
        if !whole {
            differences.push(Difference::Incomplete { chunks: numbers });
        }
        for (_, manifest) in chunks {
            if manifest.previous != [0; 32] && !hashes.contains(&manifest.previous) {
                let chunk = manifest.id.number;
                differences.push(Difference::Chain { chunk });
            }
        }
        let (mut sessions, mut unattributed) = (Totals::default(), Totals::default());
        let mut select = self.db.prepare_cached(
            "SELECT owner.kind, usage.direction, sum(usage.packets), sum(usage.bytes)
             FROM usage JOIN owner ON owner.id = usage.owner WHERE usage.chunk = ?1
             GROUP BY owner.kind, usage.direction",
        )?;
        for (sequence, _) in chunks {
            let mut rows = select.query([sequence])?;
            while let Some(row) = rows.next()? {
                let sum = if row.get::<_, i64>(0)? == 0 {
                    &mut sessions
                } else {
                    &mut unattributed
                };
                let direction = usize::from(row.get::<_, u8>(1)? & 1);
                sum.packets[direction] += row.get::<_, i64>(2)?.cast_unsigned();
                sum.bytes[direction] += row.get::<_, i64>(3)?.cast_unsigned();
            }
        }
        let mut records = sessions;
        add(&mut records, &unattributed);
        if records != first.link {
            let link = first.link;
            differences.push(Difference::Records { link, records });
        }
        let mut agreeing = Vec::new();
        for output in outputs {
            let had = |(sequence, _): &&(i64, Manifest)| output.delivered(*sequence);
            if !chunks.iter().any(|chunk| had(&chunk)) {
                continue;
            }
            let files = output
                .unreadable
                .iter()
                .filter(|(range, ..)| chunks.iter().any(|(sequence, _)| range.contains(sequence)));
            let unreadable: Vec<_> = files
                .map(|(_, path, why)| Difference::OutputFile {
                    output: output.name.clone(),
                    path: path.clone(),
                    why: why.clone(),
                })
                .collect();
            // The sums of what the output was given of the period, and those that the ledger has.
            let mut ledger = Totals::default();
            chunks
                .iter()
                .filter(had)
                .for_each(|(_, it)| add(&mut ledger, &it.totals));
            let given = output.given.get(key).copied();
            if output.skipped.contains(key) && given.is_none() {
                continue;
            }
            let ledger = match given {
                Some(given) if output.in_part => given,
                _ if output.in_part => Totals::default(),
                _ => ledger,
            };
            let found = match (&output.found, given) {
                (Some(found), _) => found.get(key).copied().unwrap_or_default(),
                // Nothing can be read back: what was given was committed.
                (None, given) => given.unwrap_or_default(),
            };
            if !unreadable.is_empty() {
                differences.extend(unreadable);
            } else if found != ledger {
                let output = output.name.clone();
                differences.push(Difference::Output {
                    output,
                    found,
                    ledger,
                });
            } else if chunks.iter().all(|chunk| had(&chunk)) {
                let mark = if output.in_part { " (part)" } else { "" };
                agreeing.push(format!("{}{mark}", output.name));
            }
        }
        Ok(PeriodProof {
            counter: key.0.clone(),
            boot_epoch: key.1,
            period: key.2,
            unix_ns: first.unix_ns,
            monotonic_ns: first.monotonic_ns,
            link: first.link,
            sessions,
            unattributed,
            lost_inside: first.lost_inside,
            gap_unix_ns: first.gap_unix_ns,
            wall_step_ns: first.wall_step_ns,
            interfaces: InterfaceProof::of(first),
            outputs: agreeing,
            differences,
        })
    }

    /// The hashes of all chunks; also of those that retention has deleted.
    fn hashes(&self) -> rusqlite::Result<HashSet<[u8; 32]>> {
        self.db
            .prepare("SELECT hash FROM chunk UNION SELECT hash FROM deleted")?
            .query_map([], |row| row.get(0))?
            .collect()
    }

    fn output_totals(&self) -> Result<Vec<OutputTotals>, LedgerError> {
        let error = of(&self.path);
        let mut select = self
            .db
            .prepare(
                "SELECT output, first, last, path, given FROM output_file WHERE hash IS NOT NULL
                 ORDER BY output, first",
            )
            .map_err(&error)?;
        let files = select
            .query_map([], |row| {
                Ok(Delivery {
                    output: row.get(0)?,
                    range: row.get(1)?..=row.get(2)?,
                    path: row.get(3)?,
                    given: row.get(4)?,
                })
            })
            .map_err(&error)?;
        let mut outputs: BTreeMap<String, OutputTotals> = BTreeMap::new();
        for delivery in files {
            let delivery = delivery.map_err(&error)?;
            let output = outputs
                .entry(delivery.output.clone())
                .or_insert_with(|| OutputTotals {
                    name: delivery.output.clone(),
                    ..OutputTotals::default()
                });
            output.add(delivery)?;
        }
        Ok(outputs.into_values().collect())
    }
}

/// The record of an output's data at a time.
struct Delivery {
    output: String,
    range: std::ops::RangeInclusive<i64>,
    /// Empty if the output does not write files, or if there was nothing to write.
    path: String,
    /// As JSON; `None` of an earlier version.
    given: Option<String>,
}

/// The totals of an output, and those of its files.
#[derive(Default)]
struct OutputTotals {
    name: String,
    ranges: Vec<std::ops::RangeInclusive<i64>>,
    given: BTreeMap<PeriodKey, Totals>,
    skipped: HashSet<PeriodKey>,
    in_part: bool,
    /// By period; `None` if nothing is read back.
    found: Option<BTreeMap<PeriodKey, Totals>>,
    unreadable: Vec<(std::ops::RangeInclusive<i64>, PathBuf, String)>,
}

impl OutputTotals {
    fn add(&mut self, delivery: Delivery) -> Result<(), LedgerError> {
        let path = PathBuf::from(delivery.path);
        let given: Option<Given> = match delivery.given {
            None => None,
            Some(json) => serde_json::from_str(&json).map_err(|why| LedgerError::Damaged {
                id: format!("of output {}", self.name),
                why: why.to_string(),
            })?,
        };
        self.ranges.push(delivery.range.clone());
        if let Some(given) = &given {
            self.in_part |= given.in_part;
            self.skipped.extend(given.skipped.iter().cloned());
            for (key, more) in &given.periods {
                add(self.given.entry(key.clone()).or_default(), more);
            }
        }
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let found = self.found.get_or_insert_default();
        match totals(&path) {
            Ok(Found::ByPeriod(totals)) => totals
                .iter()
                .for_each(|(key, more)| add(found.entry(key.clone()).or_default(), more)),
            // A file that names no periods has all that it was given, or none.
            Ok(Found::Whole(totals)) => match &given {
                Some(given) if given.totals() == totals => {
                    for (key, more) in &given.periods {
                        add(found.entry(key.clone()).or_default(), more);
                    }
                }
                _ => {
                    let why = "it has other sums than it was given".to_owned();
                    self.unreadable.push((delivery.range, path, why));
                }
            },
            Err(why) => self.unreadable.push((delivery.range, path, why)),
        }
        Ok(())
    }

    fn delivered(&self, sequence: i64) -> bool {
        self.ranges.iter().any(|range| range.contains(&sequence))
    }
}
