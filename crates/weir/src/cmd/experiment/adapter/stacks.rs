//! One unmodified program under SYS, MUX and OPT: `weir exec --stack` runs its client and its server
//! in two network namespaces.

use super::super::NOT_IN_OUR_COPY;
use super::program::Measured;
use super::{Protocols, SIZES};
use crate::error::limited;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use weir_lab::net::{Host, Lab, Offloads, Process};

/// Time limit of a measurement.
const MEASURE_MAX: Duration = Duration::from_secs(120);
const ROUND_TRIP: &str = "round trip, µs";
const THROUGHPUT: &str = "throughput, Gb/s";

/// Two hosts on a link without offloads, which go with this value.
pub(super) struct Hosts {
    client: Host,
    server: Host,
    _lab: Lab,
}

/// Client's and server's addresses: the kernels', and those of weir's hosts beside them.
const KERNELS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const OURS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 11), Ipv4Addr::new(10, 0, 0, 12)];
const INTERFACE: &str = "eth0";
const PORT: u16 = 7000;

impl Hosts {
    /// Makes both.
    ///
    /// # Errors
    /// If there is no right to make network namespaces.
    pub(super) fn new() -> Result<Hosts, weir_lab::net::Error> {
        let lab = Lab::new();
        let (client, server) = (lab.host("client")?, lab.host("server")?);
        lab.link(&client, &server)
            .addresses(KERNELS[0].octets(), KERNELS[1].octets(), 24)
            .offloads(Offloads::OFF)
            .connect()?;
        Ok(Hosts {
            client,
            server,
            _lab: lab,
        })
    }

    /// One round of the program under these protocols.
    ///
    /// # Errors
    /// Why there is no result.
    pub(super) fn measure(
        &self,
        protocols: Protocols,
        library: Option<&Path>,
        trips: u32,
        each_ms: u64,
    ) -> Result<Measured, String> {
        let at = match protocols {
            Protocols::Sys => KERNELS,
            Protocols::Mux | Protocols::Opt => OURS,
        };
        let server = SocketAddrV4::new(at[1], PORT).to_string();
        let (trips, each) = (trips.to_string(), each_ms.to_string());
        let _serving = start(&self.server, protocols, library, at[1], &["serve", &server])?;
        let words = ["measure", &server, &trips, &each];
        let measuring = start(&self.client, protocols, library, at[0], &words)?;
        let output = measuring
            .output(MEASURE_MAX)
            .map_err(|error| limited(&error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("it says nothing");
            return Err(format!("{}: {said}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }
}

/// Starts the program in a host, under `weir exec`.
fn start(
    host: &Host,
    protocols: Protocols,
    library: Option<&Path>,
    address: Ipv4Addr,
    words: &[&str],
) -> Result<Process, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(&this);
    command.args(["exec", "--stack", &protocols.name().to_lowercase()]);
    command.args(["--link", &format!("port:{INTERFACE}")]);
    command.args(["--addr", &format!("{address}/24")]);
    if let Some(library) = library {
        command.arg("--library").arg(library);
    }
    command.arg("--").arg(&this);
    command.args(["experiment", "program"]).args(words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = host.spawn(command);
    started.map_err(|error| format!("cannot run {}: {}", this.display(), limited(&error)))
}

/// The best of the rounds under one kind of protocols, and their ranges.
#[derive(Serialize, Debug)]
pub(super) struct Row {
    protocols: &'static str,
    transport: &'static str,
    /// What of: a round trip of one byte in µs, or a message's bytes in Gb/s.
    what: &'static str,
    bytes: usize,
    /// The paper's tables are missing from our copy of it.
    paper: Option<f64>,
    now: f64,
    range: [f64; 2],
}

/// The rounds of all three.
#[derive(Default)]
pub(super) struct Rounds(Vec<Row>);

impl Rounds {
    pub(super) fn add(&mut self, protocols: Protocols, measured: &Measured) {
        let [tcp, udp] = measured.round_trip_us;
        self.row(protocols, "TCP", ROUND_TRIP, 1, tcp);
        self.row(protocols, "UDP", ROUND_TRIP, 1, udp);
        for (bytes, gbit_s) in SIZES.into_iter().zip(&measured.gbit_s) {
            self.row(protocols, "TCP", THROUGHPUT, bytes, *gbit_s);
        }
    }

    fn row(
        &mut self,
        protocols: Protocols,
        transport: &'static str,
        what: &'static str,
        bytes: usize,
        value: f64,
    ) {
        let is_it = |row: &&mut Row| {
            (row.protocols, row.transport, row.what, row.bytes)
                == (protocols.name(), transport, what, bytes)
        };
        if let Some(row) = self.0.iter_mut().find(is_it) {
            row.range = [row.range[0].min(value), row.range[1].max(value)];
            row.now = row.range[usize::from(what == THROUGHPUT)];
            return;
        }
        self.0.push(Row {
            protocols: protocols.name(),
            transport,
            what,
            bytes,
            paper: None,
            now: value,
            range: [value; 2],
        });
    }

    pub(super) fn rows(self) -> Vec<Row> {
        self.0
    }
}

/// A row for each measurement, a column for each kind of protocols.
pub(super) fn table(rows: &[Row]) -> String {
    let columns = [
        Left(""),
        Left(""),
        Right("bytes"),
        Right("paper"),
        Right("SYS"),
        Right("MUX"),
        Right("OPT"),
    ];
    let mut kinds: Vec<_> = Vec::new();
    for row in rows {
        let kind = (row.transport, row.what, row.bytes);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let lines = kinds.into_iter().map(|(transport, what, bytes)| {
        let mut cells = vec![
            transport.to_owned(),
            what.to_owned(),
            format::grouped(bytes as u64),
            NOT_IN_OUR_COPY.to_owned(),
        ];
        cells.extend(Protocols::ALL.map(|protocols| {
            let found = rows.iter().find(|row| {
                (row.protocols, row.transport, row.what, row.bytes)
                    == (protocols.name(), transport, what, bytes)
            });
            found.map_or_else(|| "-".to_owned(), |row| format!("{:.3}", row.now))
        }));
        cells
    });
    format::table(&columns, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_round_counts() {
        let mut rounds = Rounds::default();
        for [time, rate] in [[30.0, 1.0], [20.0, 3.0], [25.0, 2.0]] {
            let measured = Measured {
                round_trip_us: [time, time + 1.0],
                gbit_s: vec![rate; SIZES.len()],
            };
            rounds.add(Protocols::Opt, &measured);
        }
        let rows = rounds.rows();
        assert_eq!(rows.len(), 2 + SIZES.len());
        assert_eq!((rows[0].now, rows[0].range), (20.0, [20.0, 30.0]));
        assert_eq!((rows[2].now, rows[2].range), (3.0, [1.0, 3.0]));
        let text = table(&rows);
        assert!(text.contains("20.000") && text.contains("3.000"), "{text}");
    }
}
