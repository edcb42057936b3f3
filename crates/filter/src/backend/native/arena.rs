//! Where code lives: one range of memory, mapped twice.
//!
//! ```text
//!            ┌──────────┬─────┬───────────────────┬───── … ─┐  one memfd
//!            │ filter A │free │     filter B      │  free   │
//!            └──────────┴─────┴───────────────────┴───── … ─┘
//!  read+execute ▲ runs here           read+write ▲ written here
//! ```
//!
//! No mapping is ever writable and executable at once, and no protection is
//! ever changed, so that a bind costs a copy and no system call (on aarch64
//! one or two, see [`publish`]). Pages are filled with many small programs,
//! each on cache lines of its own. The kernel gives pages on first use; what
//! is freed is kept for the next program, filled with instructions that trap.
//!
//! Compiling and dropping take a lock; running takes none.
//!
//! A translating emulator (QEMU's user mode on x86-64 code, or before 8.1) may
//! not notice that memory it has translated changed through the other mapping.
//! So a new arena tries it out, and where that fails uses no memory twice.

#![expect(unsafe_code, reason = "owns mappings and the pointers into them")]

use super::free_list::FreeList;
use super::{ARENA_BYTES, Arch, NativeError, assemble, call};
use crate::ir::Program;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, getpid};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What programs are aligned to and occupy multiples of: a cache line.
const GRANULE: usize = 64;

/// An instruction that traps, as it repeats in memory: `int3` on x86-64;
/// zeros are `udf` on aarch64.
const TRAP: u8 = if cfg!(target_arch = "x86_64") {
    0xcc
} else {
    0
};

static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Installed code; dropping it returns the memory.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is only read (and run) through this pointer, until the
// drop; who else writes to the arena writes to other granules.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Copies `code` into the arena.
    pub(super) fn install(code: &[u8]) -> Result<Memory, NativeError> {
        let mut guard = lock();
        let pid = getpid();
        // A child made by fork(2) shares its parent's pages: it leaves them
        // to the parent and gets an arena of its own.
        if guard.as_ref().is_none_or(|arena| arena.owner != pid) {
            let mut arena = Arena::new(ARENA_BYTES, pid)?;
            arena.try_reuse()?;
            std::mem::forget(guard.replace(arena));
        }
        match &mut *guard {
            Some(arena) => arena.install(code),
            None => unreachable!("it was made above"),
        }
    }

    /// The first instruction.
    pub(super) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Bytes of code.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut guard = lock();
        if let Some(arena) = &mut *guard
            && arena.holds(self)
            && arena.owner == getpid()
        {
            arena.free(self);
        }
    }
}

fn lock() -> MutexGuard<'static, Option<Arena>> {
    // Nothing panics while the lock is held; if it did, the lists are whole.
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of the arena that hold code now.
pub(super) fn bytes_used() -> usize {
    lock()
        .as_ref()
        .map_or(0, |arena| arena.free.used() as usize * GRANULE)
}

#[derive(Debug)]
struct Arena {
    /// The read-write mapping.
    write: NonNull<u8>,
    /// The read-execute mapping of the same pages.
    run: NonNull<u8>,
    len: usize,
    free: FreeList,
    /// Whether freed memory is used again.
    reuses: bool,
    owner: Pid,
}

// SAFETY: the mappings belong to the process, not to a thread.
unsafe impl Send for Arena {}

impl Arena {
    fn new(len: usize, owner: Pid) -> Result<Arena, NativeError> {
        // Kernels from 6.3 on want to be told that it will be run; earlier
        // ones refuse the flag.
        let name = c"weir filters";
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
            .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC))?;
        ftruncate(&fd, len as u64)?;
        let map = |access: ProtFlags| -> Result<NonNull<u8>, NativeError> {
            // SAFETY: the kernel chooses the address, so no mapping in use is
            // replaced.
            let start = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, &fd, 0)? };
            Ok(NonNull::new(start.cast()).expect("a mapping is not at zero"))
        };
        let write = map(ProtFlags::READ | ProtFlags::WRITE)?;
        let run = map(ProtFlags::READ | ProtFlags::EXEC).inspect_err(|_| {
            // SAFETY: mapped above, and nothing points into it yet.
            let _ = unsafe { munmap(write.as_ptr().cast(), len) };
        })?;
        // The descriptor closes here; the mappings stay.
        Ok(Arena {
            write,
            run,
            len,
            free: FreeList::new((len / GRANULE) as u32),
            reuses: true,
            owner,
        })
    }

    /// Finds out whether code that replaces other code is what runs.
    fn try_reuse(&mut self) -> Result<(), NativeError> {
        let arch = Arch::host().ok_or(NativeError::Unsupported)?;
        for verdict in [1, 2] {
            let memory = self.install(&assemble(&Program::constant(verdict), arch)?)?;
            // SAFETY: the code of a valid program, just installed.
            let found = unsafe { call(memory.start(), &[], 0) };
            self.reuses &= found == verdict;
            self.free(&memory);
            // A drop would look for it in the global arena.
            std::mem::forget(memory);
        }
        Ok(())
    }

    fn holds(&self, memory: &Memory) -> bool {
        let start = memory.start.addr().get();
        (self.run.addr().get()..self.run.addr().get() + self.len).contains(&start)
    }

    fn install(&mut self, code: &[u8]) -> Result<Memory, NativeError> {
        let granules = granules(code.len());
        let place = self.free.take(granules).ok_or(NativeError::ArenaFull {
            wanted: code.len(),
            used: self.free.used() as usize * GRANULE,
            max: self.len,
        })?;
        let offset = place as usize * GRANULE;
        // SAFETY: the free list gave these granules to nobody else, they lie
        // inside both mappings, and `code` is not in the arena.
        let start = unsafe {
            let target = self.write.add(offset);
            target.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
            self.run.add(offset)
        };
        let memory = Memory {
            start,
            len: code.len(),
        };
        publish(&memory);
        Ok(memory)
    }

    /// Returns what `install` gave.
    fn free(&mut self, memory: &Memory) {
        let offset = memory.start.addr().get() - self.run.addr().get();
        let granules = granules(memory.len);
        // SAFETY: the granules belong to `memory`, which is being dropped: no
        // safe code can run it any more.
        unsafe {
            self.write
                .add(offset)
                .write_bytes(TRAP, granules as usize * GRANULE);
        }
        if self.reuses {
            self.free.give((offset / GRANULE) as u32, granules);
        } else {
            self.free.retire(granules);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for mapping in [self.write, self.run] {
            // SAFETY: made by `new`, dropped once; only tests drop an arena,
            // after all its code.
            let _ = unsafe { munmap(mapping.as_ptr().cast(), self.len) };
        }
    }
}

