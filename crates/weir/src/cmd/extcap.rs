//! `weir extcap`: interfaces for Wireshark, by its extcap protocol (extcap(4) of Wireshark).
//!
//! Wireshark runs each program in its folder of extcap programs, asks for interfaces, link types and
//! options, and has frames written to a FIFO. The program there is a link named `weir-extcap` to
//! weir, which begins this command by that name.

use super::listen::{self, ANY, names_up};
use crate::error::CliError;
use crate::filterset::compile::Compiler;
use clap::Parser;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_broker::Bytes;
use weir_filter::lang::Language;
use weir_link::net::Interface;
use weir_wire::LinkType;

/// The name of the link in Wireshark's folder.
pub(crate) const PROGRAM: &str = "weir-extcap";
/// The prefix of an interface's name in Wireshark's list.
const PREFIX: &str = "weir-";

/// How long a capture that has failed waits for the reader of its FIFO, to end it.
const READER_WAIT: Duration = Duration::from_secs(2);

/// Offer ports to Wireshark and tshark (extcap)
///
/// Wireshark calls this command; a user calls it once, to install it. Then Wireshark lists
/// interfaces such as `weir-eth0`. A capture from one of them opens a port, weir's queue of the frames
/// that the capture filter accepts, through the broker: no privilege is needed, and the kernel
/// applies the filter.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  sudo weir extcap --install
  tshark -i weir-eth0 -f 'udp port 53'

To uninstall, remove the link that --install has printed.

Exit status: 0; 1 if the interface or the FIFO cannot be used; 2 if the filter, an option or the
policy refuses.")]
pub(crate) struct Args {
    /// Put a link to this program where Wireshark looks, or into FOLDER
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, exclusive = true)]
    install: Option<Option<PathBuf>>,

    /// Print the interfaces
    #[arg(long)]
    extcap_interfaces: bool,

    /// Print the link types of the interface
    #[arg(long, requires = "extcap_interface")]
    extcap_dlts: bool,

    /// Print the options of a capture
    #[arg(long, requires = "extcap_interface")]
    extcap_config: bool,

    /// An interface, as it is printed: `weir-` and its name
    #[arg(long, value_name = "NAME")]
    extcap_interface: Option<String>,

    /// Wireshark's version, which makes no difference
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,

    /// A pcap-filter(7) expression; without --capture, only check it
    #[arg(long, value_name = "EXPR", allow_hyphen_values = true)]
    extcap_capture_filter: Option<String>,

    /// Write frames to the FIFO
    #[arg(long, requires_all = ["extcap_interface", "fifo"])]
    capture: bool,

    /// The FIFO
    #[arg(long, value_name = "PATH")]
    fifo: Option<PathBuf>,

    /// Write at most this many bytes of a frame; 0 means all
    #[arg(long, value_name = "BYTES", default_value = "0")]
    snaplen: u32,

    /// Take the frames: no port of lower priority, nor the host, gets them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true")]
    take: String,

    /// Priority: ports of higher priority get a frame earlier
    #[arg(long, value_name = "N", default_value = "0")]
    priority: u16,

    /// Size of the queue, such as 8MiB; by default 4MiB, or less if the policy's grant has no
    /// room for it
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "",
        hide_default_value = true
    )]
    queue: String,

    /// The broker's socket, if it is not the usual one
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true
    )]
    socket: String,
}

/// The arguments of `weir listen`, by themselves.
#[derive(Parser, Debug)]
struct Listen {
    #[command(flatten)]
    args: listen::Args,
}

/// The arguments of a run under Wireshark's name for it, with the command's own name.
pub(crate) fn arguments(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = arguments.collect();
    let is_it = all
        .first()
        .is_some_and(|name| Path::new(name).file_name() == Some(PROGRAM.as_ref()));
    if is_it {
        all[0] = "weir".into();
        all.insert(1, "extcap".into());
    }
    all
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if let Some(folder) = &args.install {
        return install(folder.as_deref());
    }
    if args.extcap_interfaces {
        return print(&interfaces()?);
    }
    let Some(name) = args
        .extcap_interface
        .as_deref()
        .and_then(|name| name.strip_prefix(PREFIX))
    else {
        return Err(CliError::refused(
            "give --install once, or the arguments that Wireshark gives: --extcap-interfaces, or \
             --extcap-interface weir-IF",
        ));
    };
    if args.extcap_dlts {
        return print(&link_type(name)?);
    }
    if args.extcap_config {
        return print(CONFIG);
    }
    let filter = args.extcap_capture_filter.as_deref().unwrap_or_default();
    if !args.capture {
        // Wireshark shows what is printed as the error.
        let checked =
            Compiler::default().compile(Language::Expr, filter.as_bytes(), LinkType::EN10MB);
        return match checked {
            Ok(_) => Ok(()),
            Err(why) => print(&format!("{why}\n")),
        };
    }
    capture(args, name, filter)
}

fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).map_err(CliError::output)
}

fn interfaces() -> Result<String, CliError> {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=weir}}\n");
    let up = names_up()?;
    for name in up.iter().map(String::as_str).chain([ANY]) {
        let shown = match name {
            ANY => "weir: every interface that is up".to_owned(),
            name => format!("weir: {}", plain(name)),
        };
        let _ = writeln!(
            text,
            "interface {{value={PREFIX}{}}}{{display={shown}}}",
            plain(name)
        );
    }
    Ok(text)
}

