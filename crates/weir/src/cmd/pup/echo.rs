//! `weir pup echo`: round trips.

use super::link::{LinkArgs, failure};
use crate::error::CliError;
use crate::report::round_trips::RoundTrips;
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use serde_json::json;
use std::time::{Duration, Instant};
use weir_pup::datagram::{Address, PAYLOAD_LEN_MAX, Port, Pup, kind, socket};

/// Send Pups to a host's echo server and measure their round trips
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The host
    #[arg(value_name = "NET#HOST#")]
    host: Address,

    #[command(flatten)]
    link: LinkArgs,

    /// Number of Pups
    #[arg(short, long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    count: u32,

    /// Bytes in a Pup
    #[arg(short, long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(0..=PAYLOAD_LEN_MAX as i64),
          allow_negative_numbers = true)]
    size: u16,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Pups that a host may leave unanswered at first.
const SILENT_MAX: u32 = 3;

/// Time limit for an echo.
const ECHO_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let Address(asked) = args.host;
    let dst = Port {
        socket: if asked.socket == 0 {
            socket::ECHO
        } else {
            asked.socket
        },
        ..asked
    };
    let mut node = args.link.client(args.host)?;
    let own = node.host.bind();
    let src = node.host.port(own);
    let mut times = Vec::new();
    let mut trouble = None;
    let mut sent = 0;
    for number in 0..args.count {
        let payload: Vec<u8> = (0..args.size)
            .map(|at| (u32::from(at) + number) as u8)
            .collect();
        let began = Instant::now();
        node.host
            .send(Pup::new(kind::ECHO_ME, number, dst, src, &payload));
        sent += 1;
        let before = times.len();
        loop {
            while let Some(pup) = node.host.poll_datagram() {
                match pup.head.pup_type {
                    // The first answer: a second host of the address would count twice.
                    kind::ECHO
                        if pup.head.identifier == number
                            && pup.payload == payload
                            && times.len() == before =>
                    {
                        times.push(began.elapsed());
                    }
                    kind::ERROR => {
                        let (code, text) = pup.error_reason().unwrap_or_default();
                        trouble = Some(format!("{}: {text} (error {code:o})", args.host));
                    }
                    _ => {}
                }
            }
            let is_over = began.elapsed() >= ECHO_TIMEOUT || stop.is_requested();
            if is_over || trouble.is_some() || times.len() > before {
                break;
            }
            node.turn(Duration::from_millis(100)).map_err(failure)?;
            if times.is_empty() {
                node.link().check_sent().map_err(failure)?;
            }
        }
        // A lost Pup is counted as such; a host that answers none of the first is given up.
        let is_enough = sent == SILENT_MAX.min(args.count);
        if times.is_empty() && is_enough && trouble.is_none() {
            trouble = Some(format!("{} does not answer", args.host));
        }
        if trouble.is_some() || stop.is_requested() {
            break;
        }
    }
    let trips = RoundTrips::of(&times);
    let came_back = times.len();
    let json = json!({
        "sent": sent,
        "came_back": came_back,
        "microseconds": trips.json(),
    });
    stdout::report(args.json, &json, || {
        format!("{came_back} of {sent} came back; {}", trips.text())
    })?;
    match (stop.is_requested(), trouble) {
        (true, _) => Err(CliError::Stopped(stop.signal())),
        (false, Some(trouble)) => Err(CliError::run(trouble)),
        (false, None) => Ok(()),
    }
}
