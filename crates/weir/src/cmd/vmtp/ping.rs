//! `weir vmtp ping`: probes.

use super::{LinkArgs, call_failure};
use crate::error::CliError;
use crate::report::round_trips::RoundTrips;
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use serde_json::json;
use std::time::{Duration, Instant};
use weir_vmtp::{Entity, Request};

/// Probe a server, or all VMTP hosts of the link
///
/// With a server, measures the round trip: the minimal transaction. Without, lists all hosts whose
/// managers answer within a second.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The server
    #[arg(value_name = "NUMBER@ADDRESS")]
    server: Option<Entity>,

    #[command(flatten)]
    link: LinkArgs,

    /// Number of transactions
    #[arg(short, long, value_name = "N", default_value_t = 10, requires = "server",
          value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    count: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How long the managers' answers are collected.
const COLLECT: Duration = Duration::from_secs(1);

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let mut client = args.link.client()?;
    let Some(server) = args.server else {
        let request = Request {
            collect: Some(COLLECT),
            ..Request::probe(Entity::MANAGERS)
        };
        let found = client.call_group(request, || stop.is_requested());
        let found = found.map_err(|error| call_failure(error, stop))?;
        if found.is_empty() {
            return Err(CliError::run(format!(
                "no VMTP host on {} answers",
                args.link.link
            )));
        }
        let mut names: Vec<String> = found.iter().map(|one| one.server.to_string()).collect();
        names.sort_unstable();
        return stdout::report(args.json, &json!({"servers": names}), || names.join("\n"));
    };
    let mut times = Vec::new();
    let mut trouble = None;
    for _ in 0..args.count {
        let began = Instant::now();
        match client.call(Request::probe(server), || stop.is_requested()) {
            Ok(_) => times.push(began.elapsed()),
            Err(error) => {
                trouble = Some(call_failure(error, stop));
                break;
            }
        }
    }
    let sent = times.len() + usize::from(trouble.is_some());
    let trips = RoundTrips::of(&times);
    let answered = times.len();
    let json = json!({
        "sent": sent,
        "answered": answered,
        "microseconds": trips.json(),
    });
    stdout::report(args.json, &json, || {
        format!("{answered} of {sent} answered; {}", trips.text())
    })?;
    trouble.map_or(Ok(()), Err)
}
