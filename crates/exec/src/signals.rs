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
//! A thread that is inside is not cancelled either ([`crate::cancel`]).
//!
//! Signals that a fault raises in the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
//! SIGSYS) stay with the application's handler.

use crate::cancel::{self, State};
use crate::real;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::cell::{Cell, UnsafeCell};
use std::mem::{MaybeUninit, transmute};
use std::ptr::{from_mut, null, null_mut};
use std::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

/// Number of signals, of which number 0 is none.
const SIGNALS: usize = 65;

// A handler interrupts its thread between any two instructions: what it shares with the thread is
// atomic, and the compiler keeps the order at fences.
thread_local! {
    /// How deep the thread is inside the library.
    static DEPTH: AtomicU32 = const { AtomicU32::new(0) };
    /// Signals noted meanwhile, a bit each, and what the kernel said of them.
    static NOTED: AtomicU64 = const { AtomicU64::new(0) };
    static NOTES: UnsafeCell<[MaybeUninit<siginfo_t>; SIGNALS]> =
        const { UnsafeCell::new([MaybeUninit::uninit(); SIGNALS]) };
    /// Number of handlers without `SA_RESTART` that ran in this thread.
    static INTERRUPTS: AtomicU64 = const { AtomicU64::new(0) };
    /// Whether the thread may be cancelled where it is not inside.
    static STATE: Cell<State> = const { Cell::new(State::OFF) };
}

/// The application's handler of each signal, its flags, and the signals that it blocks, a bit
/// each.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];
static MASKS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// The thread is inside the library while this value lives.
pub(crate) struct Inside(());

/// Enters the library.
pub(crate) fn enter() -> Inside {
    let before = deepen(1);
    compiler_fence(SeqCst);
    if before == 0 {
        STATE.set(cancel::off());
    }
    Inside(())
}

/// Changes the depth; returns the one of before. A handler between the load and the store leaves the
/// depth as it finds it, so that no locked instruction is needed.
fn deepen(by: i32) -> u32 {
    DEPTH.with(|depth| {
        let before = depth.load(Relaxed);
        depth.store(before.wrapping_add_signed(by), Relaxed);
        before
    })
}

/// Whether the thread is inside the library.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.load(Relaxed)) > 0
}

/// Number of interruptions of this thread so far: a wait that began before another fails with
/// `EINTR`.
pub(crate) fn interrupts() -> u64 {
    INTERRUPTS.with(|interrupts| interrupts.load(Relaxed))
}

fn has_noted() -> bool {
    NOTED.with(|noted| noted.load(Relaxed)) != 0
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Handlers that run from now on enter, too.
        let state = STATE.get();
        compiler_fence(SeqCst);
        if deepen(-1) == 1 {
            if has_noted() {
                run_noted();
            }
            cancel::set(state);
        }
    }
}

/// Runs `wait` as if the thread were outside; a noted signal's handler runs first. The argument says whether the
/// thread may be cancelled at a [`cancel::point`] of the wait.
pub(crate) fn outside<T>(wait: impl FnOnce(State) -> T) -> T {
    let state = STATE.get();
    compiler_fence(SeqCst);
    let inside = DEPTH.with(|depth| depth.swap(0, Relaxed));
    if has_noted() {
        run_noted();
    }
    let result = wait(state);
    DEPTH.with(|depth| depth.store(inside, Relaxed));
    compiler_fence(SeqCst);
    STATE.set(state);
    result
}

/// Runs the handlers of noted signals as the kernel would have: with their masks, with a
/// context, and so that `errno` survives.
#[cold]
fn run_noted() {
    let errno = Errno::keep();
    while let Some((signal, mut about)) = take_noted() {
        let handler_mask = Masked::of_handler(signal);
        let mut context = MaybeUninit::<ucontext_t>::zeroed();
        // SAFETY: the call fills the context, which is all zeros if it fails.
        let context = unsafe {
            libc::getcontext(context.as_mut_ptr());
            context.assume_init_mut()
        };
        run(signal, &mut about, from_mut(context).cast());
        drop(handler_mask);
    }
    drop(errno);
}

/// The next noted signal.
fn take_noted() -> Option<(c_int, siginfo_t)> {
    // No handler of this thread writes a note meanwhile.
    let _all = block_all();
    let signal = NOTED.with(|noted| {
        let bit = noted.load(Relaxed).trailing_zeros();
        (bit < u64::BITS).then(|| {
            noted.fetch_and(!(1 << bit), Relaxed);
            bit as c_int + 1
        })
    })?;
    let about = NOTES.with(|notes| {
        // SAFETY: only this thread uses its notes; the one of a noted signal was written before
        // its bit.
        unsafe { (*notes.get())[signal as usize].assume_init() }
    });
    Some((signal, about))
}

