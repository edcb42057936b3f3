//! The process's host, and which addresses are its own.
//!
//! The host starts with the first call that needs it, so that a shell that only starts programs
//! does not take the link. The environment says what the host is: see [`VARIABLE`]. One process of
//! all that `weir exec` starts has it; the others are its guests ([`guest`]).

use crate::dns::forwarder::Forwarders;
use crate::ports::Taken;
use crate::relay::door::{Door, NoDoor};
use crate::relay::{self, Pump, door, guest};
use crate::signals;
use crate::stats;
use crate::table;
use libc::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use weir_socket::{HostPlan, LinkPlan, Net, SocketCall, SocketProtocol};
use weir_stack::iface::{Event, RemovalReason};

/// The environment variable with the host's plan ([`HostPlan::to_text`]).
pub const VARIABLE: &str = "WEIR_EXEC_HOST";
/// The environment variable with options, separated by commas: `io_uring`, `stats`.
pub const OPTIONS: &str = "WEIR_EXEC_OPTIONS";

/// Longest wait for assigned addresses.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(20);
/// How long that wait is silent.
const ADDRESS_SAID: Duration = Duration::from_secs(1);
/// Longest wait at the end for peers to acknowledge what was written.
const LINGER: Duration = Duration::from_secs(5);
/// When a process says that it waits for others that use its sockets.
const RELAYS_SAID: Duration = Duration::from_secs(2);

/// The settings in the environment.
#[derive(Debug)]
pub(crate) struct Settings {
    plan: HostPlan,
    /// `io_uring_setup(2)` is allowed.
    pub(crate) io_uring: bool,
    pub(crate) stats: bool,
    /// The program has asked for the host by name: only the sockets that it makes so are weir's,
    /// and all of them.
    by_name: bool,
}

impl Settings {
    /// Those of a program that asks for the host by name ([`open`]).
    pub(crate) fn by_name(plan: HostPlan) -> Settings {
        Settings {
            plan,
            io_uring: true,
            stats: false,
            by_name: true,
        }
    }

    /// The servers for names that the options give.
    pub(crate) fn name_servers(&self) -> Vec<IpAddr> {
        self.plan.name_servers.clone()
    }

    /// Whether names may be looked up through weir.
    pub(crate) fn has_name_servers(&self) -> bool {
        let mut links = self.plan.links.iter();
        let is_dynamic = links.any(|link| link.is_dynamic());
        !self.by_name && (is_dynamic || !self.plan.name_servers.is_empty())
    }
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
static CONFIGURED: AtomicBool = AtomicBool::new(false);

/// State that a process has once; the child of a fork has a new one.
pub(crate) struct Process {
    pub(crate) taken: Mutex<Taken>,
    host: Mutex<Host>,
    /// The thread that relays this process's sockets to others.
    pub(crate) pump: Mutex<Option<Pump>>,
    /// The name of the socket that `weir sockets` asks.
    pub(crate) status: Mutex<Option<PathBuf>>,
    /// To the process that leases its sockets to this one.
    pub(crate) control: Mutex<Option<OwnedFd>>,
    /// To the process that owns the sockets, if this one has asked it.
    pub(crate) guest: Mutex<Option<OwnedFd>>,
    /// What the C library's resolver asks.
    pub(crate) forwarders: Mutex<Option<Forwarders>>,
}

enum Host {
    /// No call has needed it.
    Not,
    Runs(Net),
    /// Another process has it, and is asked for sockets ([`guest`]).
    Other,
    /// It cannot be started, or has ended.
    Failed,
}

impl Process {
    const fn new() -> Process {
        Process {
            taken: Mutex::new(Taken::new()),
            host: Mutex::new(Host::Not),
            pump: Mutex::new(None),
            control: Mutex::new(None),
            guest: Mutex::new(None),
            forwarders: Mutex::new(None),
            status: Mutex::new(None),
        }
    }
}

static FIRST: Process = Process::new();
static CHILDS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The state of this process.
pub(crate) fn process() -> &'static Process {
    let own = CHILDS.load(Acquire);
    if own.is_null() {
        &FIRST
    } else {
        // SAFETY: the pointer is to a value that is never freed.
        unsafe { &*own }
    }
}

