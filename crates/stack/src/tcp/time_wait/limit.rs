//! The limit on connections that only wait: in TIME-WAIT, or in FIN-WAIT-2 without an
//! application. The separate limit reserves slots and memory for connections in use.

use crate::deadline::as_ns;
use crate::slab::Handle;
use crate::tcp::Tcp;
use crate::tcp::connections::CONNECTIONS_MAX;
use std::collections::VecDeque;

/// Default limit on connections in TIME-WAIT, or in FIN-WAIT-2 without an application: see
/// [`Stack::tcp_limit_time_wait`](crate::Stack::tcp_limit_time_wait). Linux has the same at
/// most (`tcp_max_tw_buckets`).
pub const TIME_WAIT_MAX: usize = CONNECTIONS_MAX / 8;

/// The connections that only wait, in order.
pub(in crate::tcp) struct TimeWaitQueue {
    /// Waiting PCBs, the oldest first; some may already be gone.
    order: VecDeque<Handle>,
    /// Number of all waiting connections, minisocks included.
    count: usize,
    max: usize,
    /// Number of connections evicted early.
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
    /// Records that a waiting connection is over.
    pub(in crate::tcp) fn leave(&mut self) {
        self.count -= 1;
    }

    /// Records that a waiting PCB became a minisock.
    pub(in crate::tcp) fn became_minisock(&mut self, name: Handle) {
        self.order.pop_back_if(|last| *last == name);
    }
}

impl Tcp {
    pub(crate) fn limit_time_wait(&mut self, now_ns: u64, count: usize) {
        self.time_wait.max = count;
        self.evict_time_waits(now_ns);
    }

    /// Number of connections evicted early.
    pub(crate) fn time_wait_evicted(&self) -> u64 {
        self.time_wait.evicted
    }

    /// Adds a waiting connection. Above the limit the oldest one is evicted, since the fewest
    /// of its segments can still be in the network.
    pub(in crate::tcp) fn enter_time_wait(&mut self, now_ns: u64, name: Handle) {
        self.time_wait.count += 1;
        self.enqueue_time_wait(name);
        self.evict_time_waits(now_ns);
    }

    /// Adds a PCB that waits from now on.
    pub(in crate::tcp) fn enqueue_time_wait(&mut self, name: Handle) {
        self.time_wait.order.push_back(name);
        let TimeWaitQueue { order, count, .. } = &mut self.time_wait;
        if order.len() > 2 * *count + 64 {
            let pcbs = &self.pcbs;
            order.retain(|name| pcbs.get(*name).is_some_and(|pcb| pcb.listed.in_table));
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
            if let Some(pcb) = self.pcbs.get(name).filter(|pcb| pcb.listed.in_table) {
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
