//! `weir ports`: the open ports and their owners.

use crate::error::{CliError, say};
use crate::input::live_port;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::signals::ShutdownSignal;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_broker::protocol::{FanoutStatus, InterfaceStatus, PortStatus};
use weir_broker::{Bytes, Connection, PortError, SOCKET_DEFAULT};

/// Show the open ports and their owners
///
/// Shows the ports of one's own user at the broker. The superuser sees all
/// ports, including those that programs of root have opened without the broker
/// in any network namespace: for another namespace than this one, its name is
/// shown.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Columns: `frames are` copied, or taken from ports of lower priority and the host; `queue` is the
queue's size, `delivered` the frames put into it, `lost` those for which it had no room; `a second`
is the present rate of `delivered`; `sent` and `refused` are frames that a user's port has sent, or
that the policy has dropped; `at` is the hook in the kernel. A filter that is a classic BPF program
is shown by its length.

Without a broker each process numbers its ports from 1: a port is then named by its process (pid)
and its number.

Exit status: 0; 1 if no broker listens, and the user is not root; 129, 130 or 143 after SIGHUP,
SIGINT or SIGTERM.")]
pub(crate) struct Args {
    /// Print one line of JSON, an array: interface, filter, priority, copy,
    /// pid, uid, delivered, lost, queue, port, sent, refused, at, namespace
    /// (the network namespace's number in /proc; null if unknown), fanout
    /// (group, unless it is a fixed share, member and members; null without)
    #[arg(long, conflicts_with = "watch")]
    json: bool,

    /// Repeat every second
    #[arg(long)]
    watch: bool,

    /// The broker's socket; then only its ports are shown [default:
    /// /run/weir/broker/socket]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// A port, with a stable JSON form.
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
    port: u32,
    sent: u64,
    refused: u64,
    at: &'a str,
    namespace: Option<u64>,
    fanout: Option<&'a FanoutStatus>,
}

/// Time between two snapshots, for the rate.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut sources = Sources::of(args.socket.as_deref())?;
    if sources.broker.is_none() {
        say(&format!(
            "weir: no broker listens on {SOCKET_DEFAULT}: shown are only ports that programs of root \
             have opened by themselves"
        ));
    }
    let mut out = std::io::stdout();
    if args.json {
        let now = sources.snapshot()?;
        return writeln!(out, "{}", json(&now.ports)?).map_err(CliError::output);
    }
    let mut before = sources.snapshot()?;
    let mut notes_before = None;
    loop {
        let pause = if args.watch {
            RATE_INTERVAL
        } else {
            STOP_POLL_INTERVAL
        };
        if stop.wait_unless_closed(pause, &out) {
            return Err(CliError::output(io::ErrorKind::BrokenPipe.into()));
        }
        if stop.is_requested() {
            return Err(CliError::Stopped(stop.signal()));
        }
        let now = sources.snapshot()?;
        let (mut table, notes) = now.table(&before);
        if args.watch && out.is_terminal() {
            // Cursor home, and erase below.
            write!(out, "\x1b[H\x1b[J").map_err(CliError::output)?;
            notes_before = None;
        }
        if notes_before.as_ref() != Some(&notes) {
            table += &notes;
            notes_before = Some(notes);
        }
        writeln!(out, "{table}").map_err(CliError::output)?;
        if !args.watch {
            return Ok(());
        }
        before = now;
    }
}

fn json(ports: &[Of<PortStatus>]) -> Result<String, CliError> {
    let ports: Vec<Json<'_>> = ports
        .iter()
        .map(|(namespace, port)| Json {
            namespace: *namespace,
            interface: &port.interface,
            filter: &port.filter,
            priority: port.priority,
            copy: port.copy,
            pid: port.pid,
            uid: port.uid,
            delivered: port.delivered,
            lost: port.lost,
            queue: port.queue,
            port: port.port,
            sent: port.sent,
            refused: port.refused,
            at: &port.attach,
            fanout: port.fanout.as_ref(),
        })
        .collect();
    serde_json::to_string(&ports).map_err(CliError::run)
}

/// The sources of information about ports.
pub(crate) struct Sources {
    broker: Option<Connection>,
    /// Whether ports of root's processes are included.
    in_process: bool,
}

