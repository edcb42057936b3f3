//! Waiting until programs that run now have ended.
#![allow(unsafe_code)] // A system call.

use super::{Map, MapSpec};
use std::io;

/// `MEMBARRIER_CMD_GLOBAL` of `linux/membarrier.h`: waits for a grace period of RCU.
const MEMBARRIER_GLOBAL: libc::c_int = 1;

/// Waits until every program that ran when this was called has ended: 8 to 25 ms, more under load.
/// Programs that begin later see all that was stored before.
///
/// # Errors
/// When the kernel offers neither way to wait.
pub(crate) fn grace_period() -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) };
    if result == 0 {
        return Ok(());
    }
    // With `nohz_full` CPUs there is none; an update of a map of maps waits as well.
    let inner = Map::create("weir_grace_in", &MapSpec::array(8, 1)).map_err(io::Error::other)?;
    let outer = Map::create("weir_grace", &MapSpec::array_of_maps(1, &inner));
    let outer = outer.map_err(io::Error::other)?;
    outer.put(&[0; 4], &inner).map_err(io::Error::other)
}
