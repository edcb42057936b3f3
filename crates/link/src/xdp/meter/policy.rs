//! Policies of rows, as the process writes them.

use super::error::MeterError;
use super::layout::{at, lease, policy as entry};
use super::{Meter, Row};
use rustix::time::{ClockId, clock_getres};
use std::sync::atomic::Ordering;
use weir_meter::policy::{Policy, PolicyAction, RateLimit};

/// The coarse clock is read where a meter's tolerance is at least this many of its ticks: a bucket that
/// is full within a tick loses packets in the rest of the tick (bench `meter_kernel -- policing`).
const COARSE_TICKS_MIN: u64 = 4;

/// Most bytes that a CPU leases: what is left of them after a frame takes 16 bits.
const QUANTUM_BYTES_MAX: u64 = 1 << 16;
/// All CPUs' leases together are at most this part of the burst.
const LEASED_PART: u64 = 16;

impl Meter {
    /// Whether rows may have policies.
    pub fn polices(&self) -> bool {
        self.geometry.polices
    }

    /// Sets the interface to which frames for the portal go; without one they are dropped.
    pub fn set_portal(&self, ifindex: Option<u32>) {
        self.set_word(at::PORTAL, ifindex.unwrap_or(0).into());
    }

    /// Sets the policy of a row. A row that `is_new` to its session begins with full buckets and the
    /// whole quota; another one keeps what is left, and gains or loses by how much the quota has
    /// changed. Another rate is in force at once, but for a frame that a program has begun: what CPUs
    /// have leased by the former one is given up.
    ///
    /// # Errors
    /// If the meter was made without policies, or has no such row.
    pub fn set_policy(
        &self,
        row: Row,
        policy: Option<&Policy>,
        is_new: bool,
    ) -> Result<(), MeterError> {
        let subscribers = self.geometry.subscribers;
        if row >= subscribers {
            return Err(MeterError::NoSuchRow { row, subscribers });
        }
        if !self.geometry.polices {
            return match policy {
                None => Ok(()),
                Some(_) => Err(MeterError::NoPolicies),
            };
        }
        let word = |at: i16| {
            let word = self.policies.u64(row as usize, at as usize);
            word.expect("a word of the entry")
        };
        let granted = self.tags.u64(row as usize, 8).expect("a word of the tag");
        // The policy is asked while its words change.
        self.set_leases(row, [lease::NONE; 2]);
        if is_new {
            // No frame is policed meanwhile.
            word(entry::FLAGS).store(0, Ordering::Release);
            for meter in 0..2 {
                let at = meter * entry::METER_BYTES + entry::TAT;
                word(at).store(0, Ordering::Relaxed);
            }
            self.end_leases(row, [true; 2]);
            granted.store(0, Ordering::Relaxed);
        }
        let Some(policy) = policy else {
            word(entry::FLAGS).store(0, Ordering::Release);
            granted.store(0, Ordering::Relaxed);
            self.set_leases(row, [lease::ALL; 2]);
            return Ok(());
        };
        let mut is_other = [false; 2];
        for (limit, meter) in policy.rates.iter().zip(0..) {
            if let Some(limit) = limit {
                let base = meter * entry::METER_BYTES;
                let cost = limit.cost_of_byte() | (self.quantum(limit) << entry::COST_BITS);
                let tolerance = limit.tolerance_ns();
                for (at, value) in [(entry::COST, cost), (entry::TOLERANCE, tolerance)] {
                    let before = word(base + at).swap(value, Ordering::Relaxed);
                    is_other[meter as usize] |= before != value;
                }
            }
        }
        if let Some(quota) = policy.quota_bytes {
            let before = granted.swap(quota, Ordering::Relaxed);
            if before == 0 {
                word(entry::QUOTA).store(quota, Ordering::Relaxed);
            } else {
                word(entry::QUOTA).fetch_add(quota.wrapping_sub(before), Ordering::Relaxed);
            }
        }
        word(entry::FLAGS).store(flags(policy), Ordering::Release);
        // Each event of a session sets its policy: the same one leaves the leases, which are charged. A
        // program that read a lease before its kind changed has written it by now, unless it was
        // interrupted in between.
        self.end_leases(row, is_other);
        let kind = |limit: Option<RateLimit>| match (limit, policy.quota_bytes) {
            (_, Some(_)) => lease::NONE,
            (Some(_), None) => lease::SOME,
            (None, None) => lease::ALL,
        };
        self.set_leases(row, policy.rates.map(kind));
        Ok(())
    }

    /// Bytes that are left of a row's quota, less than 0 if its last frame had more than was left;
    /// `None` if it has no quota.
    pub fn quota_left(&self, row: Row) -> Option<i64> {
        let word = |at: i16| self.policies.load_u64(row as usize, at as usize);
        let has = word(entry::FLAGS)? & entry::HAS_QUOTA as u64 != 0;
        has.then(|| word(entry::QUOTA))
            .flatten()
            .map(u64::cast_signed)
    }

    fn quantum(&self, limit: &RateLimit) -> u64 {
        let cpus = u64::from(self.geometry.lease_cpus.max(1));
        (u64::from(limit.burst_bytes) / LEASED_PART / cpus).min(QUANTUM_BYTES_MAX)
    }

    /// Ends the leases of the row's earlier session or rate, up and down.
    fn end_leases(&self, row: Row, ends: [bool; 2]) {
        self.each_lease(row, |index, direction| {
            if ends[direction]
                && let Some(word) = self.leases.u32(index, lease::BYTES as usize)
            {
                word.store(0, Ordering::Relaxed);
            }
        });
    }

    /// Sets which kind of lease the row has, up and down, and ends the notes of frames that were over.
    fn set_leases(&self, row: Row, kinds: [i32; 2]) {
        self.each_lease(row, |index, direction| {
            if let Some(note) = self.leases.u64(index, lease::NOTE as usize) {
                note.store(0, Ordering::Relaxed);
            }
            if let Some(word) = self.leases.u32(index, lease::KIND as usize) {
                word.store(kinds[direction].cast_unsigned(), Ordering::Release);
            }
        });
    }

    /// Calls `with` with the number of each lease of the row, and its direction.
    fn each_lease(&self, row: Row, mut with: impl FnMut(usize, usize)) {
        let rows = self.geometry.subscribers as usize;
        for number in 0..2 * self.geometry.lease_cpus as usize {
            with(number * rows + row as usize, number % 2);
        }
    }
}

/// The flags of a policy, without a rate and a quota 0.
fn flags(policy: &Policy) -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let tick_ns = tick.tv_nsec.cast_unsigned().max(1);
    let mut flags = 0;
    for (limit, direction) in policy.rates.iter().zip(0..) {
        let Some(limit) = limit else { continue };
        flags |= entry::HAS_RATE << direction;
        if limit.tolerance_ns() < COARSE_TICKS_MIN * tick_ns {
            flags |= entry::IS_EXACT << direction;
        }
    }
    if policy.quota_bytes.is_some() {
        flags |= entry::HAS_QUOTA;
    }
    if flags == 0 {
        return 0;
    }
    flags |= action(policy.over) << entry::OVER_SHIFT;
    flags |= action(policy.spent) << entry::SPENT_SHIFT;
    u64::from(flags.cast_unsigned())
}

fn action(action: PolicyAction) -> i32 {
    match action {
        PolicyAction::Drop => entry::DROP,
        PolicyAction::Mark(code_point) => {
            entry::MARK | (i32::from(code_point & 63) << entry::CODE_POINT_SHIFT)
        }
        PolicyAction::Portal => entry::PORTAL,
    }
}