/// A name without the characters that end a value of the protocol.
fn plain(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '{' | '}') && !c.is_control())
        .collect()
}

fn link_type(name: &str) -> Result<String, CliError> {
    let linktype = match name {
        ANY => LinkType::EN10MB,
        name => {
            let interface = Interface::named(name).map_err(CliError::run)?;
            interface.linktype.unwrap_or(LinkType::EN10MB)
        }
    };
    let number = linktype.0;
    Ok(format!(
        "dlt {{number={number}}}{{name={linktype}}}{{display={linktype}}}\n"
    ))
}

/// The size of the queue if none is given, and the grant has room for it.
const QUEUE_DEFAULT: Bytes = Bytes(4 << 20);

/// The options that Wireshark's dialog shows.
const CONFIG: &str = "\
arg {number=0}{call=--snaplen}{display=Snap length}{type=integer}{range=0,262144}{default=0}{tooltip=Bytes of a frame to receive; 0 is all}
arg {number=1}{call=--take}{display=Take the frames}{type=boolean}{default=false}{tooltip=No port of lower priority, nor this host, gets them}
arg {number=2}{call=--priority}{display=Priority}{type=integer}{range=0,65535}{default=0}{tooltip=Ports of higher priority get a frame earlier}
arg {number=3}{call=--queue}{display=Queue}{type=string}{tooltip=Size of the queue, such as 8MiB; without it, 4MiB or what the grant has room for}
arg {number=4}{call=--socket}{display=Broker}{type=string}{tooltip=The broker's socket, if it is not the usual one}
";

/// Captures as `weir listen` does.
fn capture(args: &Args, name: &str, filter: &str) -> Result<(), CliError> {
    let fifo = args.fifo.as_deref().unwrap_or(Path::new("-"));
    let mut words: Vec<OsString> = vec!["listen".into(), "--quiet".into(), "--write".into()];
    words.push(fifo.into());
    words.extend(["--snapshot-length".into(), args.snaplen.to_string().into()]);
    words.extend(["--priority".into(), args.priority.to_string().into()]);
    if !args.queue.is_empty() {
        words.extend(["--queue".into(), args.queue.clone().into()]);
    }
    if args.take == "true" {
        words.push("--take".into());
    }
    if !args.socket.is_empty() {
        words.extend(["--socket".into(), args.socket.clone().into()]);
    }
    words.extend(["--".into(), name.into()]);
    if !filter.is_empty() {
        words.push(filter.into());
    }
    let mut listen = Listen::try_parse_from(words).map_err(CliError::refused)?;
    listen.args.queue_default = QUEUE_DEFAULT;
    match listen::run(&listen.args) {
        // Wireshark ends a capture by a signal, or closes the FIFO.
        Err(CliError::Stopped(_) | CliError::OutputClosed) => Ok(()),
        Err(CliError::Run(error)) if error.to_string().contains("Broken pipe") => Ok(()),
        Err(error) => {
            end_fifo(fifo);
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Opens and closes the FIFO of a capture that failed before it: until then tshark waits for a writer,
/// and does not look at what this process has said.
fn end_fifo(fifo: &Path) {
    let is_fifo = |facts: std::fs::Metadata| facts.file_type().is_fifo();
    if !std::fs::metadata(fifo).is_ok_and(is_fifo) {
        return;
    }
    let began = Instant::now();
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Refused as long as there is no reader.
    while rustix::fs::open(fifo, flags, Mode::empty()).is_err() && began.elapsed() < READER_WAIT {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Puts the link where Wireshark looks.
fn install(folder: Option<&Path>) -> Result<(), CliError> {
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => wiresharks_folder()?,
    };
    let cannot = |error: std::io::Error| CliError::run(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(cannot)?;
    let link = folder.join(PROGRAM);
    let program = std::env::current_exe().map_err(cannot)?;
    if link
        .symlink_metadata()
        .is_ok_and(|facts| facts.is_symlink())
    {
        std::fs::remove_file(&link).map_err(cannot)?;
    }
    symlink(&program, &link).map_err(cannot)?;
    print(&format!(
        "{} is now {}\n",
        link.display(),
        program.display()
    ))
}

/// For root the system's folder of Wireshark, for others one of their own.
fn wiresharks_folder() -> Result<PathBuf, CliError> {
    if !rustix::process::geteuid().is_root() {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let home =
            home.ok_or_else(|| CliError::refused("HOME is not set: give --install a folder"))?;
        return Ok(home.join(".local/lib/wireshark/extcap"));
    }
    let mut places: Vec<PathBuf> = [
        "/usr/lib/wireshark/extcap",
        "/usr/local/lib/wireshark/extcap",
    ]
    .map(PathBuf::from)
    .into();
    let by_architecture = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    places.extend(by_architecture.map(|entry| entry.path().join("wireshark/extcap")));
    let found = places.into_iter().find(|place| place.is_dir());
    found.ok_or_else(|| {
        CliError::run(
            "no folder of Wireshark is found: give --install the `Extcap path` that `tshark -G folders` prints",
        )
    })
}
