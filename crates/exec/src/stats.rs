//! `--stats`: which calls and sockets were whose.

use crate::host::{say, settings};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use weir_stack::iface::Counters;

macro_rules! calls {
    ($($name:ident $text:literal,)*) => {
        /// A call that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Call { $($name,)* }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

calls! {
    Socket "socket",
    Bind "bind",
    Listen "listen",
    Accept "accept",
    Connect "connect",
    Read "read",
    Write "write",
    Receive "recv",
    Send "send",
    Option "sockopt",
    Name "sockname",
    Shutdown "shutdown",
    Close "close",
    Dup "dup",
    Control "fcntl",
    File "sendfile",
    Epoll "epoll_ctl",
}

const COUNT: usize = NAMES.len();

static ON: AtomicBool = AtomicBool::new(false);
/// Whether the counts are printed.
static PRINTS: AtomicBool = AtomicBool::new(false);
/// Calls on the kernel's descriptors, and on weir's.
static KERNELS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
static WEIRS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
/// Internet sockets that were decided for the kernel, and for weir.
static SOCKETS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// TCP segments and UDP datagrams that the host has received, by a header filter and by the
/// standard path.
static PACKETS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Begins to count, if the environment asks for it.
pub(crate) fn begin() {
    let stats = settings().is_some_and(|settings| settings.stats);
    ON.store(stats, Relaxed);
    PRINTS.store(stats, Relaxed);
}

/// Counts a call on a descriptor of the kernel.
#[inline]
pub(crate) fn kernels(call: Call) {
    if ON.load(Relaxed) {
        KERNELS[call as usize].fetch_add(1, Relaxed);
    }
}

/// Counts a call on a descriptor of weir.
#[inline]
pub(crate) fn weirs(call: Call) {
    if ON.load(Relaxed) {
        WEIRS[call as usize].fetch_add(1, Relaxed);
    }
}

/// Begins to count trapped calls alone, if the environment asks for it: this process's own calls are not the
/// program's.
pub(crate) fn begin_trapped() {
    PRINTS.store(settings().is_some_and(|settings| settings.stats), Relaxed);
}

/// Counts a call of the program that was trapped ([`crate::all`]).
pub(crate) fn trapped(call: Call, is_weirs: bool) {
    let counts = if is_weirs { &WEIRS } else { &KERNELS };
    counts[call as usize].fetch_add(1, Relaxed);
}

/// Counts an Internet socket of the kernel or of weir.
pub(crate) fn socket(is_weirs: bool) {
    SOCKETS[usize::from(is_weirs)].fetch_add(1, Relaxed);
}

/// Takes the counts of the host, which ends.
pub(crate) fn packets(of: &Counters) {
    PACKETS[0].store(of.segments_fast + of.datagrams_fast, Relaxed);
    PACKETS[1].store(of.segments_standard + of.datagrams_standard, Relaxed);
}

/// Prints the counts, if the process had Internet sockets.
pub(crate) fn print() {
    let sockets = [0, 1].map(|at| SOCKETS[at].load(Relaxed));
    if !PRINTS.load(Relaxed) || sockets == [0, 0] {
        return;
    }
    let list = |counts: &[AtomicU64; COUNT]| {
        let pairs = NAMES.iter().zip(counts);
        let some = pairs.map(|(name, count)| (name, count.load(Relaxed)));
        let some: Vec<String> = some
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if some.is_empty() {
            "none".to_owned()
        } else {
            some.join(", ")
        }
    };
    let [kernels, weirs] = sockets;
    let process = std::process::id();
    say(&format!(
        "process {process}: sockets of weir {weirs}, of the kernel {kernels}"
    ));
    let [filter, standard] = [0, 1].map(|at| PACKETS[at].load(Relaxed));
    say(&format!(
        "process {process}: packets received by a header filter {filter}, by the standard path \
         {standard}"
    ));
    say(&format!(
        "process {process}: calls on weir's: {}",
        list(&WEIRS)
    ));
    say(&format!(
        "process {process}: calls on others: {}",
        list(&KERNELS)
    ));
}
