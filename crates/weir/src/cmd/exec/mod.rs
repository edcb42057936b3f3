//! `weir exec`: runs an unmodified program with weir's sockets.

mod config;
mod library;
mod program;

use crate::error::CliError;
use crate::host::{self, HostArgs};
use program::Program;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use weir_socket::{HostPlan, SocketRule};

/// Run a program unmodified, with weir's sockets in place of the kernel's, or captures by weir
///
/// With --pcap, the program's captures by libpcap are ports of weir's, which the broker opens for
/// any user that its policy grants them. Without --link, its sockets stay the kernel's.
///
/// With --link, the program's TCP and UDP sockets become those of a host of weir's own in the program's
/// process, as far as their addresses are the host's or reached by its links. All other sockets
/// stay the kernel's: Unix sockets, those of 127.0.0.0/8 and ::1, and those of destinations that no
/// link of the host leads to. The program must be dynamically linked, unless --all is given. Exit status
/// and signals are the program's own.
///
/// With --all, weir traps the program's control calls (seccomp_unotify(2)) instead of loading a library,
/// so that statically linked programs, as those of Go, have weir's sockets too. Their UDP sockets are
/// weir's from connect on; those that send to addresses without it are the kernel's.
///
/// With --stack sys the same line runs the program on the kernel's sockets, for comparison: the
/// options of the host and --loopback, --io-uring, --stats, --stats-file and --library then have no
/// effect, and the program's addresses must be the kernel's.
#[derive(clap::Args, Clone, Debug)]
#[command(mut_arg("links", links), mut_arg("addresses", optional), after_help = format!("\
{}

One process has the link: the first that needs it, of all that PROGRAM starts. The others get their
sockets from that one. If the link goes, a line on standard error names it, and the sockets fail as
on a host whose interface went down. The kernel's packet filter (nftables) does not see the sockets,
and ss(8) does not list them: weir sockets does.

Examples:
  weir exec --pcap -- tcpdump -ni eth0 'udp port 53'
  weir exec --link tap0 --addr 192.0.2.5/24 -- python3 -m http.server --bind 192.0.2.5
  weir exec --link tap0 --addr 192.0.2.5/24 --gateway 192.0.2.1 -- curl http://198.51.100.7/
  weir exec --link tap0 --addr 192.0.2.5/24 --dns 192.0.2.1 -- curl http://www.example/
  weir exec --config exec.toml -- python3 -m http.server
  weir exec --all --link tap0 --addr 192.0.2.5/24 -- ./a-static-program
  weir exec --link tap0 --addr 192.0.2.5/24 --stats -- iperf3 -c 192.0.2.1

Exit status: the program's; 1 if the link cannot be used; 2 if an option is wrong, or the program
cannot be run with weir's libraries.", host::HELP))]
pub(crate) struct Args {
    #[command(flatten)]
    host: HostArgs,

    /// Read the host's options, and which sockets stay the kernel's, from a file such as exec.toml,
    /// instead of giving them here; - is standard input
    #[arg(short, long, value_name = "FILE", group = "hosted", conflicts_with_all = ["links", "addresses", "gateways", "macs", "broker"])]
    config: Option<PathBuf>,

    /// Only print the options as a file for --config
    #[arg(long, requires = "links", conflicts_with = "config")]
    print: bool,

    /// Give the program weir's libpcap: its live captures are ports, for which it needs no privilege
    #[arg(long)]
    pcap: bool,

    /// The socket of the broker that opens the ports of --pcap
    #[arg(long, value_name = "PATH", requires = "pcap")]
    socket: Option<PathBuf>,

    /// weir's libpcap; by default libweir_pcap.so where libweir_exec.so is
    #[arg(long, value_name = "FILE", requires = "pcap")]
    pcap_library: Option<PathBuf>,

    /// Whose TCP and UDP the program's sockets have, the kernel's or weir's, and how weir's finds a
    /// packet's connection [default: opt]
    #[arg(long, value_enum, requires = "hosted")]
    stack: Option<Stack>,

    /// Look up names at these servers, through weir; by default at those that DHCP servers and routers
    /// name, or else by the kernel's sockets
    #[arg(
        long,
        value_name = "SERVER[,SERVER]",
        value_delimiter = ',',
        requires = "hosted"
    )]
    dns: Vec<IpAddr>,

    /// Give the program's sockets of 127.0.0.0/8 and ::1 to weir too: they then reach only the
    /// processes of this command
    #[arg(long, requires = "hosted")]
    loopback: bool,

    /// Let the program set up io_uring(7), which is refused otherwise: the program must not use it
    /// for weir's sockets, whose descriptors are not sockets to the kernel
    #[arg(long, requires = "hosted")]
    io_uring: bool,

    /// Trap the control calls of the program and of all that it starts, instead of loading a library:
    /// for statically linked programs, as those of Go
    #[arg(long, requires = "hosted", conflicts_with_all = ["pcap", "dns"])]
    all: bool,

    /// Print at the end of each process, on standard error, which calls and sockets were weir's
    #[arg(long, requires = "hosted")]
    stats: bool,

    /// As --stats, but append it to a file: of programs whose standard error is not yours to read
    #[arg(long, value_name = "FILE", requires = "hosted")]
    stats_file: Option<PathBuf>,

    /// The library with weir's sockets; by default libweir_exec.so beside weir, or in
    /// ../lib/weir
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "print",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// SYS, MUX and OPT of Biersack and Rütsche (1996, §4).
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Stack {
    /// The kernel's: the program keeps its sockets
    Sys,
    /// weir's: each packet's headers are parsed, and its connection is looked up
    Mux,
    /// weir's: a packet with the headers that its connection expects takes a shorter path
    Opt,
}