/// Restores `errno` when it is dropped.
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) fn keep() -> Errno {
        // SAFETY: the C library's pointer is valid in its thread.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Signals are blocked while this value lives.
struct Masked(libc::sigset_t);

impl Masked {
    fn more(how: c_int, set: &libc::sigset_t) -> Masked {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the call fills the set of before.
        unsafe {
            libc::pthread_sigmask(how, set, before.as_mut_ptr());
            Masked(before.assume_init())
        }
    }

    /// Blocks what the kernel blocks while the handler of a signal runs.
    fn of_handler(signal: c_int) -> Masked {
        let at = signal as usize;
        let mut bits = MASKS[at].load(Relaxed);
        if FLAGS[at].load(Relaxed) & libc::SA_NODEFER == 0 {
            bits |= 1 << (signal - 1);
        }
        Masked::more(libc::SIG_BLOCK, &set_of(bits))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set is the one of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, null_mut()) };
    }
}

/// The set of these signals, a bit each.
fn set_of(bits: u64) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set; the signals are valid ones.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in (1..SIGNALS as c_int).filter(|signal| bits >> (signal - 1) & 1 != 0) {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// The signals of a set, a bit each.
fn bits_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set is one; the signals are valid ones.
    let has = |signal: &c_int| unsafe { libc::sigismember(set, *signal) } == 1;
    let signals = (1..SIGNALS as c_int).filter(has);
    signals.fold(0, |bits, signal| bits | 1 << (signal - 1))
}

/// All signals are blocked while this value lives.
pub(crate) fn block_all() -> impl Drop {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call fills the set.
    let set = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    };
    Masked::more(libc::SIG_SETMASK, &set)
}

/// Runs the application's handler.
fn run(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let flags = FLAGS[signal as usize].load(Relaxed);
    let handler = HANDLERS[signal as usize].load(Acquire);
    if flags & libc::SA_RESTART == 0 {
        INTERRUPTS.with(|interrupts| interrupts.fetch_add(1, Relaxed));
    }
    if !is_a_handler(handler) {
        // It was replaced between the signal and now.
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: the application said that its handler has this type.
        let handler = unsafe { transmute::<usize, Handler>(handler) };
        handler(signal, about, context);
    } else {
        type Handler = extern "C-unwind" fn(c_int);
        // SAFETY: as above.
        let handler = unsafe { transmute::<usize, Handler>(handler) };
        handler(signal);
    }
}

/// The handler of all signals that the application handles, in which the thread may be cancelled.
extern "C-unwind" fn first(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    if !is_inside() {
        return run(signal, about, context);
    }
    NOTES.with(|notes| {
        // SAFETY: only this thread uses its notes, and reads them with all signals blocked.
        unsafe { (*notes.get())[signal as usize].write(*about) };
    });
    compiler_fence(SeqCst);
    NOTED.with(|noted| noted.fetch_or(1 << (signal - 1), Relaxed));
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
    let before = (
        HANDLERS[at].load(Acquire),
        FLAGS[at].load(Relaxed),
        MASKS[at].load(Relaxed),
    );
    let mut ours = MaybeUninit::<libc::sigaction>::uninit();
    let passed = if new.is_null() {
        null()
    } else {
        // SAFETY: a pointer that is not null is to an action.
        let mut action = unsafe { *new };
        let handler = action.sa_sigaction;
        FLAGS[at].store(action.sa_flags, Relaxed);
        MASKS[at].store(bits_of(&action.sa_mask), Relaxed);
        HANDLERS[at].store(handler, Release);
        if is_a_handler(handler) {
            action.sa_sigaction = first as *const () as usize;
            action.sa_flags |= libc::SA_SIGINFO;
        }
        &*ours.write(action)
    };
    // SAFETY: the action is one; `old` is the caller's.
    let result = unsafe { real::sigaction(signal, passed, old) };
    if result != 0 {
        FLAGS[at].store(before.1, Relaxed);
        MASKS[at].store(before.2, Relaxed);
        HANDLERS[at].store(before.0, Release);
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
    // SAFETY: the caller's promises.
    unsafe { with_flags(signal, handler, libc::SA_RESTART) }
}

/// `bsd_signal(3)`: `signal(2)` by the name that asks for its meaning.
///
/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promises.
    unsafe { with_flags(signal, handler, libc::SA_RESTART) }
}

/// `sysv_signal(3)`: the handler is for one signal.
///
/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promises.
    unsafe { with_flags(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// `signal(2)`, as programs call it that are built for POSIX or ISO C alone.
///
/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promises.
    unsafe { sysv_signal(signal, handler) }
}

/// `sigaction(2)` with these flags; returns the handler of before.
///
/// # Safety
/// As `signal(2)`.
unsafe fn with_flags(signal: c_int, handler: usize, flags: c_int) -> usize {
    let mut new = MaybeUninit::<libc::sigaction>::zeroed();
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of a zeroed action are valid.
    let (new, old) = unsafe {
        (*new.as_mut_ptr()).sa_sigaction = handler;
        (*new.as_mut_ptr()).sa_flags = flags;
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
