//! The chain: stages in order, their filters as one plan, and what it counts.

use crate::batch::{Batch, Output, Sent};
use crate::composed::Composed;
use crate::flow::{Direction, Endpoints};
use crate::key_only;
use crate::packet::{Fate, Packet, Trace};
use crate::stage::{RestoreError, Restored, Stage};
use std::sync::Arc;
use weir_demux::{BindError, Binding, Filter, Plan, Target, Verdict};
use weir_filter::ir::Program;

/// Number of stages of a chain, at most.
pub const STAGES_MAX: usize = 8;

/// Number of different reasons that are counted for a stage; further ones count
/// as `"other"`.
const REASONS_MAX: usize = 32;

/// The reason why a chain was not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChainError {
    /// There are too many stages.
    #[error("{found} stages: a chain has at most {STAGES_MAX}")]
    TooMany {
        /// Their number.
        found: usize,
    },
    /// The filters do not fit into a plan.
    #[error(transparent)]
    Plan(#[from] BindError),
}

/// The counts of a stage.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StageCounts {
    /// Packets that the stage got outward and inward, in user space.
    pub packets: [u64; 2],
    /// Packets that it dropped, by reason.
    pub drops: Vec<(&'static str, u64)>,
}

/// A stage, its filter, and what both have counted.
struct FilteredStage {
    stage: Box<dyn Stage>,
    filter: Option<Arc<Program>>,
    counts: StageCounts,
}

/// Stages between the inside and the outside. Outward they run in order, inward
/// in reverse order.
pub struct Chain {
    stages: Vec<FilteredStage>,
    plan: Plan,
    /// The stages that get packets whatever the plan says, by direction.
    always: [u32; 2],
    has_filters: bool,
    verdict: Verdict,
    output: Output,
    next_ticket: u64,
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::Outward => 0,
        Direction::Inward => 1,
    }
}

impl Chain {
    /// A chain of these stages, each with its filter, if it has one. `seed` keys
    /// the hashes of the plan of all filters.
    ///
    /// # Errors
    /// If there are more than [`STAGES_MAX`] stages, or the filters do not fit
    /// into a plan.
    pub fn new(
        stages: Vec<(Box<dyn Stage>, Option<Program>)>,
        seed: u128,
    ) -> Result<Chain, ChainError> {
        if stages.len() > STAGES_MAX {
            let found = stages.len();
            return Err(ChainError::TooMany { found });
        }
        let mut plan = Plan::new(seed);
        let mut always = [0; 2];
        let mut filtered = Vec::new();
        for (number, (stage, filter)) in stages.into_iter().enumerate() {
            for direction in [Direction::Outward, Direction::Inward] {
                if filter.is_none() || !stage.filters(direction) {
                    always[index(direction)] |= 1 << number;
                }
            }
            let filter = filter.map(Arc::new);
            if let Some(program) = &filter {
                plan.bind(Binding {
                    filter: Filter::new(Arc::clone(program)),
                    priority: 0,
                    copy: true,
                    target: Target::Port(0),
                    tag: number as u32,
                })?;
            }
            filtered.push(FilteredStage {
                stage,
                filter,
                counts: StageCounts::default(),
            });
        }
        Ok(Chain {
            has_filters: filtered.iter().any(|it| it.filter.is_some()),
            stages: filtered,
            plan,
            always,
            verdict: Verdict::new(),
            output: Output::default(),
            next_ticket: 1,
        })
    }

    /// Number of stages.
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// Whether there is no stage.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Runs a batch of frames, as they came, through all stages.
    pub fn run(&mut self, now: u64, direction: Direction, batch: &mut Batch<'_>) {
        let first = match direction {
            Direction::Outward => 0,
            Direction::Inward => self.stages.len(),
        };
        self.run_from(now, direction, first, batch);
    }

