//! The report of `weir experiment adapter`, and its plots.

mod program;

use super::super::NOT_IN_OUR_COPY;
use super::under_exec::Ran;
use super::{Protocols, name};
use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{self, Left, Right};
use crate::report::plot::{self, Curve, Frame, draw};
use program::Program;
use serde::Serialize;
use std::path::Path;
use weir_experiments::adapter::{Split, Transport};

/// The columns of tables by the bytes of a message.
const BY_BYTES: [Column<'static>; 6] = [
    Left(""),
    Right("bytes"),
    Right("paper"),
    Right("SYS"),
    Right("MUX"),
    Right("OPT"),
];

/// One-byte round trips.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Latency {
    transport: &'static str,
    protocols: &'static str,
    /// The paper's tables are missing from our copy of it.
    paper: Option<f64>,
    client_send_ns: f64,
    server_receive_and_send_ns: f64,
    client_receive_ns: f64,
    round_trip_ns: f64,
}

impl Latency {
    pub(super) fn new(transport: Transport, protocols: Protocols, split: &Split) -> Latency {
        Latency {
            transport: name(transport),
            protocols: protocols.name(),
            paper: None,
            client_send_ns: split.client_send_ns,
            server_receive_and_send_ns: split.server_ns,
            client_receive_ns: split.client_receive_ns,
            round_trip_ns: split.round_trip_ns(),
        }
    }
}

/// Messages of one size.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Throughput {
    pub(super) transport: &'static str,
    pub(super) protocols: &'static str,
    pub(super) bytes: usize,
    pub(super) gbit_s: f64,
}

/// Everything: the best of all rounds, and what the program has measured.
#[derive(Serialize, Debug)]
pub(super) struct Report {
    trips: u32,
    rounds: u32,
    latency: Vec<Latency>,
    throughput: Vec<Throughput>,
    #[serde(flatten)]
    program: Program,
}

impl Report {
    pub(super) fn new(trips: u32, rounds: u32) -> Report {
        Report {
            trips,
            rounds,
            latency: Vec::new(),
            throughput: Vec::new(),
            program: Program::default(),
        }
    }

    /// Takes what the program has measured.
    pub(super) fn program(&mut self, ran: &Ran) {
        self.program = Program::new(ran);
    }

    /// Takes a round's, if it is the best so far.
    pub(super) fn latency(&mut self, new: Latency) {
        let same =
            |old: &&mut Latency| (old.transport, old.protocols) == (new.transport, new.protocols);
        match self.latency.iter_mut().find(same) {
            Some(old) if old.round_trip_ns > new.round_trip_ns => *old = new,
            Some(_) => {}
            None => self.latency.push(new),
        }
    }

    /// Takes a round's, if it is the best so far.
    pub(super) fn throughput(&mut self, new: Throughput) {
        let same = |old: &&mut Throughput| {
            (old.transport, old.protocols, old.bytes) == (new.transport, new.protocols, new.bytes)
        };
        match self.throughput.iter_mut().find(same) {
            Some(old) => old.gbit_s = old.gbit_s.max(new.gbit_s),
            None => self.throughput.push(new),
        }
    }

    pub(super) fn table(&self) -> String {
        format!(
            "One-byte round trips, medians of {}, the best of {} rounds\n\n{}\n\n\
             Gb/s by the bytes of a message, of the processor time of both hosts together\n\n{}\n\n\
             SYS: the kernel; MUX: ours, connections found by headers; OPT: ours, a channel and a\n\
             header filter for each. What moves frames between the hosts is not counted.{}",
            format::grouped(self.trips.into()),
            self.rounds,
            self.latency_table(),
            self.throughput_table(),
            self.program.text(),
        )
    }

    fn latency_table(&self) -> String {
        let columns = [
            Left(""),
            Left("by"),
            Right("paper"),
            Right("C_snd"),
            Right("S_rcv&snd"),
            Right("C_rcv"),
            Right("round trip"),
        ];
        let ns = |ns: f64| format!("{} ns", format::grouped(ns.max(0.0).round() as u64));
        let rows = self.latency.iter().map(|row| {
            vec![
                row.transport.into(),
                row.protocols.into(),
                NOT_IN_OUR_COPY.into(),
                ns(row.client_send_ns),
                ns(row.server_receive_and_send_ns),
                ns(row.client_receive_ns),
                ns(row.round_trip_ns),
            ]
        });
        format::table(&columns, rows)
    }

    fn throughput_table(&self) -> String {
        let mut kinds: Vec<_> = (self.throughput.iter())
            .map(|row| (row.transport, row.bytes))
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        let rows = kinds.into_iter().map(|(transport, bytes)| {
            let mut cells = vec![
                transport.to_owned(),
                format::grouped(bytes as u64),
                NOT_IN_OUR_COPY.to_owned(),
            ];
            cells.extend(Protocols::ALL.map(|protocols| {
                let is = |row: &&Throughput| {
                    (row.transport, row.protocols, row.bytes)
                        == (transport, protocols.name(), bytes)
                };
                let found = self.throughput.iter().find(is);
                found.map_or_else(|| "-".to_owned(), |row| format!("{:.3}", row.gbit_s))
            }));
            cells
        });
        format::table(&BY_BYTES, rows)
    }

    /// Throughput by message size, a figure for each transport.
    pub(super) fn draw(&self, folder: &Path) -> Result<(), CliError> {
        let figure = |transport: &'static str| {
            let curve = |protocols: Protocols| -> Curve {
                let of = |row: &&Throughput| {
                    (row.transport, row.protocols) == (transport, protocols.name())
                };
                let rows = self.throughput.iter().filter(of);
                let points = rows.map(|row| (row.bytes as f64, row.gbit_s)).collect();
                (protocols.name().to_owned(), points)
            };
            let frame = Frame {
                title: &format!("{transport}: throughput by message size"),
                x: "bytes of a message",
                y: "Gb/s",
            };
            draw(&frame, &Protocols::ALL.map(curve), &[])
        };
        let figures = [
            ("adapter-tcp.svg".to_owned(), figure("TCP")),
            ("adapter-udp.svg".to_owned(), figure("UDP")),
        ];
        plot::write(folder, figures)
    }
}
