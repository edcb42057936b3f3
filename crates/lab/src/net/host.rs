//! Hosts: a network namespace each.
#![allow(unsafe_code)] // A thread leaves the namespace it shares with others.

use super::device::Device;
use super::error::{Error, failed};
use super::process::Process;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgeStpState, InfoBridge, InfoData, InfoKind, LinkAttribute, LinkInfo, LinkMessage,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use weir_link::net::Netlink;

/// What a new host's kernel is told: nothing is sent that no one asked for.
/// IPv6 addresses are usable at once (no duplicate address detection, RFC
/// 4862 §5.4), no router is solicited, no link-local address is made. Ping
/// needs no privilege.
const SYSCTLS: [(&str, &str); 8] = [
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.all.router_solicitations", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.all.accept_ra", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.addr_gen_mode", "1"),
    ("net.ipv4.ping_group_range", "0 2147483647"),
];

/// A host: a network namespace of its own, with `lo` up.
///
/// Clones are the same host. The namespace is held by this process alone, by
/// a thread and descriptors: when the last clone is gone, or the process has
/// ended in whatever way, the kernel removes it and its devices, and with a
/// veth its other end in another host.
///
/// The file systems are not the host's own: `/sys/class/net` shows the
/// devices of whoever mounted it. `/proc/sys/net` and `/proc/net` are right.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    name: String,
    namespace: OwnedFd,
    netlink: Mutex<Netlink>,
    /// Numbers the devices of the whole lab.
    numbers: Arc<AtomicU32>,
    /// How many devices were named so far.
    named: AtomicU32,
    /// The thread that lives in the namespace, and starts processes there.
    keeper: Sender<Job>,
}

const NETWORK: Option<LinkNameSpaceType> = Some(LinkNameSpaceType::Network);

type Job = Box<dyn FnOnce() + Send>;

impl Host {
    /// A host with a new namespace.
    pub(super) fn new(name: &str, numbers: Arc<AtomicU32>) -> Result<Host, Error> {
        let host = Host::start(name, numbers, make_namespace)?;
        Device::existing(host.clone(), "lo")?.up()?;
        Ok(host)
    }

    /// The calling thread's namespace as a host, as it is.
    pub(super) fn current(numbers: Arc<AtomicU32>) -> Result<Host, Error> {
        let namespace = open_namespace().map_err(failed("opening this thread's namespace"))?;
        let enter = move || Ok(move_into_link_name_space(namespace.as_fd(), NETWORK)?);
        let host = Host::start("current", numbers, enter)?;
        let present = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let present = host.request(present, NLM_F_DUMP);
        for reply in present.map_err(failed("listing this namespace's devices"))? {
            if let RouteNetlinkMessage::NewLink(link) = reply {
                let next = link.header.index + 1;
                host.0.numbers.fetch_max(next, Ordering::Relaxed);
            }
        }
        Ok(host)
    }

