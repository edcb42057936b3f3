//! Executable memory: one memory file, mapped twice.
//!
//! ```text
//!            ┌──────────┬─────┬───────────────────┬───── … ─┐  one memfd
//!            │ filter A │free │     filter B      │  free   │
//!            └──────────┴─────┴───────────────────┴───── … ─┘
//!  read+execute ▲ runs here           read+write ▲ written here
//! ```
//!
//! No mapping is ever writable and executable at once, and no protection is ever
//! changed. Pages hold many small programs, each on cache lines of its own. Freed
//! memory is filled with trap instructions and reused for the next program. So a bind
//! costs a copy, and system calls only in two cases:
//!
//! - one call to synchronise all cores, if the code replaces other code, and on
//!   aarch64 always (`icache.rs`);
//! - one call for pages, every 64 KiB.
//!
//! Pages are allocated before they are written, so that a bind fails if memory is
//! short. Otherwise the first write to a page would kill the process, as before Linux
//! 5.14, which cannot allocate pages ahead.
//!
//! Compiling and dropping take a lock; running takes none.
//!
//! Memory is reused only if that works. The kernel must be able to synchronise all
//! cores. A translating emulator may miss a change through the other mapping (QEMU's
//! user mode for x86-64 code, or before 8.1); a new arena tests that.

#![expect(unsafe_code, reason = "owns mappings and the pointers into them")]

use super::fork_guard::ForkGuard;
use super::free_list::FreeList;
use super::{ARENA_BYTES, Arch, NativeError, assemble, call, icache};
use crate::ir::Program;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Alignment and unit of allocation, in bytes: a cache line.
const GRANULE: usize = 64;

/// A byte that, repeated, is a trap instruction: `int3` on x86-64; zeros are `udf` on
/// aarch64.
const TRAP: u8 = if cfg!(target_arch = "x86_64") {
    0xcc
} else {
    0
};

/// Bytes of pages allocated at a time; a multiple of all page sizes.
const RESERVE_BYTES: usize = 64 << 10;

static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Installed code; dropping it frees the memory.
#[derive(Debug)]
pub(super) struct Memory(Span);

/// A range of code in an arena.
#[derive(Debug)]
struct Span {
    /// Address of the first instruction, in the executable mapping.
    start: NonNull<u8>,
    /// Length of the code, in bytes.
    len: usize,
}

// SAFETY: the memory is only read and executed through this pointer until the drop;
// all other writes to the arena go to other granules.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Copies `code` into the arena of this process, which is created on first use.
    pub(super) fn install(code: &[u8]) -> Result<Memory, NativeError> {
        let mut guard = lock();
        // A child made by fork(2) shares its parent's pages. It leaves them to the
        // parent and creates an arena of its own.
        if guard.as_ref().is_none_or(|arena| !arena.owner.is_here()) {
            let mut arena = Arena::new(ARENA_BYTES)?;
            arena.try_reuse()?;
            std::mem::forget(guard.replace(arena));
        }
        match &mut *guard {
            Some(arena) => Ok(Memory(arena.install(code)?)),
            None => unreachable!("it was made above"),
        }
    }

    /// The address of the first instruction.
    pub(super) fn start(&self) -> *const u8 {
        self.0.start.as_ptr()
    }

    /// Length of the code, in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut guard = lock();
        if let Some(arena) = &mut *guard
            && arena.owner.is_here()
            && arena.holds(&self.0)
        {
            arena.free(&self.0);
        }
    }
}

fn lock() -> MutexGuard<'static, Option<Arena>> {
    // Under the lock only assertions on the free list may panic. They precede any
    // change, so a poisoned lock still protects a consistent list.
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in use in this process's arena.
pub(super) fn bytes_used() -> usize {
    let guard = lock();
    let own = guard.as_ref().filter(|arena| arena.owner.is_here());
    own.map_or(0, |arena| arena.free.used() as usize * GRANULE)
}

#[derive(Debug)]
struct Arena {
    /// The writable mapping.
    write: NonNull<u8>,
    /// The executable mapping of the same pages.
    run: NonNull<u8>,
    len: usize,
    free: FreeList,
    /// Bytes from the start whose pages are allocated.
    reserved: usize,
    /// Granules from the start that have held code.
    touched: u32,
    /// Whether freed memory is reused.
    reuses: bool,
    /// Synchronises the instruction fetch of all cores; false on failure.
    sync_cores: fn() -> bool,
    owner: ForkGuard,
}

