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
//! ever changed. Pages are filled with many small programs, each on cache lines
//! of its own; what is freed is kept for the next program, filled with
//! instructions that trap. So a bind costs a copy, and system calls only
//!
//! - where code goes where other code was, and on aarch64 always: one, for all
//!   cores to forget what they fetched (`icache.rs`);
//! - every 64 KiB: one, for pages.
//!
//! Pages are taken from the kernel before they are written, so that where
//! memory is short a bind fails; the first write to a page would kill the
//! process instead. (Linux before 5.14 cannot be asked; there it does.)
//!
//! Compiling and dropping take a lock; running takes none.
//!
//! Memory is used again only where it is known to work. The kernel must be able
//! to make cores forget. And a translating emulator (QEMU's user mode on x86-64
//! code, or before 8.1) may not notice that memory it has translated changed
//! through the other mapping: a new arena tries that out.

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

/// What programs are aligned to and occupy multiples of: a cache line.
const GRANULE: usize = 64;

/// An instruction that traps, as it repeats in memory: `int3` on x86-64;
/// zeros are `udf` on aarch64.
const TRAP: u8 = if cfg!(target_arch = "x86_64") {
    0xcc
} else {
    0
};

/// Pages are taken from the kernel this many bytes at a time; a multiple of all
/// page sizes.
const RESERVE_BYTES: usize = 64 << 10;

static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Installed code; dropping it returns the memory.
#[derive(Debug)]
pub(super) struct Memory(Span);

/// Where in an arena code is.
#[derive(Debug)]
struct Span {
    /// The first instruction, in the mapping that it runs in.
    start: NonNull<u8>,
    /// Bytes of code.
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
        // A child made by fork(2) shares its parent's pages: it leaves them
        // to the parent and gets an arena of its own.
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

    /// The first instruction.
    pub(super) fn start(&self) -> *const u8 {
        self.0.start.as_ptr()
    }

    /// Bytes of code.
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
    // What may panic while the lock is held are assertions on the lists, and
    // those come before any change: the lists are whole.
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of this process's arena that hold code now.
pub(super) fn bytes_used() -> usize {
    let guard = lock();
    let own = guard.as_ref().filter(|arena| arena.owner.is_here());
    own.map_or(0, |arena| arena.free.used() as usize * GRANULE)
}

#[derive(Debug)]
struct Arena {
    /// The read-write mapping.
    write: NonNull<u8>,
    /// The read-execute mapping of the same pages.
    run: NonNull<u8>,
    len: usize,
    free: FreeList,
    /// Bytes from the start whose pages were taken from the kernel.
    reserved: usize,
    /// Granules from the start in which there has been code.
    touched: u32,
    /// Whether freed memory is used again.
    reuses: bool,
    /// Makes all cores forget what they fetched.
    sync_cores: fn() -> bool,
    owner: ForkGuard,
}

// SAFETY: the mappings belong to the process, not to a thread.
unsafe impl Send for Arena {}

impl Arena {
    fn new(len: usize) -> Result<Arena, NativeError> {
        // A process that makes a longer file is sent a signal that ends it.
        if let Some(limit) = getrlimit(Resource::Fsize).current
            && limit < len as u64
        {
            return Err(NativeError::FileLimit { limit, wanted: len });
        }
        let owner = ForkGuard::new()?;
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
            reserved: 0,
            touched: 0,
            reuses: icache::register(),
            sync_cores: icache::cores,
            owner,
        })
    }

    /// Finds out whether code that replaces other code is what runs.
    fn try_reuse(&mut self) -> Result<(), NativeError> {
        let arch = Arch::host().ok_or(NativeError::Unsupported)?;
        for verdict in [1, 2] {
            let span = self.install(&assemble(&Program::constant(verdict), arch)?)?;
            // SAFETY: the code of a valid program, just installed. (On an
            // emulator that does not notice, that of the one before.)
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

    /// Puts code where every core will run it as it is.
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
        // Some core may still have the code that was there.
        self.free.retire(granules(span.len));
        self.free.retire_before(self.touched);
        Ok(self.copy_in(code)?.0)
    }

    /// Copies code to where there is room, and whether no code was there
    /// before.
    fn copy_in(&mut self, code: &[u8]) -> Result<(Span, bool), NativeError> {
        let granules = granules(code.len());
        let place = self.free.take(granules).ok_or(NativeError::ArenaFull {
            wanted: code.len(),
            used: self.free.used() as usize * GRANULE,
            max: self.len,
        })?;
        let offset = place as usize * GRANULE;
        if let Err(error) = self.reserve(offset + code.len()) {
            self.free.give(place, granules);
            return Err(error.into());
        }
        // SAFETY: the free list gave these granules to nobody else, they lie
        // inside both mappings, and `code` is not in the arena.
        let start = unsafe {
            let target = self.write.add(offset);
            target.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
            self.run.add(offset)
        };
        let len = code.len();
        // SAFETY: the code was just written, and nobody writes to it while
        // this slice lives.
        icache::caches(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) });
        let is_fresh = place >= self.touched;
        self.touched = self.touched.max(place + granules);
        Ok((Span { start, len }, is_fresh))
    }

    /// Takes the pages of the first `end` bytes from the kernel.
    fn reserve(&mut self, end: usize) -> Result<(), Errno> {
        if end <= self.reserved {
            return Ok(());
        }
        let end = end.next_multiple_of(RESERVE_BYTES).min(self.len);
        // SAFETY: inside the mapping, of which no byte changes.
        let taken = unsafe {
            let start = self.write.add(self.reserved).as_ptr().cast();
            madvise(start, end - self.reserved, Advice::LinuxPopulateWrite)
        };
        match taken {
            // Linux before 5.14, and emulators, do not know this.
            Ok(()) | Err(Errno::INVAL) => self.reserved = end,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns what `install` gave.
    fn free(&mut self, span: &Span) {
        let offset = span.start.addr().get() - self.run.addr().get();
        let granules = granules(span.len);
        // SAFETY: the granules belong to `span`, which its only owner gives
        // up: nobody runs what is there any more.
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

#[cfg(test)]
mod tests;