    /// Starts the host's thread, which goes into the namespace by `enter`.
    fn start(
        name: &str,
        numbers: Arc<AtomicU32>,
        enter: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<Host, Error> {
        let what = format!("making host `{name}`");
        let (keeper, jobs) = channel::<Job>();
        let (sender, receiver) = channel();
        let inside = || {
            enter()?;
            Ok((open_namespace()?, Netlink::open()?))
        };
        thread::Builder::new()
            .name(format!("host {name}"))
            .spawn(move || keep(inside, &jobs, &sender))
            .map_err(failed(&*what))?;
        let made = receiver.recv().map_err(io::Error::other);
        let (namespace, netlink) = made.flatten().map_err(failed(&*what))?;
        Ok(Host(Arc::new(Inner {
            name: name.to_owned(),
            namespace,
            netlink: Mutex::new(netlink),
            numbers,
            named: AtomicU32::new(0),
            keeper,
        })))
    }

    /// The host's name, for people.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether that is the same host.
    pub fn is(&self, other: &Host) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `f` on a thread of its own in the host's namespace: sockets made
    /// there, and what they do, are the host's. Panics in `f` go on here.
    ///
    /// # Panics
    /// Without the privilege that the host was made with.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter().expect("the namespace of a host is entered");
            f()
        };
        // A test's, by which a skip is told.
        let name = thread::current().name().unwrap_or(&self.0.name).to_owned();
        let thread = thread::Builder::new().name(name);
        let result = thread::scope(|scope| {
            let running = thread.spawn_scoped(scope, inside);
            running.expect("a thread is started").join()
        });
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Moves the calling thread into the host, for good. [`Host::run`] does
    /// so with a thread of its own; this is for threads that are kept.
    ///
    /// # Errors
    /// Without privilege.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.as_fd(), NETWORK)?)
    }

    /// Starts a process in the host. It is killed with its [`Process`], and
    /// when this process ends in whatever way.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(&self, command: impl Into<Command>) -> io::Result<Process> {
        let command = command.into();
        self.keeper(move || Process::start(command))
    }

    /// Runs a process in the host to its end, and gives what it wrote.
    ///
    /// # Errors
    /// As [`Command::output`], and `TimedOut` if the process has not ended
    /// within [`LIMIT`]; it is killed then.
    ///
    /// [`LIMIT`]: crate::command::LIMIT
    pub fn output(&self, command: impl Into<Command>) -> io::Result<Output> {
        use std::process::Stdio;
        let mut command = command.into();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.spawn(command)?.output(crate::command::LIMIT)
    }

    /// Runs `f` on the thread that lives as long as the host.
    fn keeper<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = channel();
        let job = move || drop(sender.send(f()));
        let sent = self.0.keeper.send(Box::new(job));
        sent.map_err(|_| io::Error::other("the host's thread has ended"))?;
        receiver.recv().map_err(io::Error::other).flatten()
    }

    /// Sets a kernel parameter of this host, such as `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// If the kernel has none of that name, or refuses the value.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        let what = format!("setting {name} = {value} on host `{}`", self.name());
        self.run(|| fs::write(sysctl_path(name), value))
            .map_err(failed(what))
    }

    /// A kernel parameter of this host.
    ///
    /// # Errors
    /// If the kernel has none of that name.
    pub fn sysctl(&self, name: &str) -> Result<String, Error> {
        let what = format!("reading {name} on host `{}`", self.name());
        let value = self.run(|| fs::read_to_string(sysctl_path(name)));
        Ok(value.map_err(failed(what))?.trim_end().to_owned())
    }

    /// Makes a Linux bridge, up, with nothing attached yet (see
    /// [`Device::attach_to`]). It neither speaks the spanning tree protocol
    /// nor looks into multicast, and forwards at once.
    ///
    /// # Errors
    /// If there is a device of that name, or no bridge in this kernel.
    pub fn bridge(&self, name: &str) -> Result<Device, Error> {
        let data = vec![
            InfoBridge::StpState(BridgeStpState::Disabled),
            InfoBridge::ForwardDelay(0),
            InfoBridge::MulticastSnooping(false),
        ];
        let info = vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(data)),
        ];
        let device = self.make_device(name, "bridge", vec![LinkAttribute::LinkInfo(info)])?;
        device.up()?;
        Ok(device)
    }

    /// A device that is there already, such as `lo`.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn device(&self, name: &str) -> Result<Device, Error> {
        Device::existing(self.clone(), name)
    }

    /// Makes a device of a kind, down.
    pub(super) fn make_device(
        &self,
        name: &str,
        kind: &'static str,
        attributes: Vec<LinkAttribute>,
    ) -> Result<Device, Error> {
        let what = format!("making {kind} `{name}` on host `{}`", self.name());
        let device = Device::planned(self.clone(), name.to_owned());
        let mut message = device.creation();
        message.attributes.extend(attributes);
        self.create(message)
            .map_err(|error| match error.raw_os_error() {
                Some(code) if code == rustix::io::Errno::OPNOTSUPP.raw_os_error() => {
                    Error::NoDeviceType { what, kind }
                }
                _ => failed(what)(error),
            })?;
        Ok(device)
    }

    pub(super) fn create(&self, message: LinkMessage) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewLink(message);
        self.request(message, NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    pub(super) fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut netlink = self
            .0
            .netlink
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        netlink.request(message, flags)
    }

    pub(super) fn requests(
        &self,
        messages: impl IntoIterator<Item = RouteNetlinkMessage>,
        flags: u16,
    ) -> io::Result<()> {
        let netlink = self.0.netlink.lock();
        let mut netlink = netlink.unwrap_or_else(PoisonError::into_inner);
        netlink.requests(messages, flags)
    }

    /// A number that no other device of the lab has.
    pub(super) fn next_number(&self) -> u32 {
        self.0.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// `eth0`, `eth1` and so on.
    pub(super) fn next_name(&self) -> String {
        format!("eth{}", self.0.named.fetch_add(1, Ordering::Relaxed))
    }
}

/// The namespace.
impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.namespace.as_fd()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.0.name).finish()
    }
}

/// What a host's thread tells first: its namespace, and a socket in it.
type Made = io::Result<(OwnedFd, Netlink)>;

/// The thread of a host: goes into the namespace, then does what it is given
/// until the host is gone.
fn keep(inside: impl FnOnce() -> Made, jobs: &Receiver<Job>, tell: &Sender<Made>) {
    let made = inside();
    let failed = made.is_err();
    if tell.send(made).is_err() || failed {
        return;
    }
    while let Ok(job) = jobs.recv() {
        job();
    }
}

/// Moves the calling thread into a new network namespace.
fn make_namespace() -> io::Result<()> {
    // SAFETY: the network namespace is not among what threads of a process
    // must share for memory safety; descriptors and memory stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    for (name, value) in SYSCTLS {
        let path = sysctl_path(name);
        // A kernel without IPv6 has nothing to be told about it.
        if Path::new(&path).exists() {
            fs::write(path, value)?;
        }
    }
    Ok(())
}

/// The calling thread's namespace.
fn open_namespace() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(open("/proc/thread-self/ns/net", flags, Mode::empty())?)
}

fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}