    /// As [`run`](Self::run); calls `each` after each stage, with its number.
    pub fn run_watched(
        &mut self,
        now: u64,
        direction: Direction,
        batch: &mut Batch<'_>,
        mut each: impl FnMut(usize, &Batch<'_>),
    ) {
        self.select(direction, batch);
        batch.next_ticket = self.next_ticket;
        let count = self.stages.len();
        for step in 0..count {
            let at = match direction {
                Direction::Outward => step,
                Direction::Inward => count - 1 - step,
            };
            self.stage(now, direction, at, batch);
            each(at, batch);
        }
        self.next_ticket = batch.next_ticket;
    }

    /// Runs a batch of what a stage sent or released through the stages behind
    /// it in its direction.
    pub fn resume(&mut self, now: u64, from: &Sent, batch: &mut Batch<'_>) {
        let first = match from.direction {
            Direction::Outward => usize::from(from.stage) + 1,
            Direction::Inward => usize::from(from.stage),
        };
        self.run_from(now, from.direction, first, batch);
    }

    /// Outward, `first` is the first stage to run; inward, the number of stages
    /// to run.
    fn run_from(&mut self, now: u64, direction: Direction, first: usize, batch: &mut Batch<'_>) {
        self.select(direction, batch);
        batch.next_ticket = self.next_ticket;
        let count = self.stages.len();
        match direction {
            Direction::Outward => {
                (first..count).for_each(|at| self.stage(now, direction, at, batch))
            }
            Direction::Inward => {
                let stages = (0..first.min(count)).rev();
                stages.for_each(|at| self.stage(now, direction, at, batch));
            }
        }
        self.next_ticket = batch.next_ticket;
    }

    /// One look-up says which stages apply to a packet.
    fn select(&mut self, direction: Direction, batch: &mut Batch<'_>) {
        let always = self.always[index(direction)];
        for packet in &mut batch.packets {
            packet.applies = always;
            if self.has_filters {
                let bytes = packet.view();
                self.plan.run(bytes, bytes.len() as u32, &mut self.verdict);
                for delivery in self.verdict.deliveries() {
                    packet.applies |= 1 << delivery.tag;
                }
            }
        }
    }

    fn stage(&mut self, now: u64, direction: Direction, at: usize, batch: &mut Batch<'_>) {
        let it = &mut self.stages[at];
        let passing =
            |packet: &&Packet<'_>| packet.fate() == Fate::Pass && packet.applies >> at & 1 == 1;
        let before = batch.packets.iter().filter(passing).count();
        if before == 0 {
            return;
        }
        batch.stage = at as u8;
        self.output.stage = at as u8;
        it.counts.packets[index(direction)] += before as u64;
        let output = &mut self.output;
        match direction {
            Direction::Outward => it.stage.outward(now, batch, output),
            Direction::Inward => it.stage.inward(now, batch, output),
        }
        if batch.packets.iter().filter(passing).count() == before {
            return;
        }
        for packet in &batch.packets {
            if let Fate::Drop(reason) = packet.fate()
                && usize::from(packet.stage) == at
                && packet.applies >> at & 1 == 1
            {
                it.counts.drop(reason);
            }
        }
    }

    /// The entry of a packet that has gone through all stages and the base, in
    /// this direction; `None` if the next frames of its flow have to come to the
    /// stages, or if a filter reads a field that the entry's key does not have.
    pub fn compose(&self, trace: &Trace, direction: Direction) -> Option<Composed> {
        let composed = Composed::of(trace, direction)?;
        let always = self.always[index(direction)];
        for (at, it) in self.stages.iter().enumerate() {
            if let Some(program) = &it.filter
                && always >> at & 1 == 0
            {
                key_only::verdict(program, &composed.flow)?;
            }
        }
        Some(composed)
    }

    /// Whether a frame from the inside goes out through the chain and in again,
    /// before the base sees it.
    pub fn turns(&self, frame: &[u8]) -> bool {
        let turns = |endpoints| self.stages.iter().any(|it| it.stage.turns(&endpoints));
        Endpoints::of(frame).is_some_and(turns)
    }

    /// Has the stages process what is due.
    pub fn poll(&mut self, now: u64) {
        for (at, it) in self.stages.iter_mut().enumerate() {
            self.output.stage = at as u8;
            it.stage.poll(now, &mut self.output);
        }
    }

    /// The next time for [`poll`](Self::poll): 0 while frames wait in
    /// [`take_sent`](Self::take_sent); `None` if nothing is due.
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.output.sent.is_empty() {
            return Some(0);
        }
        let due = self.stages.iter().map(|it| it.stage.next_deadline());
        due.flatten().min()
    }

