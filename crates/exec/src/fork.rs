//! Forks: the child's copies of its parent's sockets.
//!
//! The stack's state belongs to the process that started the host; a child has a copy of its
//! memory, but not its threads. Moving every socket onto a pair at every fork would slow down
//! parents whose children only write a file or run another program. Therefore a child begins with
//! *leases*: the parent keeps each socket that the child has, until the child closes the socket,
//! uses it, ends or runs another program. At the first use the child asks its parent for the
//! socket, which the parent then moves onto a pair ([`crate::relay`]).
//!
//! ```text
//!  fork ──► leased ── close, end, exec ──► the parent's alone
//!             └── first use, fork, or exec with the descriptor ──► relayed, for all
//! ```
//!
//! Requests go over a pair of Unix sockets that the fork makes. For new sockets a child is a guest of
//! the owner ([`crate::relay::guest`]), or the owner if there is none.

use crate::relay::protocol::{CLOSE, LEASE, TAKE};
use crate::relay::{self, Child, Got};
use crate::sock::Sock;
use crate::{host, ready_sets, real, signals, stats, table};
use libc::{c_char, c_int, pid_t};
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static SAID: AtomicBool = AtomicBool::new(false);
static SAID_EXEC: AtomicBool = AtomicBool::new(false);
/// Whether the process has had leased sockets.
static LEASES: AtomicBool = AtomicBool::new(false);

/// The error of calls on a leased socket that cannot be relayed, or whose owner has ended.
pub(crate) fn refuse() -> c_int {
    if !SAID.swap(true, Relaxed) {
        host::say(&format!(
            "process {} uses a socket of the process that forked it, which has ended or has no \
             descriptor left for it",
            std::process::id()
        ));
    }
    libc::ENETDOWN
}