// SAFETY: the mappings belong to the process, not to a thread.
unsafe impl Send for Arena {}

impl Arena {
    fn new(len: usize) -> Result<Arena, NativeError> {
        // A process that exceeds the limit on file sizes gets a fatal signal.
        if let Some(limit) = getrlimit(Resource::Fsize).current
            && limit < len as u64
        {
            return Err(NativeError::FileLimit { limit, wanted: len });
        }
        let owner = ForkGuard::new()?;
        // Linux 6.3 and later expect the flag EXEC; earlier kernels refuse it.
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
            reserved: 0,
            touched: 0,
            reuses: icache::register(),
            sync_cores: icache::cores,
            owner,
        })
    }

    /// Tests whether code that replaces other code is executed.
    fn try_reuse(&mut self) -> Result<(), NativeError> {
        let arch = Arch::host().ok_or(NativeError::Unsupported)?;
        for verdict in [1, 2] {
            let span = self.install(&assemble(&Program::constant(verdict), arch)?)?;
            // SAFETY: the code of a valid program, just installed. An emulator that
            // misses the change runs the valid program before it.
            let found = unsafe { call(span.start.as_ptr(), &[], 0) };
            self.reuses &= found == verdict;
            self.free(&span);
        }
        Ok(())
    }

    fn holds(&self, span: &Span) -> bool {
        let start = span.start.addr().get();
        (self.run.addr().get()..self.run.addr().get() + self.len).contains(&start)
    }

    /// Installs code so that every core executes it as written.
    fn install(&mut self, code: &[u8]) -> Result<Span, NativeError> {
        let (span, is_fresh) = self.copy_in(code)?;
        let is_enough = is_fresh && !icache::FRESH_TOO;
        if is_enough || (self.sync_cores)() {
            return Ok(span);
        }
        self.reuses = false;
        if is_fresh {
            // No core had a reason to fetch from there.
            return Ok(span);
        }
        // A core may still have fetched the code that was there.
        self.free.retire(granules(span.len));
        self.free.retire_before(self.touched);
        Ok(self.copy_in(code)?.0)
    }

    /// Copies code into free memory. The flag says whether the memory has never held
    /// code.
    fn copy_in(&mut self, code: &[u8]) -> Result<(Span, bool), NativeError> {
        let granules = granules(code.len());
        let granule = self.free.take(granules).ok_or(NativeError::ArenaFull {
            wanted: code.len(),
            used: self.free.used() as usize * GRANULE,
            max: self.len,
        })?;
        let offset = granule as usize * GRANULE;
        if let Err(error) = self.reserve(offset + code.len()) {
            self.free.give(granule, granules);
            return Err(error.into());
        }
        // SAFETY: the free list gave these granules to no other caller, they are inside
        // both mappings, and `code` is not in the arena.
        let start = unsafe {
            let target = self.write.add(offset);
            target.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
            self.run.add(offset)
        };
        let len = code.len();
        // SAFETY: the code was just written, and no thread writes to it while this
        // slice lives.
        icache::caches(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) });
        let is_fresh = granule >= self.touched;
        self.touched = self.touched.max(granule + granules);
        Ok((Span { start, len }, is_fresh))
    }

    /// Allocates the pages of the first `end` bytes.
    fn reserve(&mut self, end: usize) -> Result<(), Errno> {
        if end <= self.reserved {
            return Ok(());
        }
        let end = end.next_multiple_of(RESERVE_BYTES).min(self.len);
        // SAFETY: the range is inside the mapping, and no byte changes.
        let taken = unsafe {
            let start = self.write.add(self.reserved).as_ptr().cast();
            madvise(start, end - self.reserved, Advice::LinuxPopulateWrite)
        };
        match taken {
            // Linux before 5.14, and emulators, do not know this advice.
            Ok(()) | Err(Errno::INVAL) => self.reserved = end,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Frees a range that `install` returned.
    fn free(&mut self, span: &Span) {
        let offset = span.start.addr().get() - self.run.addr().get();
        let granules = granules(span.len);
        // SAFETY: the granules belong to `span`, whose only owner frees it, so no thread
        // runs the code any more.
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
            // SAFETY: mapped by `new`, dropped once; only tests drop an arena, after all
            // its code.
            let _ = unsafe { munmap(mapping.as_ptr().cast(), self.len) };
        }
    }
}

fn granules(bytes: usize) -> u32 {
    bytes.div_ceil(GRANULE) as u32
}

#[cfg(test)]
mod tests;
