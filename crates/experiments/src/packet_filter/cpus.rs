//! CPU affinity: the source of frames runs on one CPU, and the receivers on
//! another, like the single CPU of 1987.

use super::MeasureError;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two CPUs; the same one twice where there is one.
#[derive(Debug)]
pub(super) struct Cpus {
    original: CpuSet,
    source: CpuSet,
    receiver: CpuSet,
}

impl Cpus {
    pub(super) fn new() -> Result<Cpus, MeasureError> {
        let original = sched_getaffinity(None).map_err(MeasureError::Cpu)?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| original.is_set(*cpu));
        let one = |cpu| {
            let mut set = CpuSet::new();
            set.set(cpu);
            set
        };
        let source = usable.next().unwrap_or(0);
        let receiver = usable.next().unwrap_or(source);
        Ok(Cpus {
            original,
            source: one(source),
            receiver: one(receiver),
        })
    }

    /// Runs `f`, and the threads it starts, on the source's CPU; then
    /// continues, with all later threads, on the receiver's CPU.
    pub(super) fn start_source<T>(&self, f: impl FnOnce() -> T) -> Result<T, MeasureError> {
        sched_setaffinity(None, &self.source).map_err(MeasureError::Cpu)?;
        let made = f();
        sched_setaffinity(None, &self.receiver).map_err(MeasureError::Cpu)?;
        Ok(made)
    }

    /// Goes on wherever there is room.
    pub(super) fn free(&self) -> Result<(), MeasureError> {
        sched_setaffinity(None, &self.original).map_err(MeasureError::Cpu)
    }
}
