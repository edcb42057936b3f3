//! `weir nat`: short for `weir run` with one translator.

use super::{LiveArgs, Source, is_v4, live, parse, print};
use crate::error::CliError;
use crate::report::stdout;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use weir_chain::nat::log::Inverted;

/// Translate the IPv4 addresses and ports of an inside to those of an outside
///
/// Routes as `weir route` does, with the kernel's routes, and translates what
/// leaves by OUT (RFC 4787, 5382, 5508, 6888). Short for a configuration of
/// `weir run`, which --print shows.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir nat in0 out0
  weir nat in0 out0 --pool 203.0.113.1 --block 1024 --log nat.ndjson
  weir nat in0 out0 --forward tcp:203.0.113.1:80=10.0.0.80:8080
  weir nat in0 out0 --print > box.toml
  weir nat --find udp:203.0.113.1:2345 --time 1767225600 --log nat.ndjson")]
pub(crate) struct Args {
    /// The link of the inside
    #[arg(value_name = "IN", required_unless_present = "find")]
    inside: Option<String>,

    /// The link of the outside
    #[arg(value_name = "OUT", required_unless_present = "find")]
    outside: Option<String>,

    /// Static forward, such as tcp:203.0.113.1:80=10.0.0.80:8080
    #[arg(long, value_name = "PROTOCOL:ADDR:PORT=ADDR:PORT", value_parser = forward)]
    forward: Vec<Forward>,

    /// Translate the addresses that hosts of the inside name on control connections
    /// of FTP (port 21): clients in active mode, servers behind a --forward
    #[arg(long)]
    ftp: bool,

    #[command(flatten)]
    translator: TranslatorArgs,

    /// Only print the configuration for `weir run`
    #[arg(long)]
    print: bool,

    /// Find in the log which subscriber had a port, such as udp:203.0.113.1:2345
    #[arg(long, value_name = "PROTOCOL:ADDR:PORT", requires = "log", requires = "time", conflicts_with_all = ["inside", "print"])]
    find: Option<String>,

    /// The time to find, in seconds since 1970, with a fraction if need be
    #[arg(long, value_name = "SECONDS", requires = "find")]
    time: Option<f64>,

    #[command(flatten)]
    live: LiveArgs,
}

/// Options of the translators of both kinds.
#[derive(clap::Args, Debug)]
pub(super) struct TranslatorArgs {
    /// The public addresses, by default those of OUT; the router answers ARP for
    /// them
    #[arg(long, value_name = "ADDR", value_delimiter = ',', value_parser = v4)]
    pool: Vec<String>,

    /// Number of ports of a block; a subscriber gets ports in blocks
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(16..=64_512),
          allow_negative_numbers = true)]
    block: u32,

    /// File for a line of JSON for each block that a subscriber gets or gives
    /// back
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Send the same lines as syslog messages (RFC 5424) to this address and
    /// port by UDP, or to a local socket, such as /dev/log
    #[arg(long, value_name = "ADDR:PORT|SOCKET")]
    syslog: Option<String>,

    /// Send the blocks and forwards of the log as IPFIX (RFC 8158) to the
    /// collector at this address and port, by UDP
    #[arg(long, value_name = "ADDR:PORT")]
    ipfix: Option<String>,

    /// Which packets from the outside a mapping lets in: endpoint-independent,
    /// address, address-and-port
    #[arg(long, value_name = "WHAT", default_value = "address-and-port", value_parser = ["endpoint-independent", "address", "address-and-port"])]
    filtering: String,
}

impl TranslatorArgs {
    /// The configuration before the stage.
    pub(super) fn head(&self, inside: &str, outside: &str) -> String {
        let mut text = String::new();
        let [inside, outside] = [inside, outside].map(quoted);
        let _ = writeln!(text, "outside = {outside}");
        if let Some(log) = &self.log {
            let _ = writeln!(text, "log = {}", quoted(&log.to_string_lossy()));
        }
        if let Some(to) = &self.syslog {
            let _ = writeln!(text, "syslog = {}", quoted(to));
        }
        if let Some(to) = &self.ipfix {
            let _ = writeln!(text, "ipfix = {}", quoted(to));
        }
        let _ = writeln!(text, "\n[kernel]\nroutes = true");
        for name in [&inside, &outside] {
            let _ = writeln!(text, "\n[[link]]\nname = {name}");
        }
        text
    }