impl Sources {
    /// The broker at `socket` if given; else the default one and, for the superuser, all processes.
    pub(crate) fn of(socket: Option<&Path>) -> Result<Sources, CliError> {
        if let Some(socket) = socket {
            let broker = Connection::to(socket).map_err(live_port::failure)?;
            return Ok(Sources {
                broker: Some(broker),
                in_process: false,
            });
        }
        let in_process = rustix::process::geteuid().is_root();
        let broker = match Connection::to(Path::new(SOCKET_DEFAULT)) {
            Ok(broker) => Some(broker),
            Err(PortError::NoBroker { .. }) if in_process => None,
            Err(error) => return Err(live_port::failure(error)),
        };
        Ok(Sources { broker, in_process })
    }

    /// The ports now.
    pub(crate) fn snapshot(&mut self) -> Result<PortSnapshot, CliError> {
        let mut look = PortSnapshot {
            ports: Vec::new(),
            interfaces: Vec::new(),
            at: Instant::now(),
        };
        if let Some(broker) = &mut self.broker {
            let namespace = broker.namespace();
            let ports = broker.ports().map_err(live_port::failure)?;
            let names: BTreeSet<&str> = ports.iter().map(|port| &*port.interface).collect();
            // Without permission to query, no costs are shown.
            let status = names.into_iter().map(|name| broker.interface(name));
            let status = status.filter_map(Result::ok);
            look.interfaces.extend(status.map(|one| (namespace, one)));
            look.ports
                .extend(ports.into_iter().map(|one| (namespace, one)));
        }
        if self.in_process {
            for process in weir_broker::in_process() {
                let of = process.namespace;
                look.ports
                    .extend(process.ports.into_iter().map(|one| (of, one)));
                let interfaces = process.interfaces.into_iter();
                look.interfaces.extend(interfaces.map(|one| (of, one)));
            }
        }
        Ok(look)
    }
}

/// A value of a network namespace; `None` if the namespace is unknown.
pub(crate) type Of<T> = (Option<u64>, T);

/// The ports at one time.
pub(crate) struct PortSnapshot {
    /// The ports, each with the number of its network namespace.
    pub(crate) ports: Vec<Of<PortStatus>>,
    interfaces: Vec<Of<InterfaceStatus>>,
    at: Instant,
}

/// The names of network namespaces.
struct Namespaces {
    own: Option<u64>,
    /// The names known to `ip netns`.
    names: BTreeMap<u64, String>,
}

impl Namespaces {
    fn here() -> Namespaces {
        let number = |path: &Path| Some(std::fs::metadata(path).ok()?.ino());
        let entries = std::fs::read_dir("/run/netns").into_iter().flatten();
        let named = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            Some((number(&entry.path())?, name))
        });
        Namespaces {
            own: number(Path::new("/proc/thread-self/ns/net")),
            names: named.collect(),
        }
    }

    /// The name of a namespace; `None` for this process's own and for an
    /// unknown one.
    fn other(&self, namespace: Option<u64>) -> Option<String> {
        let number = namespace.filter(|_| namespace != self.own)?;
        let name = self.names.get(&number);
        Some(name.map_or_else(|| number.to_string(), String::clone))
    }
}

impl PortSnapshot {
    /// The table, and the notes below it.
    fn table(&self, before: &PortSnapshot) -> (String, String) {
        let namespaces = Namespaces::here();
        let mut columns = vec![
            Right("pid"),
            Right("port"),
            Left("interface"),
            Left("filter"),
            Right("priority"),
            Left("frames are"),
            Right("uid"),
            Right("queue"),
            Right("delivered"),
            Right("lost"),
            Right("a second"),
            Right("sent"),
            Right("refused"),
            Left("at"),
        ];
        let others = self.ports.iter().map(|(of, _)| namespaces.other(*of));
        let others: Vec<Option<String>> = others.collect();
        let any_other = others.iter().any(Option::is_some);
        if any_other {
            columns.push(Left("namespace"));
        }
        let any_fanout = self.ports.iter().any(|(_, port)| port.fanout.is_some());
        if any_fanout {
            columns.push(Left("fan-out"));
        }
        // Each process that opens ports without the broker numbers them from 1
        // in each network namespace.
        let key = |of: Option<u64>, port: &PortStatus| (of, port.pid, port.port);
        let earlier = before.ports.iter();
        let earlier: BTreeMap<(Option<u64>, u32, u32), u64> = earlier
            .map(|(of, port)| (key(*of, port), port.delivered))
            .collect();
        let seconds = (self.at - before.at).as_secs_f64();
        let rows = self.ports.iter().zip(others).map(|((of, port), other)| {
            let since = earlier.get(&key(*of, port)).copied();
            let since = since.unwrap_or(port.delivered);
            let rate = port.delivered.saturating_sub(since) as f64 / seconds;
            let mut row = row(port, rate);
            if any_other {
                row.push(other.unwrap_or_else(|| "this".to_owned()));
            }
            if any_fanout {
                let fanout = port.fanout.as_ref();
                row.push(fanout.map_or_else(String::new, ToString::to_string));
            }
            row
        });
        let table = format::table(&columns, rows);
        let named = self.interfaces.iter().map(|(of, interface)| {
            let name = match namespaces.other(*of) {
                Some(namespace) => format!("{} ({namespace})", interface.name),
                None => interface.name.clone(),
            };
            (name, interface)
        });
        (table, notes(named))
    }
}

