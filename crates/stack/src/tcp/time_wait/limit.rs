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
pub(in crate::tcp) struct TimeWaitQueue {
    /// PCBs that wait, the longest first; also some that are gone.
    order: VecDeque<Handle>,
    /// All that wait, records included.
    count: usize,
    max: usize,
    /// How many had to go before their time.
    pub(in crate::tcp) evicted: u64,
}

impl Default for TimeWaitQueue {
    fn default() -> TimeWaitQueue {
        TimeWaitQueue {
            order: VecDeque::new(),
            count: 0,
            max: TIME_WAIT_MAX,
            evicted: 0,
        }
    }
}

impl TimeWaitQueue {
    /// One that waited is over.
    pub(in crate::tcp) fn leave(&mut self) {
        self.count -= 1;
    }

    /// One waits as a record now.
    pub(in crate::tcp) fn became_minisock(&mut self, name: Handle) {
        self.order.pop_back_if(|last| *last == name);
    }
}

impl Tcp {
    pub(crate) fn limit_time_wait(&mut self, now_ns: u64, count: usize) {
        self.time_wait.max = count;
        self.evict_time_waits(now_ns);
    }

    /// Connections that were let go before their time.
    pub(crate) fn time_wait_evicted(&self) -> u64 {
        self.time_wait.evicted
    }

    /// One more waits. Who has waited longest goes for it, if there are too many:
    /// the fewest of its segments are still on their way.
    pub(in crate::tcp) fn enter_time_wait(&mut self, now_ns: u64, name: Handle) {
        self.time_wait.count += 1;
        self.enqueue_time_wait(name);
        self.evict_time_waits(now_ns);
    }

    /// A PCB waits from now on.
    pub(in crate::tcp) fn enqueue_time_wait(&mut self, name: Handle) {
        self.time_wait.order.push_back(name);
        let TimeWaitQueue { order, count, .. } = &mut self.time_wait;
        if order.len() > 2 * *count + 64 {
            let pcbs = &self.pcbs;
            order.retain(|name| pcbs.get(*name).is_some_and(|pcb| pcb.in_table));
        }
    }

    fn evict_time_waits(&mut self, now_ns: u64) {
        while self.time_wait.count > self.time_wait.max {
            let pcb = self.oldest_pcb();
            let ends_ns = pcb.map_or(u64::MAX, |(at_ns, _)| at_ns);
            let record = self.minisocks.first();
            match (record.filter(|(at_ns, _)| *at_ns <= ends_ns), pcb) {
                (Some((_, name)), _) => self.remove_minisock(name),
                (None, Some((_, name))) => {
                    self.time_wait.order.pop_front();
                    if let Some(pcb) = self.pcbs.get_mut(name) {
                        pcb.end(None);
                    }
                    self.after_event(now_ns, name);
                }
                (None, None) => return,
            }
            self.time_wait.evicted += 1;
        }
    }

    /// The PCB that has waited longest, and when its time ends.
    fn oldest_pcb(&mut self) -> Option<(u64, Handle)> {
        while let Some(&name) = self.time_wait.order.front() {
            if let Some(pcb) = self.pcbs.get(name).filter(|pcb| pcb.in_table) {
                return Some((
                    as_ns(pcb.timers.keepalive_or_time_wait_ns).unwrap_or(u64::MAX),
                    name,
                ));
            }
            self.time_wait.order.pop_front();
        }
        None
    }
}
