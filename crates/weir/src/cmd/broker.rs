//! `weir broker`: opens ports for the processes of all users.

use crate::config::{self, TextPosition, Wrong};
use crate::error::{CliError, say};
use crate::input::read_limited;
use crate::report::metrics::{self, Exposition, Metrics, labels};
use crate::signals::ShutdownSignal;
use crate::watchdog::watchdog_time;
use signal_hook::consts::SIGHUP;
use std::io;
use std::net;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_broker::daemon::Daemon;
use weir_broker::engine::kernel::{KernelBackend, namespace};
use weir_broker::engine::{Backend, Reloaded, Takeover};
use weir_broker::policy::{Accounts, Machine, Policy, PolicyError, limits};
use weir_broker::protocol::{Listener, PortStatus, sees_capabilities};
use weir_broker::runtime_dir::{Cleaned, FOLDER_DEFAULT, RuntimeDir};
use weir_broker::{Bytes, SOCKET_DEFAULT};
use weir_link::live::Privileged;
use weir_link::net::interfaces;

/// Open ports for programs of any user, according to a policy
///
/// The broker is the only process that needs privilege. It loads the programs
/// that distribute frames in the kernel and passes descriptors to applications;
/// frames do not pass through it. It serves the network namespace in which it
/// is started, until SIGINT or SIGTERM, and prints `ready` on standard error
/// when programs can connect.
///
/// It runs as root, or as a user of its own with CAP_BPF, CAP_NET_ADMIN,
/// CAP_NET_RAW and CAP_SYS_ADMIN, whose folder root has made by --prepare. Then a
/// helper process alone keeps CAP_SYS_ADMIN, for network namespaces of users who
/// send, and to see which queues still take memory.
///
/// On SIGHUP it reads the policy again. Ports that the new policy does not
/// grant are closed; all others continue. An invalid policy changes nothing.
///
/// Ports outlive the broker: when it ends or is killed, their frames continue
/// to arrive. The next broker takes over the ports that its policy grants, and
/// removes those without a process.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  weir broker --config /etc/weir/policy.toml
  weir broker --prepare weir         # as root, before user weir starts a broker
  weir broker --clean                # when none is to follow: remove what is left

Exit status: 0, after SIGINT or SIGTERM too; 1 if the policy cannot be read or the socket not be
made; 2 if the policy is wrong, or other users could change it.")]
pub(crate) struct Args {
    /// The policy, a TOML file: the rights of users on interfaces. It belongs to
    /// root, or to the broker's user, and others do not write to it
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["clean", "prepare"])]
    config: Option<PathBuf>,

    /// The socket that programs connect to
    #[arg(long, value_name = "PATH", default_value = SOCKET_DEFAULT)]
    socket: PathBuf,

    /// Folder for the state that the next broker takes over: /run/weir/broker for
    /// the default socket. For another socket, without this option, ports end with
    /// the broker, and users cannot send
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,

    /// Serve metrics for Prometheus at this address, at /metrics; port 0 chooses
    /// a free port, which is printed
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address,
          conflicts_with = "clean")]
    metrics: Option<net::SocketAddr>,

    /// Remove everything that brokers have left, open ports included, and exit.
    /// Root does so for brokers of any user
    #[arg(long, conflicts_with = "config")]
    clean: bool,

    /// As root: make the folder for brokers of this user, a name or a number, with
    /// the BPF file system that they may not mount, and exit
    #[arg(long, value_name = "USER", conflicts_with_all = ["config", "clean", "metrics"])]
    prepare: Option<String>,
}

