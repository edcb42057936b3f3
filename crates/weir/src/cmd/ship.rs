//! `weir ship`: a counter's chunks to mediators on other machines, by NATS JetStream.

use super::mediate::random;
use crate::error::{CliError, harmless, say};
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use weir_ledger::{NatsError, Shipped, Shipper, Spool};

/// Send a counter's records to mediators on other machines
///
/// Publishes the chunks of a spool of `weir meter` to a NATS server with JetStream, from which any
/// number of `weir mediate` with the key `nats` take them. A chunk stays in the spool until a ledger
/// has it; what none has acknowledged is published again. Says `ready` on standard error.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir ship --spool /var/lib/weir/pop-1.spool --nats nats://192.0.2.7
  weir ship --spool pop-1.spool --nats 'tls://weir:secret@nats:4222?ca=ca.pem' --once

Exit status: 0, after a signal too; 1 if the spool cannot be used, or, with --once, if not all was
acknowledged; 2 if the URL is wrong.")]
pub(crate) struct Args {
    /// The spool
    #[arg(long, value_name = "FILE")]
    spool: PathBuf,

    /// The server
    #[arg(long, value_name = "URL")]
    nats: String,

    /// End when a ledger has acknowledged all, or after ten seconds without an
    /// acknowledgment
    #[arg(long)]
    once: bool,

    /// At the end, print what was done as a line of JSON
    #[arg(long)]
    json: bool,
}

/// How long a look listens for acknowledgments.
const LISTEN: Duration = Duration::from_millis(200);
/// Between two attempts to reach the server.
const RETRY: Duration = Duration::from_secs(1);
/// Looks without an acknowledgment after which `--once` ends.
const POLLS_MAX: u32 = 50;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    weir_ledger::check_nats_url(&args.nats)
        .map_err(|why| CliError::refused(harmless(&why.to_string())))?;
    if !args.spool.exists() {
        let missing = weir_ledger::LedgerError::Missing(args.spool.clone());
        return Err(CliError::run(missing));
    }
    let mut spool = Spool::open(&args.spool).map_err(CliError::run)?;
    let mut watchdog = Watchdog::new(None)?;
    if !args.once {
        watchdog.ready();
        say("ready");
    }
    let mut done = Shipped::default();
    let (mut shipper, mut alarm, mut idle) = (None, None, 0);
    let left = loop {
        match look(args, &mut spool, &mut shipper) {
            Ok(shipped) => {
                done.published += shipped.published;
                done.acknowledged += shipped.acknowledged;
                idle = if shipped.acknowledged > 0 {
                    0
                } else {
                    idle + 1
                };
                if alarm.take().is_some() {
                    say("weir: NATS: works again");
                }
            }
            Err(NatsError::Ledger(error)) if !error.is_transient() => {
                return Err(CliError::run(error));
            }
            Err(error) => {
                shipper = None;
                idle += 5;
                let why = error.to_string();
                if alarm.as_ref() != Some(&why) {
                    say(&harmless(&format!("weir: {why}")));
                    alarm = Some(why);
                }
                if !args.once || idle < POLLS_MAX {
                    stop.wait(RETRY);
                }
            }
        }
        let left = spool.waiting().map_err(CliError::run)?;
        if stop.is_requested() || args.once && (left == 0 || idle >= POLLS_MAX) {
            break left;
        }
        watchdog.beat();
    };
    if args.json {
        let line = serde_json::to_string(&done).map_err(CliError::run)?;
        writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
    }
    if args.once && left > 0 {
        return Err(CliError::run(format!(
            "{left} chunks are not acknowledged by a ledger; they stay in {}",
            args.spool.display()
        )));
    }
    Ok(())
}

fn look(
    args: &Args,
    spool: &mut Spool,
    shipper: &mut Option<Shipper>,
) -> Result<Shipped, NatsError> {
    let shipper = match shipper {
        Some(shipper) => shipper,
        empty => empty.insert(Shipper::connect(&args.nats, random())?),
    };
    shipper.ship(spool, LISTEN)
}
