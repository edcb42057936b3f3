//! `libweir_exec.so`: gives an unmodified program weir's sockets (Biersack and Rütsche 1996,
//! §3.1).
//!
//! The same calls have own names for programs that are written for weir: see `own`.
//!
//! `weir exec` has the dynamic linker load this library ahead of the C library. The library
//! defines the C library's calls on sockets and descriptors. A call on a descriptor that is not
//! one of weir goes on to the C library.
//!
//! The application's descriptor of a weir socket is a descriptor of the kernel whose readiness
//! equals the socket's ([`TcpStream::ready_fd`](weir_socket::TcpStream::ready_fd)). Therefore
//! `poll`, `select`, `epoll`, `dup`, limits and numbers of descriptors work as they do for other
//! descriptors; only the calls that carry data, names or options are defined here.
//!
//! ```text
//!  application ─► calls/ ─► table: whose descriptor?
//!                             ├─► other    real: the C library
//!                             └─► weir's   sock ─► weir_socket ─► stack ─► link
//! ```
//!
//! | module | what |
//! |---|---|
//! | `calls` | the C functions, by what they do |
//! | `own` | the same calls under own names |
//! | `table`, `sock` | the application's sockets by descriptor; one socket |
//! | `dns` | names through weir: the C library's resolver and its forwarders |
//! | `host`, `ports` | the process's host; addresses that are bound |
//! | `options`, `address`, `control` | socket options, addresses and ancillary data between C and Rust |
//! | `signals`, `cancel`, `wait` | handlers, cancelled threads, and waits that both end |
//! | `fork`, `exec_list` | the child of a fork; what a new program inherits |
//! | `all` | programs that do not load this library |
//! | `relay` | sockets that other processes use, and that they ask for |
//! | `real` | the C library's own functions |
//! | `stats`, `status` | counts; what `weir sockets` shows |
//!
//! # Limits
//!
//! `docs/reference/exec.md` lists calls, options and limits.
#![allow(unsafe_code)] // The C ABI.

mod address;
mod all;
mod calls;
mod cancel;
mod control;
mod dns;
mod exec_list;
mod fork;
mod host;
mod options;
mod own;
mod ports;
mod ready_sets;
mod real;
mod relay;
mod seccomp;
mod signals;
mod sock;
mod stats;
mod status;
mod table;
mod wait;

pub use calls::*;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use exec_list::{execl, execle, execlp};
pub use fork::{
    execv, execve, execvp, execvpe, fexecve, popen, posix_spawn, posix_spawn_file_actions_adddup2,
    posix_spawnp, system, vfork,
};
pub use host::{OPTIONS, VARIABLE};
pub use own::*;
pub use signals::{__sysv_signal, bsd_signal, sigaction, siginterrupt, signal, sysv_signal};

/// Runs before the program's own initialisers.
extern "C" fn begin() {
    host::configure();
    let Some(settings) = host::settings() else {
        return;
    };
    if let Some(program) = std::env::var_os(all::VARIABLE) {
        stats::begin_trapped();
        all::run(program, settings.io_uring);
    }
    stats::begin();
    fork::watch();
    relay::recognise(host::open_fds().into_iter());
    if !settings.io_uring {
        seccomp::refuse_io_uring();
    }
    // SAFETY: the function has the type that is asked for.
    unsafe { libc::atexit(end) };
}

/// Runs behind the program's own exit handlers.
extern "C" fn end() {
    host::end();
    stats::print();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