/// The cost of each attach point, printed once, below the names of the
/// interfaces that use it.
fn notes<'a>(interfaces: impl Iterator<Item = (String, &'a InterfaceStatus)>) -> String {
    let mut notes: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for (name, interface) in interfaces {
        if let (Some(attach), Some(cost)) = (&interface.attach, &interface.cost) {
            let names = notes.entry((attach, cost)).or_default();
            names.insert(name);
        }
    }
    let mut text = String::new();
    for ((attach, cost), names) in notes {
        let names: Vec<String> = names.into_iter().collect();
        text += &format!("\n\n{} at {attach}:", names.join(", "));
        for cost in cost.lines() {
            text += &wrapped(cost);
        }
    }
    text
}

/// A note in indented lines of at most 80 columns; each begins with a line
/// feed.
fn wrapped(note: &str) -> String {
    const COLUMNS: usize = 80;
    const INDENT: &str = "\n  ";
    let mut text = String::new();
    let mut column = COLUMNS;
    for word in note.split_whitespace() {
        let width = word.chars().count();
        if column + 1 + width > COLUMNS {
            text.push_str(INDENT);
            // The line feed occupies no column.
            column = INDENT.len() - 1;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text
}

fn row(port: &PortStatus, rate: f64) -> Vec<String> {
    /// Number of characters after which a filter is cut.
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
        port.pid.to_string(),
        port.port.to_string(),
        port.interface.clone(),
        filter,
        port.priority.to_string(),
        if port.copy { "copied" } else { "taken" }.into(),
        port.uid.to_string(),
        Bytes(port.queue).to_string(),
        format::grouped(port.delivered),
        format::grouped(port.lost),
        format::grouped(rate.round() as u64),
        format::grouped(port.sent),
        format::grouped(port.refused),
        port.attach.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_attachment_costs_is_said_once() {
        let status = |name: &str, cost: Option<&str>| InterfaceStatus {
            name: name.into(),
            ifindex: 2,
            linktype: 1,
            header_len: 14,
            address: String::new(),
            broadcast: String::new(),
            mtu: 1500,
            addresses: Vec::new(),
            up: true,
            running: true,
            dropped: 0,
            attach: cost.map(|_| "tc".to_owned()),
            cost: cost.map(str::to_owned),
        };
        // Several processes of root may report the same interface.
        let all = [
            status("eth1", Some("little\nand more")),
            status("eth0", Some("little\nand more")),
            status("eth1", Some("little\nand more")),
            status("lo", None),
        ];
        let named = all.iter().map(|one| (one.name.clone(), one));
        assert_eq!(notes(named), "\n\neth0, eth1 at tc:\n  little\n  and more");
        assert_eq!(notes(std::iter::empty()), "");
    }

    #[test]
    fn a_long_note_is_wrapped_at_80_columns() {
        let note = "word ".repeat(40);
        let text = wrapped(note.trim());
        let lines: Vec<&str> = text.split('\n').skip(1).collect();
        assert!(
            lines
                .iter()
                .all(|line| line.len() <= 80 && line.starts_with("  word"))
        );
        let words = lines.iter().map(|line| line.split_whitespace().count());
        assert_eq!((lines.len(), words.sum::<usize>()), (3, 40));
    }

    #[test]
    fn a_namespace_is_called_by_its_name_unless_it_is_this() {
        let namespaces = Namespaces {
            own: Some(1),
            names: BTreeMap::from([(2, "blue".to_owned())]),
        };
        let called = [None, Some(1), Some(2), Some(3)].map(|one| namespaces.other(one));
        assert_eq!(called, [None, None, Some("blue".into()), Some("3".into())]);
    }
}
