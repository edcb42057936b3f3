//! `weir ports`: who holds which ports.

use crate::failure::Failure;
use crate::live;
use crate::stop::Stop;
use crate::text::{
    self,
    Column::{Left, Right},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_broker::protocol::PortStatus;
use weir_broker::{Bytes, Connection, SOCKET_DEFAULT};

/// Show the ports that the broker has open
///
/// One's own user's; the superuser sees all. Ports that root has opened
/// without the broker belong to their process alone and are not among them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if no broker listens; 130 or 143 after SIGINT or SIGTERM.")]
pub(crate) struct Args {
    /// Print one line of JSON, an array: interface, filter, priority, copy,
    /// pid, uid, delivered, lost, queue
    #[arg(long, conflicts_with = "watch")]
    json: bool,

    /// Show them again every second
    #[arg(long)]
    watch: bool,

    /// The broker's socket
    #[arg(long, value_name = "PATH", default_value = SOCKET_DEFAULT)]
    socket: PathBuf,
}

/// A port, stable for scripts.
#[derive(Serialize)]
struct Json<'a> {
    interface: &'a str,
    filter: &'a str,
    priority: u16,
    copy: bool,
    pid: u32,
    uid: u32,
    delivered: u64,
    lost: u64,
    queue: u64,
}

/// Between two looks, for the rate.
const WATCH: Duration = Duration::from_secs(1);
const GLANCE: Duration = Duration::from_millis(200);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::watch()?;
    let mut connection = Connection::to(&args.socket).map_err(live::failure)?;
    let mut out = std::io::stdout();
    if args.json {
        let ports = connection.ports().map_err(live::failure)?;
        return writeln!(out, "{}", json(&ports)?).map_err(Failure::output);
    }
    let mut before = Look::new(&mut connection)?;
    loop {
        stop.wait(if args.watch { WATCH } else { GLANCE });
        if stop.asked() {
            return Err(Failure::Stopped(stop.signal()));
        }
        let now = Look::new(&mut connection)?;
        let table = now.table(&before, &mut connection);
        if args.watch && out.is_terminal() {
            // Home, and erase what is below.
            write!(out, "\x1b[H\x1b[J").map_err(Failure::output)?;
        }
        writeln!(out, "{table}").map_err(Failure::output)?;
        if !args.watch {
            return Ok(());
        }
        before = now;
    }
}

fn json(ports: &[PortStatus]) -> Result<String, Failure> {
    let ports: Vec<Json<'_>> = ports
        .iter()
        .map(|port| Json {
            interface: &port.interface,
            filter: &port.filter,
            priority: port.priority,
            copy: port.copy,
            pid: port.pid,
            uid: port.uid,
            delivered: port.delivered,
            lost: port.lost,
            queue: port.queue,
        })
        .collect();
    serde_json::to_string(&ports).map_err(Failure::run)
}

/// The ports at a time.
struct Look {
    ports: Vec<PortStatus>,
    at: Instant,
}

impl Look {
    fn new(connection: &mut Connection) -> Result<Look, Failure> {
        Ok(Look {
            ports: connection.ports().map_err(live::failure)?,
            at: Instant::now(),
        })
    }

    fn table(&self, before: &Look, connection: &mut Connection) -> String {
        let columns = [
            Right("port"),
            Left("interface"),
            Left("filter"),
            Right("priority"),
            Left("frames are"),
            Right("uid"),
            Right("pid"),
            Right("queue"),
            Right("delivered"),
            Right("lost"),
            Right("a second"),
            Left("at"),
        ];
        let earlier: BTreeMap<u32, u64> = before
            .ports
            .iter()
            .map(|port| (port.port, port.delivered))
            .collect();
        let seconds = (self.at - before.at).as_secs_f64();
        let rows = self.ports.iter().map(|port| {
            let since = earlier.get(&port.port).copied().unwrap_or(0);
            let rate = port.delivered.saturating_sub(since) as f64 / seconds;
            row(port, rate)
        });
        let mut table = text::table(&columns, rows);
        let interfaces: BTreeSet<&str> = self.ports.iter().map(|p| &*p.interface).collect();
        for name in interfaces {
            // Whoever may not ask sees no costs.
            if let Ok(status) = connection.interface(name)
                && let (Some(attach), Some(cost)) = (status.attach, status.cost)
            {
                table += &format!("\n\n{name} at {attach}: {cost}");
            }
        }
        table
    }
}

fn row(port: &PortStatus, rate: f64) -> Vec<String> {
    /// Longer filters are cut.
    const FILTER_CHARS: usize = 48;
    let mut filter: String = port
        .filter
        .chars()
        .take(FILTER_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if port.filter.chars().count() > FILTER_CHARS {
        filter.push('…');
    }
    if filter.is_empty() {
        filter.push_str("(all)");
    }
    vec![
        port.port.to_string(),
        port.interface.clone(),
        filter,
        port.priority.to_string(),
        if port.copy { "copied" } else { "taken" }.into(),
        port.uid.to_string(),
        port.pid.to_string(),
        Bytes(port.queue).to_string(),
        text::grouped(port.delivered),
        text::grouped(port.lost),
        text::grouped(rate.round() as u64),
        port.attach.clone(),
    ]
}