/// Begins a new state in the child of a fork. The parent's host does not run in the child: its
/// threads are not there.
pub(crate) fn begin_anew() {
    CHILDS.store(Box::into_raw(Box::new(Process::new())), Release);
}

/// Reads the environment; called once, before the program begins.
pub(crate) fn configure() {
    // SAFETY: the call takes a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // With another user's rights: the environment is not to be trusted.
        return;
    }
    let Ok(plan) = std::env::var(VARIABLE) else {
        return;
    };
    let plan = match HostPlan::from_text(&plan) {
        Ok(plan) => plan,
        Err(error) => {
            say(&format!("{VARIABLE} is not a host's plan: {error}"));
            return;
        }
    };
    let options = std::env::var(OPTIONS).unwrap_or_default();
    let has = |name: &str| options.split(',').any(|option| option == name);
    let settings = Settings {
        plan,
        io_uring: has("io_uring"),
        stats: has("stats"),
        by_name: false,
    };
    door::configure();
    if SETTINGS.set(settings).is_ok() {
        CONFIGURED.store(true, Relaxed);
    }
}

/// Whether the environment names a host.
#[inline]
pub(crate) fn is_configured() -> bool {
    CONFIGURED.load(Relaxed)
}

/// Whether the C library's own `socket(2)` makes sockets that may become weir's.
#[inline]
pub(crate) fn is_for_all() -> bool {
    is_configured() && settings().is_some_and(|settings| !settings.by_name)
}

/// Whether all sockets that this library knows are weir's, whatever their addresses are.
fn is_by_name() -> bool {
    settings().is_some_and(|settings| settings.by_name)
}

/// Starts the host of a program that asks for it by name.
///
/// # Errors
/// `EALREADY` if the process has a host; why a link cannot be opened.
pub(crate) fn open(new: Settings) -> std::io::Result<()> {
    let mut host = process()
        .host
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if is_configured() {
        return Err(std::io::Error::from_raw_os_error(libc::EALREADY));
    }
    let net = start(&new)?;
    if SETTINGS.set(new).is_err() {
        return Err(std::io::Error::from_raw_os_error(libc::EALREADY));
    }
    *host = Host::Runs(net.clone());
    relay::start(&net, None);
    CONFIGURED.store(true, Relaxed);
    Ok(())
}