    /// The frames that the stages have sent or released since the last call, in order. The caller
    /// passes them on by [`resume`](Self::resume).
    pub fn take_sent(&mut self) -> Vec<Sent> {
        self.output.take()
    }

    /// Takes back the memory of a frame that a stage made and that was sent.
    pub fn recycle(&mut self, frame: Vec<u8>) {
        self.output.recycle(frame);
    }

    /// Informs the stages of an entry that it was last used at `used`; returns
    /// whether it still holds.
    pub fn used(&mut self, entry: &Composed, used: u64) -> bool {
        let stages = self.stages.iter_mut().zip(entry.cookies);
        // Every stage hears of it.
        stages.fold(true, |holds, (it, cookie)| {
            (cookie == 0 || it.stage.used(cookie, entry.direction, used)) && holds
        })
    }

    /// The next stage and cookie whose entries the caller ends before it
    /// processes another frame.
    pub fn withdrawn(&mut self) -> Option<(usize, u64)> {
        let mut stages = self.stages.iter_mut().enumerate();
        stages.find_map(|(at, it)| Some((at, it.stage.withdrawn()?)))
    }

    /// The next line of a stage's log, with the number of the stage.
    pub fn next_line(&mut self) -> Option<(usize, String)> {
        let mut stages = self.stages.iter_mut().enumerate();
        stages.find_map(|(at, it)| Some((at, it.stage.next_line()?)))
    }

    /// The state of each stage that has one, as bytes for [`restore`](Self::restore).
    pub fn save(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for it in &self.stages {
            if let Some(bytes) = it.stage.save() {
                let kind = it.stage.kind();
                out.push(kind.len() as u8);
                out.extend_from_slice(kind.as_bytes());
                out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
                out.extend_from_slice(&bytes);
            }
        }
        out
    }

    /// Has the stages go on from what an earlier chain has [saved](Self::save), before the first
    /// packet: the first stage of a kind from the first state of that kind, and so on. Returns
    /// the number of each stage that had a state, and the result.
    pub fn restore(
        &mut self,
        now: u64,
        mut saved: &[u8],
    ) -> Vec<(usize, Result<Restored, RestoreError>)> {
        let mut done: Vec<(usize, Result<Restored, RestoreError>)> = Vec::new();
        while let Some((kind, state, rest)) = saved_stage(saved) {
            saved = rest;
            let is_next = |(at, it): &(usize, &mut FilteredStage)| {
                it.stage.kind().as_bytes() == kind && done.iter().all(|(other, _)| other != at)
            };
            if let Some((at, it)) = self.stages.iter_mut().enumerate().find(is_next) {
                done.push((at, it.stage.restore(now, state)));
            }
        }
        done
    }

    /// The stages and what they have counted, in order.
    pub fn stages(&self) -> impl Iterator<Item = (&dyn Stage, &StageCounts)> {
        self.stages.iter().map(|it| (&*it.stage, &it.counts))
    }

    /// Whether frames may pass without the chain when the process has died.
    pub fn may_bypass(&self) -> bool {
        self.stages.iter().all(|it| it.stage.may_bypass())
    }
}

/// The kind and the state of the first stage, and the rest.
fn saved_stage(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (len, bytes) = bytes.split_first()?;
    let (kind, bytes) = bytes.split_at_checked(usize::from(*len))?;
    let (len, bytes) = bytes.split_first_chunk()?;
    let len = usize::try_from(u64::from_be_bytes(*len)).ok()?;
    let (state, rest) = bytes.split_at_checked(len)?;
    Some((kind, state, rest))
}

impl StageCounts {
    fn drop(&mut self, reason: &'static str) {
        let reason = match self.drops.len() {
            ..REASONS_MAX => reason,
            _ if self.drops.iter().any(|(known, _)| *known == reason) => reason,
            _ => "other",
        };
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.drops.push((reason, 1)),
        }
    }
}
