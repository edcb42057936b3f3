//! `weir broker`: serves every user of the machine.

use crate::failure::{Failure, say};
use crate::limited;
use crate::stop::Stop;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use weir_broker::SOCKET_DEFAULT;
use weir_broker::daemon::Daemon;
use weir_broker::engine::Adopted;
use weir_broker::engine::kernel::KernelFabric;
use weir_broker::keep::{FOLDER_DEFAULT, Keep};
use weir_broker::policy::{Accounts, Policy, limits};
use weir_broker::protocol::Listener;

/// Open ports for programs of any user, as a policy allows
///
/// The only process that needs privilege. It loads the programs that divide
/// frames in the kernel and hands out descriptors; frames do not pass through
/// it. It serves the network namespace that it is started in, until SIGINT or
/// SIGTERM, and says `ready` on standard error when programs can connect.
///
/// Ports outlive it: when it ends or is killed, frames go on coming, and the
/// next broker takes the ports over, as far as its policy grants them, and
/// removes those that nobody has any more.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  weir broker --config /etc/weir/policy.toml
  weir broker --clean                # when none is to follow: remove what is left

Exit status: 0, after SIGINT or SIGTERM too; 1 if the policy cannot be read or the socket not be
made; 2 if the policy is wrong.")]
pub(crate) struct Args {
    /// The policy, a TOML file: who may do what on which interface
    #[arg(short, long, value_name = "FILE", required_unless_present = "clean")]
    config: Option<PathBuf>,

    /// Where programs connect to
    #[arg(long, value_name = "PATH", default_value = SOCKET_DEFAULT)]
    socket: PathBuf,

    /// Where to keep what the next broker takes over: /run/weir for the usual
    /// socket; for another one, without this, ports go with the broker
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,

    /// Remove whatever brokers have left, open ports included, and end
    #[arg(long, conflicts_with = "config")]
    clean: bool,
}

impl Args {
    fn keep(&self) -> Option<&Path> {
        let usual = self.socket == Path::new(SOCKET_DEFAULT);
        let usual = usual.then_some(Path::new(FOLDER_DEFAULT));
        self.keep.as_deref().or(usual)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.clean {
        return clean(args);
    }
    let stop = Stop::watch()?;
    let accounts = Accounts::of_system().map_err(Failure::run)?;
    let config = args.config.as_deref().unwrap_or(Path::new(""));
    let policy = policy(config, &accounts)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::run("the broker must be started as root"));
    }
    allow_open_files();
    let listener = listen(&args.socket)?;
    let keep = args.keep().map(Keep::open).transpose();
    let keep = keep.map_err(Failure::run)?;
    let mut fabric = KernelFabric::open().map_err(|error| {
        Failure::run(format!("cannot speak with the kernel by netlink: {error}"))
    })?;
    if let Some(keep) = &keep {
        fabric = fabric.pinned(keep);
    }
    let daemon = Daemon::new(listener, fabric, policy, accounts);
    let mut daemon = daemon.map_err(|error| Failure::run(format!("cannot serve: {error}")))?;
    if let Some(keep) = keep {
        let adopted = daemon.keep(keep).map_err(Failure::run)?;
        if adopted != Adopted::default() {
            let Adopted { ports, swept } = adopted;
            say(&format!(
                "weir: of an earlier broker's ports {ports} go on, {swept} were removed"
            ));
        }
    }
    say(&format!(
        "weir: the broker listens on {}",
        args.socket.display()
    ));
    say("ready");
    if let Err(error) = tell_manager() {
        say(&format!("weir: the service manager was not told: {error}"));
    }
    daemon
        .run(stop.fd())
        .map_err(|error| Failure::run(format!("cannot wait for requests: {error}")))
}

/// Removes what brokers have left.
fn clean(args: &Args) -> Result<(), Failure> {
    let Some(keep) = args.keep() else {
        return Err(Failure::refused(
            "with another socket than the usual one, say which folder: --keep FOLDER",
        ));
    };
    Keep::clean(keep).map_err(Failure::run)?;
    // Of a broker that died; of one without a folder, which runs, it stays.
    let _ = Listener::remove_stale(&args.socket);
    Ok(())
}

/// Lets the broker have as many open files as it may: each connection and each
/// port takes some, and what they may be is the policy's to say.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Where it is refused, a connection or a port too many is.
    let _ = setrlimit(Resource::Nofile, raised);
}

fn policy(path: &Path, accounts: &Accounts) -> Result<Policy, Failure> {
    let text = limited::text(path, limits::FILE_LEN_MAX)?;
    Policy::parse(&text, accounts)
        .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))
}

fn listen(path: &Path) -> Result<Listener, Failure> {
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => "another broker listens there".into(),
            io::ErrorKind::AlreadyExists => {
                "a file that is no socket is there: move it away, or give another --socket".into()
            }
            _ => error.to_string(),
        };
        Failure::run(format!("cannot listen on {}: {why}", path.display()))
    };
    if path == Path::new(SOCKET_DEFAULT)
        && let Some(folder) = path.parent()
    {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    Listener::bind(path).map_err(failed)
}

/// Says that we are ready, where a service manager waits for it
/// (`sd_notify(3)`).
fn tell_manager() -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}
