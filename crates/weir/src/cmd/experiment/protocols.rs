//! `weir experiment vmtp`, `bsp`, `telnet`, `predict`: the 1987 paper's protocols.

use super::packet_filter::bench_settings;
use crate::error::{CliError, say};
use crate::report::format::{self, Column::Left, Column::Right};
use crate::report::stdout;
use serde_json::json;
use std::time::Duration;
use weir_experiments::packet_filter::Bench;
use weir_experiments::protocols::{
    Figures, Prediction, ProtocolError, Settings, Unit, World, bsp, predict, telnet, vmtp,
};

// The options of all of them; what each does is said where it is listed.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// How long each measurement takes, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(10..=60_000),
          allow_negative_numbers = true)]
    each: u64,

    /// How often each is made; the best counts
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100), allow_negative_numbers = true)]
    rounds: u32,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Which tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tables {
    Vmtp,
    Bsp,
    Telnet,
}

pub(crate) fn run(args: &Args, tables: Tables) -> Result<(), CliError> {
    let settings = Settings {
        time: Duration::from_millis(args.each),
        rounds: args.rounds,
    };
    let begin = |step: &str| say(&format!("weir: {step}"));
    let measured = World::new().and_then(|world| match tables {
        Tables::Vmtp => vmtp(&world, &settings, &begin),
        Tables::Bsp => bsp(&world, &settings, &begin),
        Tables::Telnet => telnet(&world, &settings, &begin),
    });
    let figures = measured.map_err(CliError::run)?;
    stdout::report(args.json, &figures, || table(&figures))
}

fn range([least, most]: [f64; 2], digits: usize) -> String {
    format!("{least:.digits$} to {most:.digits$}")
}

fn table(figures: &Figures) -> String {
    let rows = figures.rows.iter().map(|row| {
        let (digits, unit) = match row.unit {
            Unit::MicrosecondsAnOperation => (1, "µs"),
            Unit::MegabytesASecond => (1, "MB/s"),
            Unit::CharactersASecond => (0, "a second"),
        };
        let now = format!("{:.digits$} {unit}", row.now);
        let range = range(row.range, digits);
        let paper = row.paper.unwrap_or("-").to_owned();
        vec![row.table.to_owned(), row.what.to_owned(), paper, now, range]
    });
    let rows: Vec<_> = rows.collect();
    let columns = [
        Left("table"),
        Left("what"),
        Right("paper"),
        Right("now"),
        Right("rounds"),
    ];
    let ratios = figures.ratios.iter().map(|ratio| {
        let paper = ratio
            .paper
            .map_or("-".to_owned(), |paper| format!("{paper:.2}"));
        let holds = match ratio.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        vec![
            ratio.what.to_owned(),
            paper,
            format!("{:.2}", ratio.now),
            range(ratio.range, 2),
            ratio.required.to_owned(),
            holds.to_owned(),
        ]
    });
    let ratios: Vec<_> = ratios.collect();
    let heads = [
        Left("ratio, in this run"),
        Right("paper"),
        Right("now"),
        Right("rounds"),
        Left("required"),
        Left("holds"),
    ];
    format!(
        "{}\n\n{}",
        format::table(&columns, rows),
        format::table(&heads, ratios)
    )
}

pub(crate) fn run_prediction(args: &Args) -> Result<(), CliError> {
    let time = Duration::from_millis(args.each);
    let measured = bench_settings(time, args.rounds, |settings| {
        let bench = Bench::new(settings).map_err(ProtocolError::from)?;
        predict(&bench, time)
    });
    let Prediction {
        switch_us,
        transfer_us,
        predicted_us,
        measured_us,
    } = measured?.map_err(CliError::run)?;
    let json = json!({
        "section": "6.5.2",
        "switch_us": switch_us,
        "transfer_us": transfer_us,
        "predicted_us": predicted_us,
        "measured_us": measured_us,
        "paper_us": {"switch": 400, "transfer": 500, "predicted": 1800, "measured": 2700},
    });
    stdout::report(args.json, &json, || {
        let row = |what: &str, paper: &str, now: f64| {
            vec![what.to_owned(), paper.to_owned(), format!("{now:.2} µs")]
        };
        let rows = vec![
            row("switch between processes", "400 µs", switch_us),
            row("transfer of a short packet", "500 µs", transfer_us),
            row(
                "a demultiplexing process adds, predicted",
                "1800 µs",
                predicted_us,
            ),
            row(
                "a demultiplexing process adds, measured",
                "2700 µs",
                measured_us,
            ),
        ];
        format::table(&[Left("§6.5.2"), Right("paper"), Right("now")], rows)
    })
}