/// The settings in the environment, if it names a host.
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Prints a message on standard error.
pub(crate) fn say(message: &str) {
    let line = format!("weir exec: {message}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

/// The host: this process's, or another one's.
pub(crate) enum Found {
    Own(Net),
    Other,
}

/// The host, which the first call of all processes starts.
///
/// # Errors
/// `ENETDOWN` if it cannot be started; a message has said why.
pub(crate) fn host() -> Result<Found, c_int> {
    let _inside = signals::enter();
    let mut host = process()
        .host
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    match &*host {
        Host::Runs(net) => return Ok(Found::Own(net.clone())),
        Host::Other if guest::has_owner() => return Ok(Found::Other),
        Host::Failed => return Err(libc::ENETDOWN),
        // A child of a process that has asked for its host by name.
        Host::Not | Host::Other if is_by_name() => return Err(libc::ENETDOWN),
        Host::Not | Host::Other => {}
    }
    let settings = settings().ok_or(libc::ENETDOWN)?;
    // The door decides who is the owner, so that all others wait until the owner's host has started.
    let door = match Door::open_or(guest::connect) {
        Ok(door) => Some(door),
        Err(NoDoor::Taken) => {
            *host = Host::Other;
            return Ok(Found::Other);
        }
        Err(NoDoor::Silent) => return Err(libc::ENETDOWN),
        Err(NoDoor::Impossible) => None,
    };
    match start(settings) {
        Ok(net) => {
            *host = Host::Runs(net.clone());
            relay::start(&net, door);
            Ok(Found::Own(net))
        }
        Err(error) => {
            *host = Host::Failed;
            say(&format!(
                "process {} gets no host: {error}{}",
                std::process::id(),
                remedy(&error)
            ));
            Err(libc::ENETDOWN)
        }
    }
}

/// This process's own host.
///
/// # Errors
/// As [`host`]; `ENETDOWN` if another process has it.
pub(crate) fn own() -> Result<Net, c_int> {
    match host()? {
        Found::Own(net) => Ok(net),
        Found::Other => Err(libc::ENETDOWN),
    }
}

/// The process that had the host does not answer: the next call that needs one looks again.
pub(crate) fn forget_owner() {
    let host = process().host.lock();
    let mut host = host.unwrap_or_else(PoisonError::into_inner);
    if matches!(*host, Host::Other) {
        *host = Host::Not;
    }
}

/// Whether `io_uring_setup(2)` is refused.
pub(crate) fn refuses_io_uring() -> bool {
    settings().is_some_and(|settings| !settings.io_uring)
}

/// The host, if it runs.
pub(crate) fn running() -> Option<Net> {
    let _inside = signals::enter();
    match &*process()
        .host
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
    {
        Host::Runs(net) => Some(net.clone()),
        Host::Not | Host::Other | Host::Failed => None,
    }
}

fn remedy(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => ": a process that this `weir exec` has not started has the link",
        Some(libc::EMFILE) => ": raise the limit of open files (ulimit -n)",
        Some(libc::EPERM) => ": the process has lost the right to open the link",
        _ => "",
    }
}

fn start(settings: &Settings) -> std::io::Result<Net> {
    number_interfaces(settings);
    let before = open_fds();
    // The host's threads run no handlers of the application.
    let mask = signals::block_all();
    let links = settings.plan.links.iter().map(LinkPlan::name);
    let links: Vec<String> = links.map(str::to_owned).collect();
    let builder = Net::builder().hide_fds(hide);
    let builder = builder.on_link_gone(move |link, error| say_gone(&links, link, error));
    let net = settings.plan.open(builder)?.start();
    let net = net.inspect(|net| tell_losses(net, settings));
    drop(mask);
    let net = net?;
    let new = open_fds().into_iter().filter(|fd| !before.contains(fd));
    new.filter(|fd| may_be_links(*fd)).for_each(table::hide);
    await_addresses(settings, &net)?;
    Ok(net)
}

/// The kernel's numbers of the interfaces behind the host's links, by the links' numbers.
static INTERFACES: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn interfaces() -> MutexGuard<'static, Vec<u32>> {
    INTERFACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the kernel for the numbers of interfaces; 0 for one that the kernel does not have.
fn number_interfaces(settings: &Settings) {
    let links = settings.plan.links.iter();
    let names = links.map(|link| link.device().interface());
    // The link of loopback addresses comes last.
    let names = names.chain(settings.plan.loopback.then_some("lo"));
    let number = |name: &str| {
        let name = std::ffi::CString::new(name).unwrap_or_default();
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::if_nametoindex(name.as_ptr()) }
    };
    *interfaces() = names.map(number).collect();
}

/// The kernel's number of the interface behind a link; 0 if there is none.
pub(crate) fn ifindex_of(link: u8) -> u32 {
    interfaces().get(usize::from(link)).copied().unwrap_or(0)
}

/// The link whose interface has this number.
pub(crate) fn link_of(ifindex: u32) -> Option<u8> {
    let at = interfaces().iter().position(|one| *one == ifindex);
    at.filter(|_| ifindex != 0).map(|at| at as u8)
}

/// Says which link is gone: the application's sockets fail as on a host without the interface, and the
/// application may not say why.
fn say_gone(links: &[String], link: u8, error: &std::io::Error) {
    let link = links
        .get(usize::from(link))
        .map_or("a link", String::as_str);
    match (error.get_ref(), error.kind()) {
        (Some(reason), _) => say(&format!("{link} carries nothing any more: {reason}")),
        _ => say(&format!("{link} is gone: it carries nothing any more")),
    }
}

/// Starts a thread that says which addresses the host loses to another station. Without the thread
/// nothing is said.
fn tell_losses(net: &Net, settings: &Settings) {
    let names = settings.plan.links.iter().map(LinkPlan::name);
    let names: Vec<String> = names.map(str::to_owned).collect();
    let mut events = net.events();
    let thread = std::thread::Builder::new().name("weir-addresses".to_owned());
    let _ = thread.spawn(move || {
        while let Some((link, event)) = events.next_link() {
            let Event::Lost(prefix, RemovalReason::Duplicate(by)) = event else {
                continue;
            };
            let link = names.get(usize::from(link)).map_or("", String::as_str);
            let by = by.map_or_else(|| "another".to_owned(), |by| by.to_string());
            say(&format!(
                "{} on {link} is {by}'s too: it is not used any more; give another --addr",
                prefix.address()
            ));
        }
    });
}