/// A fork that is under way.
struct Fork {
    sockets: Vec<(c_int, Arc<Sock>)>,
    /// The parent's end and the child's.
    control: Option<(OwnedFd, OwnedFd)>,
    _gate: MutexGuard<'static, ()>,
    sets: ready_sets::Held,
    _inside: signals::Inside,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Runs in the parent, before the fork.
extern "C" fn before() {
    if !host::is_configured() {
        return;
    }
    let inside = signals::enter();
    // What is leased from the parent's parent becomes the kernel's to share.
    if LEASES.load(Relaxed) {
        take_all(|_| true);
    }
    let gate = relay::hold();
    let net = host::running();
    let sets = ready_sets::hold();
    sets.end_all(net.as_ref());
    let mut sockets = table::range(0, usize::MAX);
    sockets.retain(|(_, sock)| sock.is_live());
    let is_owner = sockets.iter().any(|(_, sock)| !sock.is_foreign());
    let control = relay::running()
        .filter(|_| is_owner)
        .and_then(|_| pair().ok());
    FORK.set(Some(Fork {
        sockets,
        control,
        _gate: gate,
        sets,
        _inside: inside,
    }));
}

/// The control pair of a child.
fn pair() -> Result<(OwnedFd, OwnedFd), rustix::io::Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (parents, childs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    relay::refuse_descriptors(&parents);
    Ok((host::hide(parents), host::hide(childs)))
}

/// Runs in the parent, after the fork.
extern "C" fn in_parent() {
    let Some(fork) = FORK.take() else {
        return;
    };
    let Fork {
        sockets, control, ..
    } = fork;
    if let Some((parents, childs)) = control {
        drop(childs);
        if let Some(pump) = relay::running() {
            let sockets = sockets.into_iter().map(|(_, sock)| sock);
            pump.add_child(Child::new(parents, sockets));
        }
    }
}

/// Runs in the child.
extern "C" fn in_child() {
    let Some(fork) = FORK.take() else {
        return;
    };
    let Fork {
        sockets,
        control,
        _gate,
        sets,
        _inside,
    } = fork;
    sets.forget();
    SAID.store(false, Relaxed);
    let control = control.map(|(parents, childs)| {
        // Closed below, as all that is the parent's.
        let _ = parents.into_raw_fd();
        table::unhide(childs.as_raw_fd());
        childs
    });
    // The link is the parent's, and free when the parent ends, however long the child lives.
    table::close_hidden();
    host::begin_anew();
    stats::begin_anew();
    if let Some(control) = &control {
        table::hide(control.as_raw_fd());
    }
    let is_leased = control.is_some();
    let mut leases: HashMap<c_int, Arc<Sock>> = HashMap::new();
    let mut by_id: HashMap<u64, Arc<Sock>> = HashMap::new();
    for (fd, sock) in &sockets {
        let id = if is_leased { sock.id } else { 0 };
        let lease = by_id
            .entry(sock.id)
            .or_insert_with(|| Arc::new(Sock::foreign(id, sock.domain, sock.kind)));
        leases.insert(*fd, Arc::clone(lease));
    }
    // The sockets are the parent's, with locks that its threads may have had: they stay as they are.
    std::mem::forget(sockets);
    LEASES.store(!leases.is_empty(), Relaxed);
    *lock(&host::process().control) = control;
    table::begin_anew(|fd, was_live| {
        if was_live {
            leases.get(&fd).cloned()
        } else {
            inherit(fd)
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket of the kernel, which both processes have.
fn inherit(fd: c_int) -> Option<Arc<Sock>> {
    let of = |name| {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value has the stated length.
        let got = unsafe {
            real::getsockopt(
                fd,
                libc::SOL_SOCKET,
                name,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        (got == 0).then_some(value)
    };
    let (domain, kind) = (of(libc::SO_DOMAIN)?, of(libc::SO_TYPE)?);
    // SAFETY: the command takes no pointer.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    Some(Arc::new(Sock::open(
        domain,
        kind,
        flags & libc::O_NONBLOCK != 0,
    )))
}

fn request(what: u8, id: u64) -> [u8; LEASE] {
    let mut bytes = [what; LEASE];
    bytes[1..].copy_from_slice(&id.to_ne_bytes());
    bytes
}

fn ask(control: &OwnedFd, what: u8, id: u64) -> Result<(), c_int> {
    use rustix::net::{SendFlags, send};
    loop {
        match send(control, &request(what, id), SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.raw_os_error()),
        }
    }
}

/// Has the owner move a leased socket onto a pair, whose end its descriptors become.
///
/// # Errors
/// `EOPNOTSUPP` for a socket that cannot be relayed; `EPIPE` or `ECONNRESET` if the owner has ended.
pub(crate) fn take(sock: &Sock, id: u64) -> Result<(), c_int> {
    let control = lock(&host::process().control);
    if !sock.is_foreign() {
        // Another thread was faster.
        return Ok(());
    }
    let control = control.as_ref().ok_or(libc::EOPNOTSUPP)?;
    ask(control, TAKE, id)?;
    let got = loop {
        match relay::receive_passed(control.as_raw_fd(), libc::MSG_CMSG_CLOEXEC) {
            Err(libc::EINTR) => {}
            got => break got?,
        }
    };
    let end = match got {
        // SAFETY: the descriptor is new.
        Got::Descriptor(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
        Got::Error(error) => return Err(error),
        Got::End => return Err(libc::ECONNRESET),
    };
    sock.hand_over(&Arc::new(end))
}

/// Informs the owner that this process has closed a leased socket.
pub(crate) fn closed(id: u64) {
    if let Some(control) = &*lock(&host::process().control) {
        // An owner that has ended does not need to know.
        let _ = ask(control, CLOSE, id);
    }
}

/// Takes those leased sockets whose descriptors `which` chooses.
fn take_all(which: impl Fn(c_int) -> bool) {
    for fd in table::leased().into_iter().filter(|fd| which(*fd)) {
        // A socket that cannot be relayed stays refused.
        drop(table::any(fd));
    }
}

/// Whether the next program inherits a descriptor.
fn is_inherited(fd: c_int) -> bool {
    // SAFETY: the command takes no pointer.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Takes the leased sockets that the next program inherits. Those of this process's own end with it.
pub(crate) fn before_exec() {
    if LEASES.load(Relaxed) {
        let _inside = signals::enter();
        take_all(is_inherited);
    }
    stats::before_exec();
    if host::running().is_none() {
        return;
    }
    let sockets = table::range(0, usize::MAX);
    let ends = |(fd, sock): &&(c_int, Arc<Sock>)| sock.is_live() && is_inherited(*fd);
    let count = sockets.iter().filter(ends).count();
    let relays = table::relays(0, usize::MAX);
    let count = count + relays.into_iter().filter(|fd| is_inherited(*fd)).count();
    if count > 0 && !SAID_EXEC.swap(true, Relaxed) {
        host::say(&format!(
            "process {} has the link and runs another program in its place, which gets none of its \
             {count} sockets: run that program in a child",
            std::process::id()
        ));
    }
}

/// Has the program that the C library is about to start share the sockets that it inherits: the C
/// library starts it without a call that this library sees.
fn before_spawn() {
    if !host::is_configured() {
        return;
    }
    let _inside = signals::enter();
    take_all(is_inherited);
    for (fd, sock) in table::range(0, usize::MAX) {
        if sock.is_live() && is_inherited(fd) {
            // A socket that cannot be relayed is not the program's.
            let _ = relay::convert(&sock);
        }
    }
}

/// Arranges that a child begins anew.
pub(crate) fn watch() {
    // SAFETY: the functions have the types that are asked for.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// `vfork(2)`, as `fork(2)`: a child that shares its parent's memory would change the parent's
/// table when it closes descriptors.
///
/// # Safety
/// As `vfork(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: a child of fork may do all that a child of vfork may.
    unsafe { real::fork() }
}

/// `posix_spawn_file_actions_adddup2(3)`: the program that is to be started shares the socket. The C
/// library starts it without a call that this library sees.
///
/// # Safety
/// As `posix_spawn_file_actions_adddup2(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut libc::posix_spawn_file_actions_t,
    fd: c_int,
    to: c_int,
) -> c_int {
    if let Some(sock) = table::live(fd) {
        let _inside = signals::enter();
        // A socket that cannot be relayed is not the program's.
        let _ = relay::convert(&sock);
    }
    // SAFETY: the caller's promises.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

/// `execve(2)`.
///
/// # Safety
/// As `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    before_exec();
    // SAFETY: the caller's promises.
    unsafe { real::execve(path, arguments, environment) }
}

/// `execv(3)`.
///
/// # Safety
/// As `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    before_exec();
    // SAFETY: the caller's promises.
    unsafe { real::execv(path, arguments) }
}

/// `execvp(3)`.
///
/// # Safety
/// As `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(name: *const c_char, arguments: *const *const c_char) -> c_int {
    before_exec();
    // SAFETY: the caller's promises.
    unsafe { real::execvp(name, arguments) }
}

/// `execvpe(3)`.
///
/// # Safety
/// As `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(
    name: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    before_exec();
    // SAFETY: the caller's promises.
    unsafe { real::execvpe(name, arguments, environment) }
}

/// `fexecve(3)`.
///
/// # Safety
/// As `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(
    program: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    before_exec();
    // SAFETY: the caller's promises.
    unsafe { real::fexecve(program, arguments, environment) }
}

/// `posix_spawn(3)`.
///
/// # Safety
/// As `posix_spawn(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    child: *mut pid_t,
    path: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    before_spawn();
    // SAFETY: the caller's promises.
    unsafe { real::posix_spawn(child, path, actions, attributes, arguments, environment) }
}

/// `posix_spawnp(3)`.
///
/// # Safety
/// As `posix_spawnp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    child: *mut pid_t,
    name: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    before_spawn();
    // SAFETY: the caller's promises.
    unsafe { real::posix_spawnp(child, name, actions, attributes, arguments, environment) }
}

/// `system(3)`.
///
/// # Safety
/// As `system(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(line: *const c_char) -> c_int {
    before_spawn();
    // SAFETY: the caller's promises.
    unsafe { real::system(line) }
}

/// `popen(3)`.
///
/// # Safety
/// As `popen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(line: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    before_spawn();
    // SAFETY: the caller's promises.
    unsafe { real::popen(line, mode) }
}
