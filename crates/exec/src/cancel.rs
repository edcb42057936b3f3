//! Cancelled threads (`pthread_cancel(3)`).
//!
//! The C library ends a cancelled thread at a cancellation point, as `poll(2)`: it unwinds the thread's stack
//! from there, whatever the frames hold. A frame of Rust may be left so only if nothing is due in it (a "plain
//! old frame", Rust's RFC 2945). Therefore
//!
//! - cancellation is off while the thread is inside this library ([`crate::signals::enter`]);
//! - a wait inside is a [`point`], where the unwinding ends: the call returns as one that has failed, and so
//!   gives back its locks and its memory;
//! - the function that the program has called then goes on with the unwinding ([`act`]);
//! - a call that is the kernel's goes on to the C library from plain old frames.
//!
//! ```text
//!  program ─► calls::points ─► … Rust … ─► point ─► the C library's call
//!                 act ◄──────── error ◄──────┘ ◄── unwinding
//!  program ◄── unwinding
//! ```
//!
//! A point does what `pthread_cleanup_push(3)` does in a C program that is built without exceptions.

use crate::signals;
use libc::{c_int, c_void};
use std::cell::Cell;
use std::mem::MaybeUninit;

/// The error of a wait in which the thread was cancelled. It is Linux' own `ERESTARTNOINTR`, which no
/// application sees.
pub(crate) const CANCELLED: c_int = 513;

/// The C library's numbers (pthread.h).
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;

/// `__pthread_unwind_buf_t`: registers, which the C library keeps, and its own words. Longer than that of any
/// architecture.
#[repr(C, align(16))]
struct Buffer([u8; 512]);

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn __pthread_register_cancel(buffer: *mut Buffer);
    fn __pthread_unregister_cancel(buffer: *mut Buffer);
    fn __sigsetjmp(buffer: *mut Buffer, masks: c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn __pthread_unwind_next(buffer: *mut Buffer) -> !;
}

