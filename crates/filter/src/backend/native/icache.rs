//! Coherence of instruction fetch with freshly written code.
//!
//! A core that has fetched the previous contents may execute them until it
//! serialises. On x86-64 that is because the code is written through another address
//! (Intel SDM 3A, 9.1.3); on aarch64 it always holds (Arm ARM, B2.4.4). `membarrier(2)`
//! serialises every core that runs a thread of this process; any other core serialises
//! before it next runs one.

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for [`cores`]; false if the kernel cannot (before 4.16, or in
/// a sandbox). A child of `fork(2)` registers anew.
pub(super) fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore).is_ok()
}

/// Serialises every core, which discards fetched instructions; false on failure.
pub(super) fn cores() -> bool {
    membarrier(MembarrierCommand::PrivateExpeditedSyncCore).is_ok()
}

/// Whether memory that never held code needs [`cores`] too.
///
/// x86-64 does not: caches are coherent, and no core had a reason to fetch from there.
/// A thread that receives the code through any synchronisation fetches the written
/// bytes.
pub(super) const FRESH_TOO: bool = cfg!(target_arch = "aarch64");

/// Makes the instruction cache coherent with `code`, which was just written.
#[cfg(target_arch = "aarch64")]
pub(super) fn caches(code: &[u8]) {
    // Cleans the data cache and invalidates the instruction cache by address.
    dynasmrt::cache_control::synchronize_icache(code);
}

/// Does nothing: the caches are coherent.
#[cfg(not(target_arch = "aarch64"))]
pub(super) fn caches(_code: &[u8]) {}