/// With --pcap or --config, the options of a host may be missing.
fn optional(arg: clap::Arg) -> clap::Arg {
    arg.required(false)
        .required_unless_present_any(["pcap", "config"])
}

/// As [`optional`], of the links, which make a host.
fn links(arg: clap::Arg) -> clap::Arg {
    optional(arg).group("hosted")
}

/// Most servers that the C library's resolver asks (`MAXNS`).
const DNS_MAX: usize = 3;
/// Has the library answer the calls of the program with this path.
const ALL: &str = "WEIR_EXEC_ALL";
/// The dynamic linker's list of libraries to be loaded ahead of all others (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";
/// weir's libpcap reads the broker's socket from this variable.
const SOCKET: &str = "WEIR_SOCKET";
/// nmap's options `--privileged` and `--unprivileged` as variables (nmap(1)).
const NMAP_PRIVILEGED: &str = "NMAP_PRIVILEGED";
const NMAP_UNPRIVILEGED: &str = "NMAP_UNPRIVILEGED";

/// Runs the command; returns only if it fails.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if args.print {
        let text = config::print(args);
        return write!(std::io::stdout(), "{text}").map_err(CliError::output);
    }
    let Some(path) = &args.config else {
        return run_with(args, Vec::new());
    };
    let config = config::read(path)?;
    let of_file = Args {
        host: config.host,
        stack: args.stack.or(config.stack),
        dns: if args.dns.is_empty() {
            config.dns
        } else {
            args.dns.clone()
        },
        loopback: args.loopback || config.loopback,
        io_uring: args.io_uring || config.io_uring,
        stats: args.stats || config.stats,
        ..args.clone()
    };
    run_with(&of_file, config.rules)
}

fn run_with(args: &Args, rules: Vec<SocketRule>) -> Result<(), CliError> {
    let [name, arguments @ ..] = &args.program[..] else {
        return Err(CliError::refused("give a program to run"));
    };
    let program = Program::find(name)?;
    let has_host = !args.host.links.is_empty() && args.stack != Some(Stack::Sys);
    let traps = args.all && has_host;
    if has_host || args.pcap {
        program.check(traps)?;
    }
    if traps && !args.dns.is_empty() {
        return Err(CliError::refused(
            "--all asks no servers of `dns`: the program looks names up itself, as resolv.conf(5) says",
        ));
    }
    let mut command = if traps {
        // The library answers the program's calls in a process of its own, instead of the main function.
        let mut command = Command::new("/proc/self/exe");
        command.env(ALL, program.path());
        command
    } else {
        Command::new(program.path())
    };
    command.arg0(name).args(arguments);
    let mut preload = Vec::new();
    if has_host {
        preload.push(library::find(library::EXEC, args.library.as_deref())?);
        give_sockets(&mut command, args, rules)?;
    }
    if args.pcap {
        preload.push(library::find(library::PCAP, args.pcap_library.as_deref())?);
        if let Some(socket) = &args.socket {
            command.env(SOCKET, socket);
        }
        // nmap would else not try what only the superuser may do without weir.
        if !rustix::process::geteuid().is_root() && std::env::var_os(NMAP_UNPRIVILEGED).is_none() {
            command.env(NMAP_PRIVILEGED, "1");
        }
    }
    let preload = preload.into_iter().map(PathBuf::into_os_string);
    let before = std::env::var_os(PRELOAD).filter(|before| !before.is_empty());
    let all: Vec<_> = preload.chain(before).collect();
    command.env(PRELOAD, all.join(OsStr::new(":")));
    let error = command.exec();
    Err(CliError::run(format!(
        "cannot run {}: {error}",
        program.path().display()
    )))
}

/// Says what the library for sockets needs to know.
fn give_sockets(
    command: &mut Command,
    args: &Args,
    rules: Vec<SocketRule>,
) -> Result<(), CliError> {
    let plan = args.host.plan();
    let plan = match &args.config {
        // The mistake is in the file.
        Some(path) => plan.map_err(|error| error.of_file(path))?,
        None => plan?,
    };
    if args.dns.len() > DNS_MAX {
        return Err(CliError::refused(format!(
            "{} servers for names: the C library asks at most {DNS_MAX}",
            args.dns.len()
        )));
    }
    let plan = HostPlan {
        name_servers: args.dns.clone(),
        loopback: args.loopback,
        mux: args.stack == Some(Stack::Mux),
        rules,
        ..plan
    };
    // That of a `weir exec` around this one.
    command.env_remove("WEIR_EXEC_STATS");
    let mut options = Vec::new();
    options.extend(args.io_uring.then_some("io_uring"));
    options.extend((args.stats || args.stats_file.is_some()).then_some("stats"));
    if let Some(file) = &args.stats_file {
        // The program's processes may go to other folders.
        let path = std::path::absolute(file);
        let path =
            path.map_err(|error| CliError::refused(format!("{}: {error}", file.display())))?;
        command.env("WEIR_EXEC_STATS", path);
    }
    command
        .env("WEIR_EXEC_PASS", pass()?)
        .env("WEIR_EXEC_HOST", plan.to_text())
        .env("WEIR_EXEC_OPTIONS", options.join(","));
    Ok(())
}

/// What lets the processes of this command ask the one of them that has the link for sockets: 32
/// random bytes in hexadecimal.
fn pass() -> Result<String, CliError> {
    let mut bytes = [0_u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| CliError::run(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
