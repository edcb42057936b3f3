//! Connections that only wait for their time to end: in TIME-WAIT, or in
//! FIN-WAIT-2 when no application has them any more. A limit of their own leaves
//! places, and memory, to those in use.

use crate::deadline::as_ns;
use crate::slab::Handle;
use crate::tcp::Tcp;
use crate::tcp::connections::CONNECTIONS_MAX;
use std::collections::VecDeque;

/// Connections of one stack in TIME-WAIT, or in FIN-WAIT-2 without an
/// application, unless [`Stack::tcp_limit_time_wait`](crate::Stack::tcp_limit_time_wait)
/// says otherwise: as many as Linux has at most (`tcp_max_tw_buckets`).
pub const TIME_WAIT_MAX: usize = CONNECTIONS_MAX / 8;

/// See the module.
pub(in crate::tcp) struct Quiet {
    /// PCBs that wait, the longest first; also some that are gone.
    order: VecDeque<Handle>,
    /// All that wait, records included.
    count: usize,
    max: usize,
    /// How many had to go before their time.
    pub(in crate::tcp) cut: u64,
}

impl Default for Quiet {
    fn default() -> Quiet {
        Quiet {
            order: VecDeque::new(),
            count: 0,
            max: TIME_WAIT_MAX,
            cut: 0,
        }
    }
}

impl Quiet {
    /// One that waited is over.
    pub(in crate::tcp) fn over(&mut self) {
        self.count -= 1;
    }

    /// One waits as a record now.
    pub(in crate::tcp) fn passes_on(&mut self, name: Handle) {
        self.order.pop_back_if(|last| *last == name);
    }
}

impl Tcp {
    pub(crate) fn limit_time_wait(&mut self, now_ns: u64, count: usize) {
        self.quiet.max = count;
        self.cut_waits(now_ns);
    }

    /// Connections that were let go before their time.
    pub(crate) fn waits_cut(&self) -> u64 {
        self.quiet.cut
    }

    /// One more waits. Who has waited longest goes for it, if there are too many:
    /// the fewest of its segments are still on their way.
    pub(in crate::tcp) fn waits(&mut self, now_ns: u64, name: Handle) {
        self.quiet.count += 1;
        self.line_up(name);
        self.cut_waits(now_ns);
    }

    /// A PCB waits from now on.
    pub(in crate::tcp) fn line_up(&mut self, name: Handle) {
        self.quiet.order.push_back(name);
        let Quiet { order, count, .. } = &mut self.quiet;
        if order.len() > 2 * *count + 64 {
            let pcbs = &self.pcbs;
            order.retain(|name| pcbs.get(*name).is_some_and(|pcb| pcb.is_known));
        }
    }

    fn cut_waits(&mut self, now_ns: u64) {
        while self.quiet.count > self.quiet.max {
            let pcb = self.oldest_pcb();
            let ends_ns = pcb.map_or(u64::MAX, |(at_ns, _)| at_ns);
            let record = self.waiting.first();
            match (record.filter(|(at_ns, _)| *at_ns <= ends_ns), pcb) {
                (Some((_, name)), _) => self.end_wait(name),
                (None, Some((_, name))) => {
                    self.quiet.order.pop_front();
                    if let Some(pcb) = self.pcbs.get_mut(name) {
                        pcb.end(None);
                    }
                    self.settle(now_ns, name);
                }
                (None, None) => return,
            }
            self.quiet.cut += 1;
        }
    }

    /// The PCB that has waited longest, and when its time ends.
    fn oldest_pcb(&mut self) -> Option<(u64, Handle)> {
        while let Some(&name) = self.quiet.order.front() {
            if let Some(pcb) = self.pcbs.get(name).filter(|pcb| pcb.is_known) {
                return Some((as_ns(pcb.timers.idle_ns).unwrap_or(u64::MAX), name));
            }
            self.quiet.order.pop_front();
        }
        None
    }
}
