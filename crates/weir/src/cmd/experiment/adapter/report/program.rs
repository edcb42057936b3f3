//! The measurements of the program under `weir exec`, over all rounds.

use super::super::super::NOT_IN_OUR_COPY;
use super::super::under_exec::Ran;
use super::super::{Protocols, name};
use super::BY_BYTES;
use crate::report::format;
use serde::Serialize;
use weir_experiments::adapter::Transport;
use weir_experiments::adapter::program::{Found, Measured, SIZES};
use weir_lab::results::Figures;

/// The program's part of the report.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Program {
    program: Vec<Row>,
    /// Why runs of the program are missing.
    program_left_out: Option<String>,
}

/// One figure of one transport by one stack.
#[derive(Serialize, Clone, PartialEq, Debug)]
struct Row {
    transport: &'static str,
    protocols: &'static str,
    figure: Figure,
    bytes: usize,
    /// The paper's tables are missing from our copy of it.
    paper: Option<f64>,
    rounds: usize,
    median: f64,
    /// The least and the greatest of the rounds.
    range: [f64; 2],
    /// The greatest share of messages in a round that were lost: 0 to 1.
    lost: f64,
}

/// The measured quantity, and its unit.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
enum Figure {
    RoundTripUs,
    GbitS,
}

/// Losses beyond this share are shown in the table.
const LOST_SHOWN: f64 = 0.005;

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

fn of(found: &Found, transport: Transport) -> &Measured {
    match transport {
        Transport::Tcp => &found.tcp,
        Transport::Udp => &found.udp,
    }
}

impl Program {
    pub(super) fn new(ran: &Ran) -> Program {
        let mut program = Vec::new();
        for transport in TRANSPORTS {
            for protocols in Protocols::ALL {
                let runs = ran.runs.iter().filter(|(by, _)| *by == protocols);
                let runs: Vec<_> = runs.map(|(_, found)| of(found, transport)).collect();
                let row = |figure, bytes, values: Vec<f64>, lost| {
                    let rounds = values.len();
                    let figures = Figures::of(values)?;
                    Some(Row {
                        transport: name(transport),
                        protocols: protocols.name(),
                        figure,
                        bytes,
                        paper: None,
                        rounds,
                        median: figures.median(),
                        range: [figures.min(), figures.max()],
                        lost,
                    })
                };
                let trips = runs.iter().map(|run| run.round_trip_us).collect();
                program.extend(row(Figure::RoundTripUs, 1, trips, 0.0));
                for bytes in SIZES {
                    let rates = runs.iter().flat_map(|run| &run.rates);
                    let rates: Vec<_> = rates.filter(|rate| rate.bytes == bytes).collect();
                    let lost = rates.iter().map(|rate| rate.lost).fold(0.0, f64::max);
                    let rates = rates.iter().map(|rate| rate.gbit_s).collect();
                    program.extend(row(Figure::GbitS, bytes, rates, lost));
                }
            }
        }
        Program {
            program,
            program_left_out: ran.left_out.clone(),
        }
    }

    /// The tables, behind those of the other measurements; empty without any.
    pub(super) fn text(&self) -> String {
        if self.program.is_empty() {
            return String::new();
        }
        format!(
            "\n\n\
             One unmodified program under `weir exec --stack sys`, `mux` and `opt`, across a veth pair\n\n\
             One-byte round trips, µs: the median of the rounds, and their range\n\n{}\n\n\
             Gb/s by the bytes of a message: the median of the rounds, and their range\n\n{}\n\n\
             SYS: the kernel's sockets; MUX, OPT: weir's, on ports of the same veth pair.",
            self.table(Figure::RoundTripUs, &[1]),
            self.table(Figure::GbitS, &SIZES),
        )
    }

    fn table(&self, figure: Figure, sizes: &[usize]) -> String {
        let kinds = TRANSPORTS
            .into_iter()
            .flat_map(|transport| sizes.iter().map(move |bytes| (name(transport), *bytes)));
        let rows = kinds.map(|(transport, bytes)| {
            let mut cells = vec![
                transport.to_owned(),
                format::grouped(bytes as u64),
                NOT_IN_OUR_COPY.to_owned(),
            ];
            cells.extend(Protocols::ALL.map(|protocols| {
                let is = |row: &&Row| {
                    (row.figure, row.transport, row.protocols, row.bytes)
                        == (figure, transport, protocols.name(), bytes)
                };
                let found = self.program.iter().find(is);
                found.map_or_else(|| "-".to_owned(), Row::cell)
            }));
            cells
        });
        format::table(&BY_BYTES, rows)
    }
}

impl Row {
    /// `0.123 (0.120-0.130)`, with what was lost.
    fn cell(&self) -> String {
        let digits = match self.figure {
            Figure::RoundTripUs => 1,
            Figure::GbitS if self.median < 0.01 => 5,
            Figure::GbitS => 3,
        };
        let [least, most] = self.range;
        let lost = if self.lost < LOST_SHOWN {
            String::new()
        } else {
            format!(", {:.0} % lost", self.lost * 100.0)
        };
        format!(
            "{:.digits$} ({least:.digits$}-{most:.digits$}{lost})",
            self.median
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_experiments::adapter::program::Rate;

    fn found(scale: f64) -> Found {
        let measured = |lost| Measured {
            round_trip_us: 10.0 * scale,
            rates: SIZES
                .map(|bytes| Rate {
                    bytes,
                    gbit_s: scale,
                    lost,
                })
                .to_vec(),
        };
        Found {
            tcp: measured(0.0),
            udp: measured(0.25),
        }
    }

    #[test]
    fn rounds_become_medians_and_ranges() {
        let runs = [1.0, 3.0, 2.0].map(|scale| (Protocols::Opt, found(scale)));
        let program = Program::new(&Ran {
            runs: runs.to_vec(),
            left_out: None,
        });
        assert_eq!(program.program.len(), 2 * 8);
        let row = &program.program[0];
        assert_eq!((row.median, row.range, row.rounds), (20.0, [10.0, 30.0], 3));
        let text = program.text();
        assert!(text.contains("20.0 (10.0-30.0)"), "{text}");
        assert!(text.contains("2.000 (1.000-3.000, 25 % lost)"), "{text}");
        assert_eq!(text.matches(NOT_IN_OUR_COPY).count(), 2 + 14, "{text}");
    }

    #[test]
    fn without_runs_there_is_no_table() {
        let ran = Ran {
            left_out: Some("no root".to_owned()),
            ..Ran::default()
        };
        let program = Program::new(&ran);
        assert_eq!(program.text(), "");
        let json = serde_json::to_value(&program).unwrap();
        let expected = serde_json::json!({"program": [], "program_left_out": "no root"});
        assert_eq!(json, expected);
    }
}
