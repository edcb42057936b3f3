//! `weir lab meter-demo`: two subscribers, a counter between them and a server, a kill in the middle,
//! and the proof.

mod network;

use crate::error::CliError;
use crate::report::format::{self, Column};
use crate::signals::ShutdownSignal;
use network::{Network, Subscriber};
use serde::Serialize;
use std::io::Write;
use std::time::Duration;
use weir_ledger::{Ledger, UsageQuery};
use weir_meter::OwnerKind;

/// Meter two subscribers, kill the counter in the middle, and prove the records
///
/// Needs root. Alice, Bob and a server are hosts of network namespaces that
/// only this process holds, with a bridge between them, which is `weir meter`:
/// no interface of this machine is touched. An access server informs the counter
/// by RADIUS who has which address. The bridge is killed while packets pass, and
/// started again: meanwhile the kernel joins the links, and counts. In the end
/// the records say what the senders sent, to the packet.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if a host, a link or the counter cannot be made, as without root, or the proof
does not hold; 2 if an option is wrong; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.")]
pub(crate) struct Args {
    /// Datagrams that each subscriber sends in each of the four parts
    #[arg(short = 'n', long, value_name = "N", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..=100_000),
          allow_negative_numbers = true)]
    datagrams: u32,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Bytes of a datagram's payload, and of the IP packet around it.
const PAYLOAD_LEN: usize = 172;
const PACKET_LEN: u64 = PAYLOAD_LEN as u64 + 28;
/// Transport ports of the services that are used.
const SERVICES: [(&str, u16); 2] = [("dns", 53), ("web", 443)];

/// One subscriber's traffic of one service, sent and counted: packets, then bytes.
#[derive(Serialize, Debug, Default, PartialEq, Eq, Clone)]
struct Usage {
    subscriber: String,
    service: String,
    sent: [u64; 2],
    counted: [u64; 2],
}

/// The results, stable for scripts.
#[derive(Serialize, Debug)]
struct Report {
    usage: Vec<Usage>,
    /// Datagrams that arrived at the server while no bridge ran.
    passed_without: u64,
    /// Periods that were compared.
    periods: usize,
    holds: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let tell = |line: &str| {
        if !args.json {
            // What cannot be printed now is not printed at the end either.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        if stop.is_requested() {
            Err(CliError::Stopped(stop.signal()))
        } else {
            Ok(())
        }
    };
    let mut network = Network::new()?;
    tell(
        "alice 10.0.1.2 ─┐\n                 ├─ bridge that counts ─ server 203.0.113.2\nbob   10.0.1.3 ─┘\n",
    )?;
    network.start_counter()?;
    tell("The bridge runs, and counts: weir meter --config counter.toml")?;
    let mut sent = Sent::default();
    for subscriber in [Subscriber::Alice, Subscriber::Bob] {
        let took = network.account(subscriber, true)?;
        let (name, took) = (subscriber.name(), micros(took));
        tell(&format!(
            "RADIUS: Start of {name}'s session, answered in {took}, when it was on the disk"
        ))?;
    }
    let count = args.datagrams;
    let both = [Subscriber::Alice, Subscriber::Bob];
    sent.add(&network, &both, count, true)?;
    tell(&format!("Both send {count} datagrams for each service."))?;
    let before = sent.packets();
    let arrived = network.arrived(before);
    network.kill_counter()?;
    sent.add(&network, &both, count, true)?;
    let sent_without = sent.packets() - before;
    let passed_without = network.arrived(arrived + sent_without) - arrived;
    tell(&format!(
        "kill -9: no bridge runs. {} of {} arrive meanwhile: the kernel joins the links, and counts.",
        format::grouped(passed_without),
        format::counted(sent_without, "datagram")
    ))?;
    network.start_counter()?;
    tell("The bridge runs again: it takes over counters, sessions and the period.")?;
    sent.add(&network, &both, count, true)?;
    network.account(Subscriber::Bob, false)?;
    sent.add(&network, &[Subscriber::Alice], count, true)?;
    sent.add(&network, &[Subscriber::Bob], count, false)?;
    tell("RADIUS: Stop of bob's session; what he sends now is of nobody known.\n")?;
    network.stop_counter()?;
    let report = report(&network, &sent, passed_without)?;
    if args.json {
        let line = serde_json::to_string(&report).map_err(CliError::run)?;
        writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
    } else {
        print(&report)?;
    }
    if report.holds {
        Ok(())
    } else {
        Err(CliError::run("the records are not what was sent"))
    }
}