impl Args {
    fn runtime_dir(&self) -> Option<&Path> {
        let usual = self.socket == Path::new(SOCKET_DEFAULT);
        let usual = usual.then_some(Path::new(FOLDER_DEFAULT));
        self.keep.as_deref().or(usual)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if args.clean {
        return clean(args);
    }
    if let Some(user) = &args.prepare {
        return prepare(args, user);
    }
    let config = args.config.clone().unwrap_or_default();
    let keeps_nothing = args.runtime_dir().is_none();
    let (policy, accounts) = policy(&config, keeps_nothing)?;
    has_capabilities()?;
    // Before any thread is started.
    let privileged = privileged()?;
    let stop = ShutdownSignal::watch()?;
    let hangup =
        hangups().map_err(|error| CliError::run(format!("cannot watch for SIGHUP: {error}")))?;
    allow_open_files();
    // Before ports of an earlier broker are taken over: the address may be in use.
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    // The socket may be in it.
    let made = args.runtime_dir().map(RuntimeDir::make).transpose();
    made.map_err(CliError::run)?;
    let listener = listen(&args.socket)?;
    let keep = args.runtime_dir().map(RuntimeDir::open).transpose();
    let keep = keep.map_err(CliError::run)?;
    let mut fabric = KernelBackend::open()
        .map_err(|error| CliError::run(format!("cannot open a netlink socket: {error}")))?;
    fabric = fabric.with_privileged(privileged);
    if let Some(keep) = &keep {
        fabric = fabric.pinned(keep);
    }
    let daemon = Daemon::new(listener, fabric, policy, accounts);
    let mut daemon = daemon.map_err(|error| CliError::run(format!("cannot serve: {error}")))?;
    if let Some(error) = daemon.superuser_socket_error() {
        let path = args.socket.display();
        say(&format!(
            "weir: no socket for root at {path}.root, so root waits behind other users: {error}"
        ));
    }
    if !sees_capabilities() {
        say(
            "weir: /proc shows this user no other user's processes (hidepid), so root counts as an \
             ordinary user here",
        );
    }
    if let Some(keep) = keep {
        let adopted = daemon.persist_in(keep).map_err(CliError::run)?;
        if adopted != Takeover::default() {
            let Takeover { ports, swept } = adopted;
            say(&format!(
                "weir: ports of an earlier broker's that go on: {ports}; removed: {swept}"
            ));
        }
    }
    let watched = daemon.on_hangup(hangup, move |daemon| {
        reload(daemon, &config, keeps_nothing);
    });
    watched.map_err(|error| CliError::run(format!("cannot serve: {error}")))?;
    if let Some(metrics) = metrics {
        daemon.watch_every(METRICS_INTERVAL, move |daemon| {
            metrics.show(exposition(daemon));
        });
    }
    let manager = Manager::of_environment();
    if let Some((manager, time)) = manager.as_ref().zip(watchdog_time()) {
        let every = time / 2;
        let manager = manager.clone();
        let mut last = Instant::now();
        daemon.ping_every(every, move || {
            if last.elapsed() >= every / 2 {
                last = Instant::now();
                // Without the manager's socket, the manager starts another
                // broker, as intended.
                let _ = manager.notify_manager("WATCHDOG=1");
            }
        });
    }
    say(&format!(
        "weir: the broker listens on {}",
        args.socket.display()
    ));
    say("ready");
    if let Some(manager) = manager
        && let Err(error) = manager.notify_manager("READY=1")
    {
        say(&format!(
            "weir: the service manager was not notified: {error}"
        ));
    }
    daemon
        .run(stop.fd())
        .map_err(|error| CliError::run(format!("cannot wait for requests: {error}")))
}

/// How often metrics are made.
const METRICS_INTERVAL: Duration = Duration::from_secs(1);
/// Most ports that have metrics of their own.
const METRICS_PORTS_MAX: usize = 1000;

fn exposition<F: Backend>(daemon: &Daemon<F>) -> Exposition {
    let mut out = Exposition::new("weir_broker_");
    for (name, help, value) in [
        ("ports", "Open ports", daemon.port_count()),
        (
            "connections",
            "Connections of programs",
            daemon.connection_count(),
        ),
    ] {
        out.one(name, "gauge", help, value as u64);
    }
    let ports = daemon.ports().take(METRICS_PORTS_MAX);
    let ports: Vec<(String, PortStatus)> = ports
        .map(|port| {
            let (number, uid) = (port.port.to_string(), port.uid.to_string());
            let names = [
                ("port", &*number),
                ("interface", &port.interface),
                ("uid", &uid),
            ];
            (labels(&names), port)
        })
        .collect();
    out.counters(
        &ports,
        &[
            (
                "port_delivered_total",
                "Frames put into a port's queue",
                |port| port.delivered,
            ),
            (
                "port_lost_total",
                "Frames lost because a port's queue was full",
                |port| port.lost,
            ),
            (
                "port_sent_total",
                "Frames that a port has sent by the path that checks",
                |port| port.sent,
            ),
            (
                "port_refused_total",
                "Frames of a port that the policy did not let pass",
                |port| port.refused,
            ),
        ],
    );
    out
}

/// Does what needs `CAP_SYS_ADMIN`: for root this process, which could get the
/// capability again in any case; for another user a helper alone.
fn privileged() -> Result<Privileged, CliError> {
    if rustix::process::geteuid().is_root() {
        return Ok(Privileged::here());
    }
    let helper = Privileged::separate();
    helper.map_err(|error| CliError::run(format!("cannot start the helper process: {error}")))
}

/// Makes the folder for brokers of a user.
fn prepare(args: &Args, user: &str) -> Result<(), CliError> {
    let keep = folder(args)?;
    let accounts = Accounts::of_system().map_err(CliError::run)?;
    let Some((uid, gid)) = accounts.user(user) else {
        return Err(CliError::refused(format!(
            "there is no user `{user}` in /etc/passwd: make one by `adduser --system --group {user}`"
        )));
    };
    if uid == 0 {
        return Err(CliError::refused(
            "root's broker needs nothing prepared: name the user that the broker is to run as",
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(CliError::run("only root can prepare a folder for a broker"));
    }
    RuntimeDir::prepare(keep, uid, gid).map_err(CliError::run)?;
    // Where brokers of earlier versions had it.
    if keep == Path::new(FOLDER_DEFAULT) && Path::new("/run/weir/ports").is_dir() {
        say(
            "weir: warning: an older broker has left its state in /run/weir, which may hold interfaces: \
             end it, and run `weir broker --clean --keep /run/weir`",
        );
    }
    let keep = keep.display();
    say(&format!("weir: {keep} is ready for brokers of user {uid}"));
    Ok(())
}

/// The folder of the state, for commands about nothing else.
fn folder(args: &Args) -> Result<&Path, CliError> {
    args.runtime_dir().ok_or_else(|| {
        CliError::refused("with a socket other than the default, name the folder: --keep FOLDER")
    })
}

/// Checks that the process has the capabilities without which a broker cannot
/// open a port, whatever its user is.
fn has_capabilities() -> Result<(), CliError> {
    use rustix::thread::{CapabilitySet, capabilities};
    let sets = capabilities(None).map_err(|error| {
        CliError::run(format!("cannot read the process's capabilities: {error}"))
    })?;
    let needed = [
        ("CAP_BPF", CapabilitySet::BPF),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
    ];
    let missing = needed
        .iter()
        .filter(|(_, one)| !sets.effective.contains(*one));
    let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CliError::run(format!(
        "the broker lacks {}: start it as root with all capabilities (a container may withhold them), or as another user with AmbientCapabilities= in its \
         unit or setpriv --ambient-caps",
        missing.join(" and ")
    )))
}

/// Removes the state that brokers have left.
fn clean(args: &Args) -> Result<(), CliError> {
    let keep = folder(args)?;
    if !rustix::process::geteuid().is_root() && has_capabilities().is_err() {
        return Err(CliError::run(
            "only root can remove what brokers have left, or the broker's user with the broker's \
             capabilities",
        ));
    }
    let cleaned = RuntimeDir::clean(keep).map_err(CliError::run)?;
    say(&format!("weir: {}", removed(&cleaned, keep)));
    // The socket of a dead broker is removed; the socket of a running broker
    // without a folder stays.
    let _ = Listener::remove_stale(&args.socket);
    if keep == Path::new(FOLDER_DEFAULT) {
        // The next broker may be another user's. A socket may still be there.
        let _ = std::fs::remove_dir(keep);
    }
    Ok(())
}

/// What was removed, in words.
fn removed(cleaned: &Cleaned, keep: &Path) -> String {
    let keep = keep.display();
    let Cleaned {
        ports,
        open,
        interfaces: divided,
    } = cleaned;
    if *ports == 0 && divided.is_empty() {
        return format!("nothing was left in {keep}");
    }
    let known = interfaces().unwrap_or_default();
    let own = namespace().ok();
    let name = |(of, ifindex): &(u64, u32)| {
        let named = known.iter().find(|one| one.index == *ifindex);
        match named.filter(|_| Some(*of) == own) {
            Some(interface) => interface.name.clone(),
            None => format!("interface {ifindex} of network namespace {of}"),
        }
    };
    let mut text = format!("removed what brokers had left in {keep}: {ports} ports");
    if *open > 0 {
        text += &format!(", of which {open} were in use and receive nothing any more");
    }
    if !divided.is_empty() {
        let names: Vec<String> = divided.iter().map(name).collect();
        text += &format!("; programs in the kernel at {}", names.join(", "));
    }
    text
}

/// Raises the limit of open files as far as possible: each connection and each
/// port needs some, and the policy limits their number.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // If that is refused, excess connections and ports fail.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Reads the policy, and the present users and groups; prints the warnings that
/// concern an administrator.
fn policy(path: &Path, keeps_nothing: bool) -> Result<(Policy, Accounts), CliError> {
    let accounts = Accounts::of_system().map_err(CliError::run)?;
    check_owner(path)?;
    let text = read_limited::text(path, limits::FILE_LEN_MAX)?;
    let policy = Policy::parse(&text, &accounts).map_err(|error| wrong(error).refused(path))?;
    for warning in policy.warnings(&machine(keeps_nothing)) {
        let wrong = Wrong {
            place: Some(TextPosition {
                line: warning.line,
                column: warning.column,
            }),
            why: format!("warning: {}", warning.message),
        };
        say(&format!("weir: {}", wrong.of(config::name(path))));
    }
    Ok((policy, accounts))
}

/// Checks that root or the broker's user alone can change the policy: the users
/// who can grant themselves all rights. For a broker of root, whose policy may be
/// the file of the user who tries it out, that is a warning.
fn check_owner(path: &Path) -> Result<(), CliError> {
    let own = rustix::process::geteuid().as_raw();
    // A file that cannot be looked at cannot be read.
    let Ok(about) = std::fs::metadata(path) else {
        return Ok(());
    };
    let (uid, mode) = (about.uid(), about.mode() & 0o7777);
    if !about.is_file() || ([0, own].contains(&uid) && mode & 0o022 == 0) {
        return Ok(());
    }
    let why = format!(
        "{}: belongs to user {uid}, with mode {mode:o}, so that others than root can grant themselves \
         rights: `chown root` and `chmod go-w` it",
        config::name(path)
    );
    if own != 0 {
        return Err(CliError::refused(why));
    }
    say(&format!("weir: warning: {why}"));
    Ok(())
}

/// The machine that the policy applies to.
fn machine(keeps_nothing: bool) -> Machine {
    let interfaces = interfaces().unwrap_or_default();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Machine {
        interfaces: interfaces.into_iter().map(|one| one.name).collect(),
        memory: kib.map(|kib| Bytes(kib << 10)),
        keeps_nothing,
    }
}

fn wrong(error: PolicyError) -> Wrong {
    Wrong {
        place: Some(TextPosition {
            line: error.line,
            column: error.column,
        }),
        why: config::plain(&error.message),
    }
}

/// Becomes readable with each SIGHUP.
fn hangups() -> io::Result<OwnedFd> {
    let (hangup, write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGHUP, write)?;
    Ok(hangup.into())
}

/// Applies the present content of the policy file.
fn reload<F: Backend>(daemon: &mut Daemon<F>, path: &Path, keeps_nothing: bool) {
    let read = policy(path, keeps_nothing).map_err(|failure| failure.to_string());
    let reloaded = read.and_then(|(policy, accounts)| {
        let reloaded = daemon.reload(policy, accounts);
        reloaded.map_err(|refusal| refusal.to_string())
    });
    match reloaded {
        Ok(Reloaded { kept, ended }) => say(&format!(
            "weir: the policy was read again; ports that go on: {kept}; ended: {ended}"
        )),
        Err(why) => say(&format!("weir: the previous policy stays: {why}")),
    }
}

fn listen(path: &Path) -> Result<Listener, CliError> {
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another broker listens there: end it, or give another --socket".into()
            }
            io::ErrorKind::AlreadyExists => {
                "there is a file that is not a socket: move it away, or give another --socket"
                    .into()
            }
            _ => error.to_string(),
        };
        CliError::run(format!("cannot listen on {}: {why}", path.display()))
    };
    Listener::bind(path).map_err(failed)
}

/// A service manager that waits for messages (`sd_notify(3)`).
#[derive(Clone)]
struct Manager(SocketAddr);

impl Manager {
    /// The manager that started this process; `None` without one.
    fn of_environment() -> Option<Manager> {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        let bytes = name.as_encoded_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        address.ok().map(Manager)
    }

    /// Sends a message without blocking: a manager that does not read gets it
    /// later.
    fn notify_manager(&self, message: &str) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(message.as_bytes(), &self.0)?;
        Ok(())
    }
}
