//! Signals: no handler runs while its thread is inside this library, and waits end with `EINTR`
//! as POSIX says.
//!
//! A handler of the application may call sockets. If the handler ran while its thread holds a
//! lock of this library or of the stack, such a call would wait for itself. Therefore this
//! library's own handler stands before each of the application's (`sigaction`, `signal`): inside
//! the library the own handler only notes the signal, and the application's handler runs when
//! the call leaves the library. Waits do not hold locks, and are outside.
//!
//! ```text
//!  application ──► call ──► enter() … leave() ──► wait ──► enter() …
//!  signal           now       noted      runs      now
//! ```
//!
//! Signals that a fault raises in the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
//! SIGSYS) stay with the application's handler.

use crate::real;
use libc::{c_int, c_void, siginfo_t};
use std::cell::{Cell, UnsafeCell};
use std::mem::{MaybeUninit, transmute};
use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicI32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Number of signals, of which number 0 is none.
const SIGNALS: usize = 65;

thread_local! {
    /// How deep the thread is inside the library.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Signals noted meanwhile, a bit each, and what the kernel said of them.
    static NOTED: Cell<u64> = const { Cell::new(0) };
    static NOTES: UnsafeCell<[MaybeUninit<siginfo_t>; SIGNALS]> =
        const { UnsafeCell::new([MaybeUninit::uninit(); SIGNALS]) };
    /// Number of handlers without `SA_RESTART` that ran in this thread.
    static INTERRUPTS: Cell<u64> = const { Cell::new(0) };
}

/// The application's handler of each signal, and its flags.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

/// The thread is inside the library while this value lives.
pub(crate) struct Inside(());

/// Enters the library.
pub(crate) fn enter() -> Inside {
    DEPTH.set(DEPTH.get() + 1);
    Inside(())
}

/// Whether the thread is inside the library.
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Number of interruptions of this thread so far: a wait that began before another fails with
/// `EINTR`.
pub(crate) fn interrupts() -> u64 {
    INTERRUPTS.get()
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 && NOTED.get() != 0 {
            run_noted();
        }
    }
}

/// Runs `wait` as if the thread were outside; a noted signal's handler runs first.
pub(crate) fn outside<T>(wait: impl FnOnce() -> T) -> T {
    let depth = DEPTH.replace(0);
    if NOTED.get() != 0 {
        run_noted();
    }
    let result = wait();
    DEPTH.set(depth);
    result
}

#[cold]
fn run_noted() {
    while NOTED.get() != 0 {
        let signal = NOTED.get().trailing_zeros() as c_int + 1;
        NOTED.set(NOTED.get() & !(1 << (signal - 1)));
        let mut about = NOTES.with(|notes| {
            // SAFETY: only this thread uses its notes; the one of a noted signal was written
            // before its bit.
            unsafe { (*notes.get())[signal as usize].assume_init() }
        });
        let mask = Masked::of(signal);
        run(signal, &mut about, null_mut());
        drop(mask);
    }
}

/// Blocks a signal while its handler runs, as the kernel does.
struct Masked(libc::sigset_t);

impl Masked {
    fn of(signal: c_int) -> Masked {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the calls fill both sets; the signal is a valid one.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Masked(before.assume_init())
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set is the one of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, null_mut()) };
    }
}

/// All signals are blocked while this value lives.
pub(crate) fn block_all() -> impl Drop {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the calls fill both sets.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), before.as_mut_ptr());
        Masked(before.assume_init())
    }
}

/// Runs the application's handler.
fn run(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let flags = FLAGS[signal as usize].load(Relaxed);
    let handler = HANDLERS[signal as usize].load(Acquire);
    if flags & libc::SA_RESTART == 0 {
        INTERRUPTS.set(INTERRUPTS.get() + 1);
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // It was replaced between the signal and now.
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: the application said that its handler has this type.
        let handler = unsafe { transmute::<usize, Handler>(handler) };
        handler(signal, about, context);
    } else {
        type Handler = extern "C" fn(c_int);
        // SAFETY: as above.
        let handler = unsafe { transmute::<usize, Handler>(handler) };
        handler(signal);
    }
}

/// The handler of all signals that the application handles.
extern "C" fn first(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    if DEPTH.get() == 0 {
        return run(signal, about, context);
    }
    NOTES.with(|notes| {
        // SAFETY: only this thread uses its notes, and this handler does not interrupt itself
        // with the same signal.
        unsafe { (*notes.get())[signal as usize].write(*about) };
    });
    NOTED.set(NOTED.get() | 1 << (signal - 1));
}

fn is_fault(signal: c_int) -> bool {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    matches!(
        signal,
        SIGBUS | SIGFPE | SIGILL | SIGSEGV | SIGSYS | SIGTRAP
    )
}

fn is_a_handler(action: usize) -> bool {
    action != libc::SIG_DFL && action != libc::SIG_IGN
}

/// `sigaction(2)`.
///
/// # Safety
/// As `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !(1..SIGNALS as c_int).contains(&signal) || is_fault(signal) || !crate::host::is_configured()
    {
        // SAFETY: the caller's promises.
        return unsafe { real::sigaction(signal, new, old) };
    }
    let at = signal as usize;
    let before = (HANDLERS[at].load(Acquire), FLAGS[at].load(Relaxed));
    let mut ours = MaybeUninit::<libc::sigaction>::uninit();
    let passed = if new.is_null() {
        null()
    } else {
        // SAFETY: a pointer that is not null is to an action.
        let mut action = unsafe { *new };
        let handler = action.sa_sigaction;
        if is_a_handler(handler) {
            HANDLERS[at].store(handler, Release);
            FLAGS[at].store(action.sa_flags, Relaxed);
            action.sa_sigaction = first as *const () as usize;
            action.sa_flags |= libc::SA_SIGINFO;
        }
        &*ours.write(action)
    };
    // SAFETY: the action is one; `old` is the caller's.
    let result = unsafe { real::sigaction(signal, passed, old) };
    if result != 0 {
        HANDLERS[at].store(before.0, Release);
        FLAGS[at].store(before.1, Relaxed);
    } else if !old.is_null() {
        // SAFETY: the call filled it.
        let old = unsafe { &mut *old };
        if old.sa_sigaction == first as *const () as usize {
            old.sa_sigaction = before.0;
            old.sa_flags = before.1;
        }
    }
    result
}

/// `signal(2)`, with BSD's meaning, which is the C library's default.
///
/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    let mut new = MaybeUninit::<libc::sigaction>::zeroed();
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of a zeroed action are valid.
    let (new, old) = unsafe {
        (*new.as_mut_ptr()).sa_sigaction = handler;
        (*new.as_mut_ptr()).sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut (*new.as_mut_ptr()).sa_mask);
        (new.as_ptr(), old.as_mut_ptr())
    };
    // SAFETY: both are actions.
    match unsafe { sigaction(signal, new, old) } {
        0 => {
            // SAFETY: the call filled it.
            unsafe { (*old).sa_sigaction }
        }
        _ => libc::SIG_ERR,
    }
}

/// `siginterrupt(3)`.
///
/// # Safety
/// As `siginterrupt(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of a zeroed action are valid; the calls read and write an action.
    unsafe {
        if sigaction(signal, null(), action.as_mut_ptr()) != 0 {
            return -1;
        }
        let flags = &mut (*action.as_mut_ptr()).sa_flags;
        if interrupts != 0 {
            *flags &= !libc::SA_RESTART;
        } else {
            *flags |= libc::SA_RESTART;
        }
        sigaction(signal, action.as_ptr(), null_mut())
    }
}
