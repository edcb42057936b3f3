//! Hosts, each a network namespace.
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
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use weir_link::net::Netlink;

/// Where weir pins BPF objects: of taps, and of counters.
pub const PIN_FOLDERS: [&str; 2] = ["/run/weir/taps", "/run/weir/meter"];

/// Settings of a new host's kernel, so that it sends no frames by itself. IPv6
/// addresses are usable at once (no duplicate address detection, RFC 4862
/// §5.4), no router is solicited, no link-local address is created. Ping needs
/// no privilege.
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

/// A host: a network namespace with `lo` up.
///
/// Clones refer to the same host. Only this process holds the namespace, by a
/// thread and descriptors: when the last clone is dropped, or the process ends
/// in any way, the kernel removes it and its devices, and with a veth its peer
/// in another host.
///
/// The file systems are the process's: `/sys/class/net` shows the devices of
/// the namespace in which sysfs was mounted. `/proc/sys/net` and `/proc/net`
/// are the host's.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    name: String,
    namespace: OwnedFd,
    netlink: Mutex<Netlink>,
    /// The next device number of the whole lab.
    numbers: Arc<AtomicU32>,
    /// Number of devices named so far.
    named: AtomicU32,
    /// The thread in the namespace, which starts processes there.
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

    /// The calling thread's namespace as a host, unchanged.
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

    /// Starts the host's thread, which enters the namespace by `enter`.
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

    /// The host's name, for messages.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether `other` is the same host.
    pub fn is(&self, other: &Host) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `f` on a new thread in the host's namespace: its sockets are the
    /// host's. A panic in `f` is propagated.
    ///
    /// # Panics
    /// Without the privilege with which the host was created.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter().expect("the namespace of a host is entered");
            f()
        };
        // The name of the test's thread, which skip messages contain.
        let name = thread::current().name().unwrap_or(&self.0.name).to_owned();
        let thread = thread::Builder::new().name(name);
        let result = thread::scope(|scope| {
            let running = thread.spawn_scoped(scope, inside);
            running.expect("a thread is started").join()
        });
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Moves the calling thread permanently into the host's namespace.
    /// [`Host::run`] uses a thread of its own; this is for long-lived threads.
    ///
    /// # Errors
    /// Without privilege.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.as_fd(), NETWORK)?)
    }

    /// Starts a process in the host. It is killed when its [`Process`] is
    /// dropped, and when this process ends in any way.
    ///
    /// # Errors
    /// As for [`Command::spawn`].
    pub fn spawn(&self, command: impl Into<Command>) -> io::Result<Process> {
        let command = command.into();
        self.keeper(move || Process::start(command))
    }

    /// Runs a process in the host to its end; returns its output.
    ///
    /// # Errors
    /// As for [`Command::output`], and `TimedOut` if the process has not ended
    /// within [`LIMIT`]; it is then killed.
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

    /// Gives the processes that are started in this host from now on BPF file systems of their
    /// own, where weir pins taps and counters ([`PIN_FOLDERS`]), in a mount namespace of their own:
    /// what they pin goes with the last of them and with the host, however they and this process
    /// end. [`Host::seen`] leads this process there.
    ///
    /// # Errors
    /// Without privilege.
    pub fn own_pins(&self) -> io::Result<()> {
        self.keeper(mount_pins)
    }

    /// The path by which this process sees what the host's processes see at `path`.
    ///
    /// # Panics
    /// If the host's thread has ended.
    pub fn seen(&self, path: &Path) -> PathBuf {
        let thread = self.keeper(|| Ok(rustix::thread::gettid()));
        let thread = thread.expect("the host's thread runs").as_raw_nonzero();
        let root = PathBuf::from(format!("/proc/self/task/{thread}/root"));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Runs `f` on the host's own thread.
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

    /// Sets a sysctl of this host, such as `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// If the kernel has no such sysctl, or refuses the value.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        let what = format!("setting {name} = {value} on host `{}`", self.name());
        self.run(|| fs::write(sysctl_path(name), value))
            .map_err(failed(what))
    }

    /// A sysctl of this host.
    ///
    /// # Errors
    /// If the kernel has no such sysctl.
    pub fn sysctl(&self, name: &str) -> Result<String, Error> {
        let what = format!("reading {name} on host `{}`", self.name());
        let value = self.run(|| fs::read_to_string(sysctl_path(name)));
        Ok(value.map_err(failed(what))?.trim_end().to_owned())
    }

    /// Creates a Linux bridge, up and without ports (see
    /// [`Device::attach_to`]), without spanning tree and multicast snooping;
    /// ports forward at once.
    ///
    /// # Errors
    /// If a device has that name, or the kernel lacks bridges.
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

    /// An existing device, such as `lo`.
    ///
    /// # Errors
    /// If there is no device with that name.
    pub fn device(&self, name: &str) -> Result<Device, Error> {
        Device::existing(self.clone(), name)
    }

    /// Creates a device of a kind, down.
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

    /// A number that is unique in the lab.
    pub(super) fn next_number(&self) -> u32 {
        self.0.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The next name: `eth0`, `eth1` and so on.
    pub(super) fn next_name(&self) -> String {
        format!("eth{}", self.0.named.fetch_add(1, Ordering::Relaxed))
    }
}

/// The namespace's descriptor.
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

/// The first message of a host's thread: its namespace, and a socket in it.
type Made = io::Result<(OwnedFd, Netlink)>;

/// The thread of a host: enters the namespace, then runs jobs until the host is
/// dropped.
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
    // SAFETY: threads need not share a network namespace for memory safety;
    // descriptors and memory stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    for (name, value) in SYSCTLS {
        let path = sysctl_path(name);
        // A kernel without IPv6 lacks this setting.
        if Path::new(&path).exists() {
            fs::write(path, value)?;
        }
    }
    Ok(())
}

/// Mounts BPF file systems in a new mount namespace of the calling thread.
fn mount_pins() -> io::Result<()> {
    // SAFETY: threads need not share a mount namespace, root or working directory for memory
    // safety.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    // What is mounted here does not propagate.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(c"/", slave)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for path in PIN_FOLDERS {
        fs::create_dir_all(path)?;
        mount("bpf", path, "bpf", flags, Some(c"mode=0700"))?;
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
