//! Measures beside packets and bytes: what each has in a cell, and the table of flows.

use super::bank::Banks;
use super::error::MeterError;
use super::layout::{FLOW_BYTES, FLOW_SLOTS, count_words, flow};
use super::maps::MeterSpec;
use crate::bpf::grace_period;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::sync::atomic::Ordering;
use weir_filter::ir::Program;
use weir_filter::lang::expr::Names;
use weir_meter::config::MeasureConfig;
use weir_meter::measure::Gaps;
use weir_meter::services;
use weir_wire::LinkType;

/// A measure as the stage counts it: the offsets of its words in a cell.
#[derive(Clone, Debug)]
pub(super) enum Measured {
    /// Packets that a filter accepts.
    Accepted { filter: Program, column: i16 },
    /// Milliseconds of all slots of time with a packet.
    Active {
        slot_ms: i32,
        column: i16,
        slot: i16,
    },
    /// Packets by the time since the one before.
    Gaps { columns: i16, last: i16 },
    /// Flows that began, and whether one found no room.
    Flows { column: i16, at_least: i16 },
}

/// The sizes of measures in a cell and in a table beside, as on the control page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Shape {
    /// A hash of what they are; 0 without any.
    pub(super) meaning: u64,
    pub(super) columns: u32,
    pub(super) states: u32,
    pub(super) flow_pages: u32,
    pub(super) flow_idle_ns: u64,
    /// Which word says that a flow found no room, from the cell's first one; 0: none.
    pub(super) at_least: u32,
}

/// Columns and words of state of a measure.
fn words(measure: &MeasureConfig) -> [u32; 2] {
    match measure {
        MeasureConfig::Accepted { .. } => [1, 0],
        MeasureConfig::Active { .. } | MeasureConfig::Flows { .. } => [1, 1],
        MeasureConfig::Gaps => [Gaps::BUCKETS as u32, 1],
    }
}

impl Shape {
    pub(super) fn new(spec: &MeterSpec<'_>) -> Shape {
        let mut shape = Shape::default();
        if spec.measures.is_empty() {
            return shape;
        }
        for measure in spec.measures {
            let [columns, states] = words(measure);
            shape.columns += columns;
            shape.states += states;
        }
        let mut state = count_words(spec.polices) + shape.columns;
        for measure in spec.measures {
            if let MeasureConfig::Flows { max, idle_ns } = measure {
                // At half load few flows find no place.
                let slots = (2 * *max as u64).next_power_of_two();
                shape.flow_pages = (slots / u64::from(FLOW_SLOTS)).max(1) as u32;
                shape.flow_idle_ns = *idle_ns;
                shape.at_least = state;
            }
            state += words(measure)[1];
        }
        shape.meaning = meaning(spec.measures);
        shape
    }

    /// Words of a cell.
    pub(super) fn words(&self) -> u32 {
        self.columns + self.states
    }

    pub(super) fn flow_bytes(&self) -> u64 {
        u64::from(self.flow_pages) * u64::from(FLOW_SLOTS * FLOW_BYTES)
    }
}

/// A hash of what the measures are, the same in each build; never 0.
fn meaning(measures: &[MeasureConfig]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    let mut number = |value: u64| hasher.write(&value.to_le_bytes());
    for measure in measures {
        match measure {
            MeasureConfig::Flows { max, idle_ns } => {
                [1, *max as u64, *idle_ns].into_iter().for_each(&mut number)
            }
            MeasureConfig::Active { slot_ms } => [2, *slot_ms].into_iter().for_each(&mut number),
            MeasureConfig::Gaps => number(3),
            MeasureConfig::Accepted { name, filter } => {
                number(4);
                for text in [name, filter] {
                    number(text.len() as u64);
                    text.bytes().for_each(|byte| number(byte.into()));
                }
            }
        }
    }
    hasher.finish() | 1
}

/// The measures as the stage counts them.
pub(super) fn compile(spec: &MeterSpec<'_>) -> Result<Vec<Measured>, MeterError> {
    let shape = Shape::new(spec);
    let first = count_words(spec.polices);
    let (mut column, mut state) = (first, first + shape.columns);
    let at = |word: u32| (8 * word) as i16;
    let mut compiled = Vec::new();
    for measure in spec.measures {
        compiled.push(match measure {
            MeasureConfig::Accepted { name, filter } => Measured::Accepted {
                filter: filter_of(name, filter, spec.names)?,
                column: at(column),
            },
            MeasureConfig::Active { slot_ms } => Measured::Active {
                slot_ms: i32::try_from(*slot_ms).unwrap_or(i32::MAX),
                column: at(column),
                slot: at(state),
            },
            MeasureConfig::Gaps => Measured::Gaps {
                columns: at(column),
                last: at(state),
            },
            MeasureConfig::Flows { .. } => Measured::Flows {
                column: at(column),
                at_least: at(state),
            },
        });
        let [columns, states] = words(measure);
        column += columns;
        state += states;
    }
    Ok(compiled)
}

fn filter_of(name: &str, filter: &str, names: &dyn Names) -> Result<Program, MeterError> {
    let program = services::compile(filter, LinkType::EN10MB, names);
    program.map_err(|source| MeterError::Measure {
        measure: name.to_owned(),
        source,
    })
}

impl Banks {
    /// Frees the slots of flows without a packet for so long that the next one begins a flow anew:
    /// first no program finds them, and when none compares them any more, they are free. Waits for
    /// that, and passes over the whole table. `now_ns` is the monotonic time.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub fn end_idle_flows(&self, now_ns: u64) -> Result<(), MeterError> {
        let Some(flows) = &self.flows else {
            return Ok(());
        };
        let idle_ns = self.geometry.shape.flow_idle_ns;
        let words = || {
            let pages = 0..flows.entries();
            pages.flat_map(|page| {
                let slots = 0..FLOW_SLOTS as usize;
                slots.filter_map(move |slot| {
                    flows.u64(page, slot * FLOW_BYTES as usize + flow::LAST)
                })
            })
        };
        let mut is_any = false;
        for word in words() {
            let last = word.load(Ordering::Relaxed);
            let is_idle = last > flow::RETIRING && now_ns.saturating_sub(last) >= idle_ns;
            is_any |= last == flow::RETIRING;
            if is_idle {
                // A packet may have come: then the flow goes on.
                let exchange = word.compare_exchange(
                    last,
                    flow::RETIRING,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                is_any |= exchange.is_ok();
            }
        }
        if !is_any {
            return Ok(());
        }
        grace_period()?;
        for word in words().filter(|word| word.load(Ordering::Relaxed) == flow::RETIRING) {
            word.store(0, Ordering::Release);
        }
        Ok(())
    }
}
