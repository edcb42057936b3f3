//! The monitor's tables as JSON and as text.

use super::session::Session;
use crate::report::format::{self, Column::Left, Column::Right};
use serde::Serialize;
use std::cmp::Reverse;
use weir_monitor::{Counts, Flow, Host, Kind, Row, Table};

#[derive(Serialize)]
struct Sum {
    frames: u64,
    bytes: u64,
}

impl From<Counts> for Sum {
    fn from(counts: Counts) -> Sum {
        Sum {
            frames: counts.frames,
            bytes: counts.bytes,
        }
    }
}

#[derive(Serialize)]
struct Talker {
    host: String,
    sent: Sum,
    received: Sum,
}

#[derive(Serialize)]
struct Conversation {
    protocol: String,
    a: String,
    a_port: u16,
    b: String,
    b_port: u16,
    a_to_b: Sum,
    b_to_a: Sum,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

#[derive(Serialize)]
struct ProtocolRow {
    protocol: String,
    frames: u64,
    bytes: u64,
}

/// The sums of rows that are not listed.
#[derive(Serialize)]
struct Others {
    talkers: Sum,
    conversations: Sum,
    protocols: Sum,
}

#[derive(Serialize)]
struct PortRow<'a> {
    port: u32,
    interface: &'a str,
    filter: &'a str,
    priority: u16,
    copy: bool,
    pid: u32,
    uid: u32,
    delivered: u64,
    lost: u64,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    name: String,
    uid: u32,
    frames: u64,
    bytes: u64,
}

/// The report, with a stable JSON form.
#[derive(Serialize)]
struct Json<'a> {
    frames: u64,
    bytes: u64,
    lost: u64,
    seconds: f64,
    talkers: Vec<Talker>,
    conversations: Vec<Conversation>,
    protocols: Vec<ProtocolRow>,
    others: Others,
    #[serde(skip_serializing_if = "Option::is_none")]
    ports: Option<Vec<PortRow<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<Process>>,
    /// What is wrong at present with where the frames come from.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    troubles: &'a [String],
}

/// The rows with the most bytes, the greatest first, and the sum of the rest.
fn top<K: Copy + Eq + Ord + std::hash::Hash>(
    table: &Table<K>,
    rows_max: usize,
) -> (Vec<&Row<K>>, Counts) {
    let mut rows: Vec<&Row<K>> = table.rows().iter().collect();
    rows.sort_unstable_by_key(|row| (Reverse(row.total().bytes), row.key));
    let rest = &rows[rows_max.min(rows.len())..];
    let rest = rest
        .iter()
        .fold(table.overflow(), |sum, row| sum.and(row.total()));
    rows.truncate(rows_max);
    (rows, rest)
}

/// The protocol of two hosts, in a word.
pub(crate) fn kind_name(kind: Kind) -> String {
    let protocol = weir_monitor::Protocol {
        ether_type: match kind {
            Kind::Ether(number) => number,
            Kind::Ip(_) => 0x0800,
        },
        ip_protocol: match kind {
            Kind::Ether(_) => None,
            Kind::Ip(number) => Some(number),
        },
        service: 0,
    };
    let name = protocol.to_string();
    match (kind, name.split_once('/')) {
        (Kind::Ip(_), Some((_, name))) => name.to_owned(),
        _ => name,
    }
}

/// An address with its transport port, if it has one.
pub(crate) fn end_name(host: &Host, port: u16) -> String {
    match (host, port) {
        (_, 0) => host.to_string(),
        (Host::Ip(address), _) => std::net::SocketAddr::new(*address, port).to_string(),
        _ => format!("{host}:{port}"),
    }
}

/// One line of JSON with at most `rows_max` rows of each table.
pub(crate) fn json(session: &Session, rows_max: usize) -> serde_json::Result<String> {
    let model = &session.model;
    let totals = model.totals();
    let (talkers, other_talkers) = top(model.talkers(), rows_max);
    let (conversations, other_conversations) = top(model.conversations(), rows_max);
    let (protocols, other_protocols) = top(model.protocols(), rows_max);
    let conversation = |row: &&Row<Flow>| Conversation {
        protocol: kind_name(row.key.kind),
        a: row.key.a.to_string(),
        a_port: row.key.a_port,
        b: row.key.b.to_string(),
        b_port: row.key.b_port,
        a_to_b: row.out.into(),
        b_to_a: row.back.into(),
        seconds: row.last_ns.saturating_sub(row.first_ns) as f64 / 1e9,
        name: row.note.as_deref().map(str::to_owned),
        pid: session.owner(&row.key).map(|owner| owner.pid),
    };
    let facts = session.facts();
    let ports = facts.and_then(|facts| facts.ports.as_ref().ok());
    serde_json::to_string(&Json {
        frames: totals.frames,
        bytes: totals.bytes,
        lost: totals.lost,
        seconds: model.span_s(),
        talkers: talkers
            .iter()
            .map(|row| Talker {
                host: row.key.to_string(),
                sent: row.out.into(),
                received: row.back.into(),
            })
            .collect(),
        conversations: conversations.iter().map(conversation).collect(),
        protocols: protocols
            .iter()
            .map(|row| ProtocolRow {
                protocol: row.key.to_string(),
                frames: row.out.frames,
                bytes: row.out.bytes,
            })
            .collect(),
        others: Others {
            talkers: other_talkers.into(),
            conversations: other_conversations.into(),
            protocols: other_protocols.into(),
        },
        ports: ports.map(|ports| {
            let rows = ports.iter().take(rows_max);
            rows.map(|port| PortRow {
                port: port.port,
                interface: &port.interface,
                filter: &port.filter,
                priority: port.priority,
                copy: port.copy,
                pid: port.pid,
                uid: port.uid,
                delivered: port.delivered,
                lost: port.lost,
            })
            .collect()
        }),
        processes: facts.map(|_| {
            let rows = session.processes().0.into_iter().take(rows_max);
            rows.map(|(owner, counts, _)| Process {
                pid: owner.pid,
                name: owner.name.clone(),
                uid: owner.uid,
                frames: counts.frames,
                bytes: counts.bytes,
            })
            .collect()
        }),
        troubles: &session.troubles,
    })
}