/// Waits for the addresses that servers and routers assign.
fn await_addresses(settings: &Settings, net: &Net) -> std::io::Result<()> {
    let dynamic = settings.plan.links.iter().any(|link| link.is_dynamic());
    let began = Instant::now();
    let is_global = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let mut is_said = false;
    while dynamic && !net.addresses().iter().any(is_global) {
        if began.elapsed() >= ADDRESS_SAID && !std::mem::replace(&mut is_said, true) {
            say("waits until a server or router assigns an address, up to 20 s");
        }
        if began.elapsed() >= ADDRESS_TIMEOUT {
            return Err(std::io::Error::other(
                "no server or router has assigned an address within 20 s",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The process's descriptors.
pub(crate) fn open_fds() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let fds: Vec<RawFd> = names.filter_map(|name| name.parse().ok()).collect();
    // The folder itself was one of them.
    fds.into_iter().filter(|fd| is_open(*fd)).collect()
}

/// Whether a new descriptor may be of the host: the TAP driver's, of a link in shared memory, a socket that the application
/// has not made, or one without a file (eventfds, rings, BPF). Files and pipes are those of another
/// thread of the application.
fn may_be_links(fd: RawFd) -> bool {
    let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let target = target.to_string_lossy();
    target.ends_with("/net/tun")
        || weir_socket::link::is_of_shared_link(&target)
        || target.starts_with("anon_inode:")
        || target.starts_with("socket:") && table::any(fd).is_none()
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: the command takes no pointer.
    unsafe { crate::real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
}

/// The least number of a hidden descriptor; 0 before it is chosen.
static HIDDEN_FROM: AtomicI32 = AtomicI32::new(0);

/// The limit of open files with hidden descriptors.
static RAISED_TO: AtomicI32 = AtomicI32::new(0);

/// Most sockets that are relayed at a time when a guest wants another: half of the hidden
/// descriptors, of which each takes one, so that the owner's own sockets have the other half.
pub(crate) fn relays_max() -> usize {
    let from = hidden_from();
    let hidden = RAISED_TO.load(Relaxed).saturating_sub(from);
    usize::try_from(hidden / 2).unwrap_or(0).max(64)
}

/// Where hidden descriptors begin: behind those that the application may have, if the limit of
/// open files can be raised, so that the application gets the numbers that it expects.
pub(crate) fn hidden_from() -> RawFd {
    let known = HIDDEN_FROM.load(Relaxed);
    if known != 0 {
        return known;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let soft = limit
        .current
        .unwrap_or(1 << 20)
        .min(table::FDS_MAX as u64 / 4);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    // A socket has two descriptors besides the application's.
    let raised = soft.saturating_mul(3).saturating_add(64).min(hard);
    RAISED_TO.store(i32::try_from(raised).unwrap_or(i32::MAX), Relaxed);
    let set = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(raised),
            maximum: limit.maximum,
        },
    );
    let from = if set.is_ok() && raised > soft {
        soft
    } else {
        soft / 2
    };
    let from = (from as RawFd).max(3);
    HIDDEN_FROM.store(from, Relaxed);
    from
}

/// Moves a descriptor out of the application's way.
pub(crate) fn hide(fd: OwnedFd) -> OwnedFd {
    let moved = match rustix::io::fcntl_dupfd_cloexec(&fd, hidden_from()) {
        Ok(moved) => {
            close_own(fd);
            moved
        }
        // The limit is reached: the number stays, and the application still cannot close it.
        Err(_) => fd,
    };
    table::hide(moved.as_raw_fd());
    moved
}

/// Closes a descriptor that is not in the table.
fn close_own(fd: OwnedFd) {
    // SAFETY: its owner has just released it.
    unsafe { crate::real::close(fd.into_raw_fd()) };
}

/// Whose an address is.
#[derive(Clone)]
pub(crate) enum Owner {
    Kernel,
    Weir(Net),
    /// The kernel or weir, as the process says that has the host.
    Other,
}

/// A socket's protocol by its type.
fn protocol(kind: c_int) -> SocketProtocol {
    if kind == libc::SOCK_STREAM {
        SocketProtocol::Tcp
    } else {
        SocketProtocol::Udp
    }
}

/// Whose sockets of this type are to be bound to an address.
///
/// # Errors
/// As [`host`].
pub(crate) fn owner_of_local(at: SocketAddr, kind: c_int) -> Result<Owner, c_int> {
    let ip = at.ip().to_canonical();
    let Some(settings) = settings() else {
        return Ok(Owner::Kernel);
    };
    let at = SocketAddr::new(ip, at.port());
    if is_by_name() {
        return own().map(Owner::Weir);
    }
    if ip.is_loopback() && !settings.plan.loopback
        || settings
            .plan
            .is_kernels(protocol(kind), SocketCall::Bind, at)
    {
        return Ok(Owner::Kernel);
    }
    let Found::Own(net) = host()? else {
        return Ok(Owner::Other);
    };
    let ours = ip.is_unspecified() || ip.is_multicast() || net.is_own_address(ip);
    Ok(if ours {
        Owner::Weir(net)
    } else {
        Owner::Kernel
    })
}

/// Whose sockets of this type reach an address.
///
/// # Errors
/// As [`host`].
pub(crate) fn owner_of_remote(to: SocketAddr, kind: c_int) -> Result<Owner, c_int> {
    let ip = to.ip().to_canonical();
    let Some(settings) = settings() else {
        return Ok(Owner::Kernel);
    };
    let to = SocketAddr::new(ip, to.port());
    if is_by_name() {
        return own().map(Owner::Weir);
    }
    if (ip.is_loopback() || ip.is_unspecified()) && !settings.plan.loopback
        || settings
            .plan
            .is_kernels(protocol(kind), SocketCall::Connect, to)
    {
        return Ok(Owner::Kernel);
    }
    let Found::Own(net) = host()? else {
        return Ok(Owner::Other);
    };
    let for_all = ip == IpAddr::from([255; 4]) || ip.is_multicast();
    let reaches = for_all || ip.is_unspecified() || net.with_stack(|stack| stack.has_route(ip));
    Ok(if reaches {
        Owner::Weir(net)
    } else {
        Owner::Kernel
    })
}

/// Waits until no other process uses a socket of this one, or is about to: the sockets would end with
/// this process.
fn await_relays() {
    for fd in table::relays(0, usize::MAX) {
        table::forget_relay(fd);
        // SAFETY: the process ends, and the descriptor was the application's.
        unsafe { crate::real::close(fd) };
    }
    let began = Instant::now();
    let mut is_said = false;
    let used = || {
        let pump = relay::running()?;
        if pump.has_young_children() {
            return Some(0);
        }
        Some(pump.close()).filter(|relays| *relays > 0)
    };
    while let Some(relays) = used() {
        if began.elapsed() >= RELAYS_SAID && !is_said {
            is_said = true;
            say(&format!(
                "process {} waits at its end, since other processes use {relays} of its sockets",
                std::process::id()
            ));
        }
        signals::outside(|_| std::thread::sleep(Duration::from_millis(2)));
    }
}

/// Ends the host with the process: closes all sockets, and waits until peers have acknowledged
/// what was written.
pub(crate) fn end() {
    let Some(net) = running() else {
        return;
    };
    let _inside = signals::enter();
    let sockets = table::range(0, usize::MAX);
    for (fd, _) in &sockets {
        drop(table::remove(*fd));
    }
    await_relays();
    for (_, sock) in sockets {
        // A call of another thread may have it, and wait: its peer shall see the end too.
        if Arc::strong_count(&sock) > 1 {
            sock.end();
        }
    }
    let began = Instant::now();
    while net.with_stack(|stack| stack.tcp_orphans()) > 0
        && !net.is_gone()
        && began.elapsed() < LINGER
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut host = process()
        .host
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    stats::packets(&net.counters());
    net.leave_links();
    crate::status::remove();
    *host = Host::Failed;
}
