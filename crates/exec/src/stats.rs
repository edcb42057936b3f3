//! `--stats`: which calls and sockets were whose.

use crate::host::{self, say, settings};
use crate::signals;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
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

/// Where the counts are appended instead of printed. It is read at the start, since programs write over their
/// environment.
static FILE: OnceLock<PathBuf> = OnceLock::new();

fn note_file() {
    if let Some(path) = std::env::var_os("WEIR_EXEC_STATS") {
        let _ = FILE.set(path.into());
    }
}

/// Begins to count, if the environment asks for it.
pub(crate) fn begin() {
    note_file();
    let stats = settings().is_some_and(|settings| settings.stats);
    ON.store(stats, Relaxed);
    PRINTS.store(stats, Relaxed);
}

/// Begins to count anew, in the child of a fork: what the parent has done is the parent's.
pub(crate) fn begin_anew() {
    let counts = KERNELS.iter().chain(&WEIRS).chain(&SOCKETS);
    for count in counts.chain(&PACKETS) {
        count.store(0, Relaxed);
    }
}

/// Prints the counts of a program in whose place another one runs. If that fails, counting goes on from 0.
pub(crate) fn before_exec() {
    if !PRINTS.load(Relaxed) {
        return;
    }
    let _inside = signals::enter();
    if let Some(net) = host::running() {
        packets(&net.counters());
    }
    print();
    begin_anew();
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
    note_file();
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
    let [filter, standard] = [0, 1].map(|at| PACKETS[at].load(Relaxed));
    let (of_weir, of_kernel) = (list(&WEIRS), list(&KERNELS));
    let lines = [
        format!("sockets of weir {weirs}, of the kernel {kernels}"),
        format!("packets received by a header filter {filter}, by the standard path {standard}"),
        format!("calls on weir's: {of_weir}"),
        format!("calls on others: {of_kernel}"),
    ];
    let lines = lines.map(|line| format!("process {process}: {line}"));
    let appended = FILE.get().map(|path| append(path, &lines.join("\n")));
    match appended {
        None => lines.iter().for_each(|line| say(line)),
        Some(Ok(())) => {}
        Some(Err(error)) => say(&format!(
            "process {process} cannot write its counts: {error}"
        )),
    }
}

/// Appends lines in one piece, so that those of other processes stand before or behind.
fn append(path: &Path, lines: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{lines}\n").as_bytes())
}
