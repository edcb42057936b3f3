//! Making freshly written code what the processors run.
//!
//! Where a core has fetched what was there before, it may go on running that
//! until it does something serialising: on x86-64 because code is written by
//! another address than it is run by (Intel SDM 3A, 9.1.3), on aarch64 in any
//! case (Arm ARM, B2.4.4). `membarrier(2)` makes every core that runs a thread
//! of this process do that, and one that runs none does it on its way to a
//! thread.

use rustix::thread::{MembarrierCommand, membarrier};

/// Asks for [`cores`] to be possible; false where the kernel cannot (before
/// 4.16, or where a sandbox forbids it). A child of `fork(2)` asks anew.
pub(super) fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore).is_ok()
}

/// Makes every core forget instructions that it has fetched already; false if
/// that failed.
pub(super) fn cores() -> bool {
    membarrier(MembarrierCommand::PrivateExpeditedSyncCore).is_ok()
}

/// Whether memory that no code was in before needs [`cores`] too.
///
/// On x86-64 it does not: caches are coherent, nobody had a reason to fetch
/// from there, and whoever gets the code by any synchronisation fetches what
/// was written.
pub(super) const FRESH_TOO: bool = cfg!(target_arch = "aarch64");

/// Makes the caches coherent for `code`, which was just written.
#[cfg(target_arch = "aarch64")]
pub(super) fn caches(code: &[u8]) {
    // By address: cleans the data cache, invalidates the instruction cache.
    dynasmrt::cache_control::synchronize_icache(code);
}

/// The same where caches always are.
#[cfg(not(target_arch = "aarch64"))]
pub(super) fn caches(_code: &[u8]) {}
