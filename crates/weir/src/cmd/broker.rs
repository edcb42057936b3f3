//! `weir broker`: serves every user of the machine.

use crate::failure::{Failure, say};
use crate::limited;
use crate::stop::Stop;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use weir_broker::SOCKET_DEFAULT;
use weir_broker::daemon::Daemon;
use weir_broker::engine::kernel::KernelFabric;
use weir_broker::policy::{Accounts, Policy, limits};
use weir_broker::protocol::Listener;

/// Open ports for programs of any user, as a policy allows
///
/// The only process that needs privilege. It loads the programs that divide
/// frames in the kernel and hands out descriptors; frames do not pass through
/// it. It serves the network namespace that it is started in, until SIGINT or
/// SIGTERM.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  weir broker --config /etc/weir/policy.toml

Exit status: 1 if the policy cannot be read or the socket not be made; 2 if the policy is wrong;
130 or 143 after SIGINT or SIGTERM.")]
pub(crate) struct Args {
    /// The policy, a TOML file: who may do what on which interface
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,

    /// Where programs connect to
    #[arg(long, value_name = "PATH", default_value = SOCKET_DEFAULT)]
    socket: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::watch()?;
    let accounts = Accounts::of_system().map_err(Failure::run)?;
    let policy = policy(&args.config, &accounts)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::run("the broker must be started as root"));
    }
    let listener = listen(&args.socket)?;
    let fabric = KernelFabric::open().map_err(|error| {
        Failure::run(format!("cannot speak with the kernel by netlink: {error}"))
    })?;
    let daemon = Daemon::new(listener, fabric, policy, accounts);
    let mut daemon = daemon.map_err(|error| Failure::run(format!("cannot serve: {error}")))?;
    say(&format!(
        "weir: the broker listens on {}",
        args.socket.display()
    ));
    if let Err(error) = tell_manager() {
        say(&format!("weir: the service manager was not told: {error}"));
    }
    daemon
        .run(stop.fd())
        .map_err(|error| Failure::run(format!("cannot wait for requests: {error}")))?;
    match stop.signal() {
        0 => Ok(()),
        signal => Err(Failure::Stopped(signal)),
    }
}

fn policy(path: &Path, accounts: &Accounts) -> Result<Policy, Failure> {
    let text = limited::read(path, limits::FILE_LEN_MAX).map_err(Failure::run)?;
    let text = String::from_utf8(text)
        .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))?;
    Policy::parse(&text, accounts)
        .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))
}

fn listen(path: &Path) -> Result<Listener, Failure> {
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => "another broker listens there".into(),
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
