//! `execl`, `execlp`, `execle`: the new program's arguments are the call's own, as many as there are.
//!
//! A function with variable arguments cannot be written in Rust. These keep the registers of the
//! call, prepare the exec, and jump to the C library's function as if it had been
//! called.

use crate::fork::before_exec;
use crate::real;
use libc::c_void;
use std::sync::atomic::AtomicPtr;

macro_rules! exec_list {
    ($($name:ident $before:ident $text:literal;)*) => {$(
        /// Prepares the exec; returns where the C library's function is.
        extern "C" fn $before() -> *mut c_void {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            before_exec();
            real::address_of(&AT, $text)
        }

        /// As the C library's function of this name.
        ///
        /// # Safety
        /// As the C library's function.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The six registers of arguments, and one that brings the stack to a multiple of 16.
            // `al` is the number of vector registers with arguments: none.
            std::arch::naked_asm!(
                "push rbp",
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                "call {before}",
                "mov r11, rax",
                "xor eax, eax",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "pop rbp",
                "jmp r11",
                before = sym $before,
            )
        }

        /// As the C library's function of this name.
        ///
        /// # Safety
        /// As the C library's function.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The eight registers of arguments, the frame and the return address.
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

exec_list! {
    execl before_execl c"execl";
    execlp before_execlp c"execlp";
    execle before_execle c"execle";
}