/// The tables as text, with at most `rows_max` rows of each.
pub(crate) fn text(session: &Session, rows_max: usize) -> String {
    let model = &session.model;
    let totals = model.totals();
    let mut text = format!(
        "{}, {} bytes, {} lost, {:.3} s\n",
        format::frames(totals.frames),
        format::grouped(totals.bytes),
        format::grouped(totals.lost),
        model.span_s(),
    );
    let number = format::grouped;
    let rest = |rest: Counts, columns: usize| {
        let mut row = vec!["others".to_owned()];
        row.resize(columns - 2, String::new());
        row.extend([number(rest.frames), number(rest.bytes)]);
        (rest.frames > 0).then_some(row)
    };
    let (rows, other) = top(model.protocols(), rows_max);
    let cells = rows.iter().map(|row| {
        vec![
            row.key.to_string(),
            number(row.out.frames),
            number(row.out.bytes),
        ]
    });
    let columns = [Left("protocol"), Right("frames"), Right("bytes")];
    let cells: Vec<Vec<String>> = cells.chain(rest(other, 3)).collect();
    text += &format!("\n{}\n", format::table(&columns, cells.into_iter()));
    let (rows, other) = top(model.talkers(), rows_max);
    let cells = rows.iter().map(|row| {
        let (sent, received) = (row.out, row.back);
        vec![
            row.key.to_string(),
            number(sent.frames),
            number(sent.bytes),
            number(received.frames),
            number(received.bytes),
            number(row.total().frames),
            number(row.total().bytes),
        ]
    });
    let columns = [
        Left("talker"),
        Right("sent"),
        Right("bytes"),
        Right("received"),
        Right("bytes"),
        Right("frames"),
        Right("bytes"),
    ];
    let cells: Vec<Vec<String>> = cells.chain(rest(other, 7)).collect();
    text += &format!("\n{}\n", format::table(&columns, cells.into_iter()));
    let (rows, other) = top(model.conversations(), rows_max);
    let cells = rows.iter().map(|row| {
        let name = row.note.as_deref().unwrap_or_default();
        vec![
            kind_name(row.key.kind),
            end_name(&row.key.a, row.key.a_port),
            end_name(&row.key.b, row.key.b_port),
            name.to_owned(),
            number(row.total().frames),
            number(row.total().bytes),
        ]
    });
    let columns = [
        Left("protocol"),
        Left("a"),
        Left("b"),
        Left("name"),
        Right("frames"),
        Right("bytes"),
    ];
    let cells: Vec<Vec<String>> = cells.chain(rest(other, 6)).collect();
    text += &format!("\n{}", format::table(&columns, cells.into_iter()));
    text + &of_system(session, rows_max)
}

/// The tables of ports and processes, for live frames.
fn of_system(session: &Session, rows_max: usize) -> String {
    let Some(facts) = session.facts() else {
        return String::new();
    };
    let number = format::grouped;
    let mut text = String::new();
    match &facts.ports {
        Ok(ports) => {
            let columns = [
                Right("port"),
                Right("pid"),
                Left("interface"),
                Left("filter"),
                Right("delivered"),
                Right("lost"),
            ];
            let cells = ports.iter().take(rows_max).map(|port| {
                vec![
                    port.port.to_string(),
                    port.pid.to_string(),
                    port.interface.clone(),
                    port.filter.clone(),
                    number(port.delivered),
                    number(port.lost),
                ]
            });
            let cells: Vec<Vec<String>> = cells.collect();
            text += &format!("\n\n{}", format::table(&columns, cells.into_iter()));
        }
        Err(why) => text += &format!("\n\nports: {why}"),
    }
    let (processes, _) = session.processes();
    if !processes.is_empty() {
        let columns = [
            Right("pid"),
            Left("process"),
            Right("frames"),
            Right("bytes"),
        ];
        let cells = processes.iter().take(rows_max).map(|(owner, counts, _)| {
            vec![
                owner.pid.to_string(),
                owner.name.clone(),
                number(counts.frames),
                number(counts.bytes),
            ]
        });
        let cells: Vec<Vec<String>> = cells.collect();
        text += &format!("\n\n{}", format::table(&columns, cells.into_iter()));
    }
    text
}
