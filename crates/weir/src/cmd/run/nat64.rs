//! `weir nat64`: short for `weir run` with one translator between IPv6 and IPv4.

use super::nat::{self, Forward, TranslatorArgs};
use super::{LiveArgs, Source, live, parse, print};
use crate::error::CliError;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use weir_chain::nat::nat64::TranslationPrefix;

/// Translate between an inside of IPv6 and an outside of IPv4 (stateful NAT64)
///
/// Routes as `weir route` does, with the kernel's routes, and translates what
/// the inside sends to the addresses of a prefix, each of which stands for an
/// IPv4 address (RFC 6146, 7915, 6052). Names get such addresses by a resolver
/// with DNS64; docs/how-to/nat.md says how. Short for a configuration of
/// `weir run`, which --print shows.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir nat64 in0 out0
  weir nat64 in0 out0 --pool 203.0.113.1 --log nat64.ndjson
  weir nat64 in0 out0 --prefix 64:ff9b:1::/96       # for private IPv4 addresses, too
  weir nat64 in0 out0 --forward tcp:203.0.113.1:80=[2001:db8:1::80]:8080
  weir nat64 in0 out0 --print > box.toml

Who had a port, as the log says: weir nat --find. The prefix 64:ff9b::/96 does not stand for private
addresses and others that are not global (RFC 6052 §3.1).")]
pub(crate) struct Args {
    /// The link of the inside
    #[arg(value_name = "IN")]
    inside: String,

    /// The link of the outside
    #[arg(value_name = "OUT")]
    outside: String,

    /// The IPv6 addresses that stand for IPv4 addresses; the length is 32, 40, 48,
    /// 56, 64 or 96
    #[arg(long, value_name = "PREFIX", default_value = "64:ff9b::/96", value_parser = prefix)]
    prefix: String,

    /// Bits of an inside address that name its subscriber: 64, a network, or 128,
    /// each address
    #[arg(long, value_name = "BITS", default_value_t = 64,
          value_parser = clap::value_parser!(u8).range(32..=128),
          allow_negative_numbers = true)]
    subscriber: u8,

    // No doc comment: rustdoc takes the brackets for a link.
    #[arg(long, value_name = "PROTOCOL:ADDR:PORT=[ADDR]:PORT", value_parser = forward,
          help = "Static forward, such as tcp:203.0.113.1:80=[2001:db8:1::80]:8080")]
    forward: Vec<Forward>,

    #[command(flatten)]
    translator: TranslatorArgs,

    /// Only print the configuration for `weir run`
    #[arg(long)]
    print: bool,

    #[command(flatten)]
    live: LiveArgs,
}

fn prefix(text: &str) -> Result<String, String> {
    let read: Result<TranslationPrefix, _> = text.parse();
    read.map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

fn forward(text: &str) -> Result<Forward, String> {
    let is_end = |text: &str| matches!(text.parse(), Ok(SocketAddr::V6(_)));
    Forward::read(text, is_end)
        .ok_or_else(|| "write it as in tcp:203.0.113.1:80=[2001:db8:1::80]:8080".into())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let source = Source {
        name: "the command line".into(),
        text: text(args),
    };
    if args.print {
        return print(&source);
    }
    let config = parse(&source)?;
    live(&source, config, &args.live, false, Path::new(""), None)
}

/// The configuration that the options stand for.
fn text(args: &Args) -> String {
    let mut text = args.translator.head(&args.inside, &args.outside);
    let _ = writeln!(text, "\n[[stage]]\nkind = \"nat64\"");
    let _ = writeln!(text, "prefix = {}", nat::quoted(&args.prefix));
    let _ = writeln!(text, "subscriber = {}", args.subscriber);
    args.translator.stage(&mut text);
    args.forward
        .iter()
        .for_each(|forward| forward.write(&mut text));
    text
}