fn granules(bytes: usize) -> u32 {
    bytes.div_ceil(GRANULE) as u32
}

/// Makes freshly written code visible to instruction fetch, on all cores.
///
/// On x86-64 caches are coherent, and whoever gets the code by any
/// synchronisation fetches what was written.
#[cfg(not(target_arch = "aarch64"))]
fn publish(_memory: &Memory) {}

/// Makes freshly written code visible to instruction fetch, on all cores.
///
/// On aarch64 the data cache is cleaned and the instruction cache invalidated
/// by address; `membarrier(2)` then makes every core of the process forget
/// instructions that it has fetched already (Arm ARM, B2.4.4).
#[cfg(target_arch = "aarch64")]
fn publish(memory: &Memory) {
    use rustix::thread::{MembarrierCommand, membarrier};

    // SAFETY: the code was just written and nobody writes to it again.
    let code = unsafe { std::slice::from_raw_parts(memory.start(), memory.len) };
    dynasmrt::cache_control::synchronize_icache(code);
    // Kernels before 4.16 lack the barrier. Registering again is cheap.
    let _ = membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)
        .and_then(|()| membarrier(MembarrierCommand::PrivateExpeditedSyncCore));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(len: usize) -> Arena {
        Arena::new(len, getpid()).unwrap()
    }

    fn bytes(memory: &Memory) -> &[u8] {
        // SAFETY: installed code is initialised memory of this length.
        unsafe { std::slice::from_raw_parts(memory.start(), memory.len) }
    }

    /// `Memory` of a test's own arena must not go back to the global one.
    fn release(arena: &mut Arena, memory: Memory) {
        arena.free(&memory);
        std::mem::forget(memory);
    }

    #[test]
    fn programs_lie_packed_on_lines_of_their_own_and_keep_their_bytes() {
        let mut arena = arena(1 << 16);
        let codes: Vec<Vec<u8>> = (1..200_u8).map(|n| vec![n; usize::from(n)]).collect();
        let memories: Vec<Memory> = codes
            .iter()
            .map(|code| arena.install(code).unwrap())
            .collect();
        for (code, memory) in codes.iter().zip(&memories) {
            assert_eq!(bytes(memory), code);
            assert_eq!(memory.start().addr() % GRANULE, 0);
        }
        let granules: u32 = codes.iter().map(|code| granules(code.len())).sum();
        assert_eq!(arena.free.used(), granules);
        for memory in memories {
            release(&mut arena, memory);
        }
        assert_eq!(arena.free.used(), 0);
    }

    #[test]
    fn freed_memory_traps_and_is_used_again() {
        let mut arena = arena(1 << 16);
        let first = arena.install(&[1; 100]).unwrap();
        let start = first.start();
        release(&mut arena, first);
        let second = arena.install(&[2; 65]).unwrap();
        assert_eq!(second.start(), start);
        assert_eq!(bytes(&second), [2; 65]);
        // SAFETY: inside the arena's mapping.
        let rest = unsafe { std::slice::from_raw_parts(start.add(65), 63) };
        assert_eq!(rest, [TRAP; 63]);
        std::mem::forget(second);
    }

    #[test]
    fn a_full_arena_says_so_and_recovers() {
        let mut arena = arena(1 << 12);
        let mut memories: Vec<Memory> = (0..64)
            .map(|n| arena.install(&[n; GRANULE]).unwrap())
            .collect();
        let error = arena.install(&[0]).unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
        release(&mut arena, memories.swap_remove(17));
        let memory = arena.install(&[9; GRANULE]).unwrap();
        assert_eq!(bytes(&memory), [9; GRANULE]);
        memories.push(memory);
        for memory in memories {
            release(&mut arena, memory);
        }
        assert!(arena.install(&[0; 1 << 12]).is_ok_and(|memory| {
            std::mem::forget(memory);
            true
        }));
    }

    #[test]
    fn no_mapping_of_the_arena_is_writable_and_executable() {
        let arena = arena(1 << 16);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for (start, want) in [(arena.write, "rw-s"), (arena.run, "r-xs")] {
            let row = format!("{:x}-", start.addr());
            let line = maps.lines().find(|line| line.starts_with(&row));
            let access = line.and_then(|line| line.split(' ').nth(1));
            assert_eq!(access, Some(want), "{maps}");
        }
    }
}