thread_local! {
    /// Whether the unwinding has ended at a point, and is to go on.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread may be cancelled, as the application has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State(c_int);

impl State {
    pub(crate) const OFF: State = State(DISABLE);
}

/// Switches cancellation off; returns the state of before.
pub(crate) fn off() -> State {
    set(State::OFF)
}

/// Sets the state; returns the one of before.
pub(crate) fn set(state: State) -> State {
    let mut before = DISABLE;
    // SAFETY: the state is one of the two; cancellation that is deferred acts at points alone.
    unsafe { pthread_setcancelstate(state.0, &raw mut before) };
    State(before)
}

/// Ends the thread if it is cancelled: nothing may be due in the frames of the caller.
#[inline]
pub(crate) fn test() {
    // SAFETY: plain old frames may be left by unwinding.
    unsafe { pthread_testcancel() };
}

/// Goes on with the unwinding that has ended at a point. Nothing may be due in the frames of the caller.
#[inline]
pub(crate) fn act() {
    if CAUGHT.get() && !signals::is_inside() {
        go_on();
    }
}

#[cold]
fn go_on() -> ! {
    // What the unwinding runs may call sockets, too.
    CAUGHT.set(false);
    let mut buffer = MaybeUninit::<Buffer>::zeroed();
    // SAFETY: the C library fills the buffer, and goes on where its words say: with what the thread had
    // registered before, which is registered again.
    unsafe {
        __pthread_register_cancel(buffer.as_mut_ptr());
        __pthread_unregister_cancel(buffer.as_mut_ptr());
        __pthread_unwind_next(buffer.as_mut_ptr())
    }
}

/// A call of the C library, and what it is called with.
struct Call<A>(fn(A) -> isize, A);

/// Runs `call`, in which the thread may be cancelled, if `state` is that of the application: then the result is
/// -1, and `errno` is [`CANCELLED`]. Nothing may be due in the frames of `call`.
pub(crate) fn point<A: Copy>(state: State, args: A, call: fn(A) -> isize) -> isize {
    let catches = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    if state == State::OFF || !catches {
        return call(args);
    }
    let call = Call(call, args);
    let mut buffer = MaybeUninit::<Buffer>::zeroed();
    // SAFETY: the function gets the call that it is made for, which lives until it returns.
    let result = unsafe { catch(run::<A>, (&raw const call).cast(), buffer.as_mut_ptr()) };
    if result != isize::MIN {
        return result;
    }
    // What the application's handlers have left.
    off();
    CAUGHT.set(true);
    // SAFETY: the C library's pointer is valid in its thread.
    unsafe { *libc::__errno_location() = CANCELLED };
    -1
}

/// As [`point`], of a thread that is outside the library.
pub(crate) fn wait<A: Copy>(args: A, call: fn(A) -> isize) -> isize {
    let _inside = signals::enter();
    signals::outside(|state| point(state, args, call))
}

type Run = unsafe extern "C-unwind" fn(*const c_void) -> isize;

/// # Safety
/// `call` is a [`Call<A>`].
unsafe extern "C-unwind" fn run<A: Copy>(call: *const c_void) -> isize {
    // SAFETY: the caller's promise.
    let Call(call, args) = unsafe { &*call.cast::<Call<A>>() };
    set(State(ENABLE));
    let result = call(*args);
    set(State::OFF);
    result
}

/// Runs a call; `isize::MIN` if unwinding has ended here.
///
/// # Safety
/// The call takes `args`, and nothing is due in its frames.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn catch(call: Run, args: *const c_void, buffer: *mut Buffer) -> isize {
    // The second return of `__sigsetjmp` finds these registers as the first one did.
    std::arch::naked_asm!(
        "push rbx",
        "push r12",
        "push r13",
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r13, rdx",
        "mov rdi, r13",
        "xor esi, esi",
        "call {jump}",
        "test eax, eax",
        "jnz 2f",
        "mov rdi, r13",
        "call {register}",
        "mov rdi, r12",
        "call rbx",
        "mov rbx, rax",
        "jmp 3f",
        "2:",
        "movabs rbx, {caught}",
        "3:",
        "mov rdi, r13",
        "call {unregister}",
        "mov rax, rbx",
        "pop r13",
        "pop r12",
        "pop rbx",
        "ret",
        jump = sym __sigsetjmp,
        register = sym __pthread_register_cancel,
        unregister = sym __pthread_unregister_cancel,
        caught = const isize::MIN,
    )
}

/// Runs a call; `isize::MIN` if unwinding has ended here.
///
/// # Safety
/// The call takes `args`, and nothing is due in its frames.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn catch(call: Run, args: *const c_void, buffer: *mut Buffer) -> isize {
    // The second return of `__sigsetjmp` finds these registers as the first one did.
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "mov x29, sp",
        "stp x19, x20, [sp, #16]",
        "str x21, [sp, #32]",
        "mov x19, x0",
        "mov x20, x1",
        "mov x21, x2",
        "mov x0, x21",
        "mov w1, #0",
        "bl {jump}",
        "cbnz w0, 2f",
        "mov x0, x21",
        "bl {register}",
        "mov x0, x20",
        "blr x19",
        "mov x19, x0",
        "b 3f",
        "2:",
        "mov x19, #0x8000000000000000",
        "3:",
        "mov x0, x21",
        "bl {unregister}",
        "mov x0, x19",
        "ldr x21, [sp, #32]",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "ret",
        jump = sym __sigsetjmp,
        register = sym __pthread_register_cancel,
        unregister = sym __pthread_unregister_cancel,
    )
}

/// Runs a call in which the thread is not cancelled: of this architecture the registers are not known.
///
/// # Safety
/// The call takes `args`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn catch(_: Run, _: *const c_void, _: *mut Buffer) -> isize {
    unreachable!("`point` does not ask for it")
}