    /// The keys of the stage.
    pub(super) fn stage(&self, text: &mut String) {
        if !self.pool.is_empty() {
            let pool: Vec<String> = self.pool.iter().map(|address| quoted(address)).collect();
            let _ = writeln!(text, "pool = [{}]", pool.join(", "));
        }
        let _ = writeln!(text, "block = {}", self.block);
        let _ = writeln!(text, "filtering = {}", quoted(&self.filtering));
    }
}

/// A forward on the command line.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    protocol: String,
    from: String,
    to: String,
}

fn v4(text: &str) -> Result<String, String> {
    if is_v4(text) {
        Ok(text.to_owned())
    } else {
        Err("write an IPv4 address".into())
    }
}

impl Forward {
    /// Reads a forward to an end of the inside.
    pub(super) fn read(text: &str, is_inside: impl Fn(&str) -> bool) -> Option<Forward> {
        let (protocol, rest) = text.split_once(':')?;
        let (from, to) = rest.split_once('=')?;
        let is_known = matches!(protocol, "tcp" | "udp");
        (is_known && is_end_v4(from) && is_inside(to)).then(|| Forward {
            protocol: protocol.into(),
            from: from.into(),
            to: to.into(),
        })
    }

    /// Appends its table.
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "[[stage.forward]]\nprotocol = {}\nfrom = {}\nto = {}",
            quoted(&self.protocol),
            quoted(&self.from),
            quoted(&self.to)
        );
    }
}

fn is_end_v4(text: &str) -> bool {
    text.parse::<std::net::SocketAddrV4>().is_ok()
}

fn forward(text: &str) -> Result<Forward, String> {
    Forward::read(text, is_end_v4)
        .ok_or_else(|| "write it as in tcp:203.0.113.1:80=10.0.0.80:8080".into())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if let (Some(find), Some(time), Some(log)) = (&args.find, args.time, &args.translator.log) {
        return look_up(find, time, log);
    }
    let source = Source {
        name: "the command line".into(),
        text: text(args),
    };
    if args.print {
        return print(&source);
    }
    live(
        &source,
        parse(&source)?,
        &args.live,
        false,
        Path::new(""),
        None,
    )
}

/// A text as TOML.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The configuration that the options stand for.
fn text(args: &Args) -> String {
    let [inside, outside] =
        [&args.inside, &args.outside].map(|name| name.as_deref().unwrap_or_default());
    let mut text = args.translator.head(inside, outside);
    let _ = writeln!(text, "\n[[stage]]\nkind = \"nat\"");
    args.translator.stage(&mut text);
    if args.ftp {
        let _ = writeln!(text, "ftp = true");
    }
    args.forward
        .iter()
        .for_each(|forward| forward.write(&mut text));
    text
}

/// Prints the subscriber that had a port at a time.
fn look_up(find: &str, time: f64, path: &Path) -> Result<(), CliError> {
    use std::io::{BufRead, BufReader};
    let parts = || {
        let (protocol, end) = find.split_once(':')?;
        let end: std::net::SocketAddrV4 = end.parse().ok()?;
        matches!(protocol, "tcp" | "udp" | "icmp").then_some((protocol, end))
    };
    let (protocol, end) =
        parts().ok_or_else(|| CliError::refused("--find: write it as in udp:203.0.113.1:2345"))?;
    if !(0.0..1e10).contains(&time) {
        return Err(CliError::refused("--time: write seconds since 1970"));
    }
    let trouble = |error: std::io::Error| CliError::run(format!("{}: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(trouble)?;
    let mut log = Inverted::default();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A longer line is refused by its length.
        let most = weir_chain::nat::log::LINE_MAX as u64 + 2;
        let read = std::io::Read::take(&mut reader, most).read_until(b'\n', &mut line);
        if read.map_err(trouble)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        log.read(text.trim_end())
            .map_err(|error| CliError::run(format!("{}: {error}", path.display())))?;
    }
    let from = (time * 1e9) as u64;
    // A whole second is all of it: logs of other programs have no more.
    let length = if time.fract() == 0.0 { 999_999_999 } else { 0 };
    let found = log.find_all(from..=from + length, protocol, *end.ip(), end.port());
    if found.is_empty() {
        return Err(CliError::run(format!("no subscriber had {find} at {time}")));
    }
    let lines = found.iter().map(|subscriber| format!("{subscriber}\n"));
    stdout::text(&lines.collect::<String>())
}