/// The sent traffic, by owner and service.
#[derive(Default)]
struct Sent(Vec<Usage>);

impl Sent {
    /// Each of these sends as many datagrams for each service; `is_known` says whether a session has
    /// the sender's address.
    fn add(
        &mut self,
        network: &Network,
        senders: &[Subscriber],
        count: u32,
        is_known: bool,
    ) -> Result<(), CliError> {
        for sender in senders {
            for (service, port) in SERVICES {
                network.send(*sender, port, count, PAYLOAD_LEN)?;
                let owner = if is_known {
                    sender.name().to_owned()
                } else {
                    sender.address().to_string()
                };
                let found = self.0.iter_mut();
                let mut found = found.filter(|it| it.subscriber == owner && it.service == service);
                let packets = u64::from(count);
                match found.next() {
                    Some(usage) => {
                        usage.sent[0] += packets;
                        usage.sent[1] += packets * PACKET_LEN;
                    }
                    None => self.0.push(Usage {
                        subscriber: owner,
                        service: service.to_owned(),
                        sent: [packets, packets * PACKET_LEN],
                        counted: [0; 2],
                    }),
                }
            }
        }
        Ok(())
    }

    fn packets(&self) -> u64 {
        self.0.iter().map(|usage| usage.sent[0]).sum()
    }
}

fn report(network: &Network, sent: &Sent, passed_without: u64) -> Result<Report, CliError> {
    let ledger = Ledger::open(&network.store()).map_err(CliError::run)?;
    let rows = ledger.usage(&UsageQuery::default(), &jiff::tz::TimeZone::UTC);
    let mut usage = sent.0.clone();
    for row in rows.map_err(CliError::run)? {
        let found = usage.iter_mut();
        let mut found =
            found.filter(|it| it.subscriber == row.subscriber && it.service == row.service);
        match found.next() {
            Some(usage) => {
                usage.counted[0] += row.packets[0];
                usage.counted[1] += row.bytes[0];
            }
            // Neighbour discovery and such.
            None if row.owner == OwnerKind::Session => usage.push(Usage {
                subscriber: row.subscriber,
                service: row.service,
                sent: [0; 2],
                counted: [row.packets[0], row.bytes[0]],
            }),
            None => {}
        }
    }
    let proof = ledger.prove(None, None).map_err(CliError::run)?;
    let is_equal = usage.iter().all(|usage| usage.sent == usage.counted);
    Ok(Report {
        usage,
        passed_without,
        periods: proof.periods.len(),
        holds: proof.holds() && is_equal,
    })
}

fn print(report: &Report) -> Result<(), CliError> {
    let columns = [
        Column::Left("owner"),
        Column::Left("service"),
        Column::Right("packets sent"),
        Column::Right("counted"),
        Column::Right("bytes sent"),
        Column::Right("counted"),
        Column::Left(""),
    ];
    let rows = report.usage.iter().map(|usage| {
        let verdict = if usage.sent == usage.counted {
            "equal"
        } else {
            "NOT EQUAL"
        };
        vec![
            usage.subscriber.clone(),
            usage.service.clone(),
            format::grouped(usage.sent[0]),
            format::grouped(usage.counted[0]),
            format::grouped(usage.sent[1]),
            format::grouped(usage.counted[1]),
            verdict.to_owned(),
        ]
    });
    let table = format::table(&columns, rows);
    let verdict = if report.holds {
        "proof: in each period link = sessions + unattributed = ledger, and the records are what was sent"
    } else {
        "NO PROOF"
    };
    let periods = format::counted(report.periods as u64, "period");
    let mut out = std::io::stdout();
    writeln!(out, "{table}\n\n{verdict} ({periods})").map_err(CliError::output)
}

fn micros(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
