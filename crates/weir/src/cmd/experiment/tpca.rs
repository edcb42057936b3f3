//! `weir experiment tpca`: PCBs examined under TPC/A.

use super::{NOT_IN_OUR_COPY, plot};
use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::report::stdout;
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::PathBuf;
use weir_experiments::tpca::{
    Algorithm, Cost, Equation, Measured, Method, Settings, Stated, Unit, Workload, analysis,
    equations, simulate, stated,
};

/// Count the PCBs that look-ups examine under TPC/A
///
/// Repeats the analysis of McKenney and Dove, "Efficient Demultiplexing of
/// Incoming TCP Packets" (1992): for each algorithm what the paper states, what its
/// equations give, what a simulation of the equations' model gives, and what
/// users as the benchmark describes them cost the real tables.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Users, a connection each
    #[arg(long, value_name = "N", default_value_t = 2000)]
    users: u32,

    /// Hash chains of Sequent's table
    #[arg(long, value_name = "H", default_value = "19")]
    chains: NonZeroU32,

    /// Response time, in seconds
    #[arg(long, value_name = "R", default_value_t = 0.2)]
    response: f64,

    /// Where all that is random begins
    #[arg(long, value_name = "N", default_value_t = 1992)]
    seed: u64,

    /// What the users do
    #[arg(long, value_enum, default_value_t = Load::Tpca)]
    workload: Load,

    /// Draw the paper's figures 4 and 9 into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Load {
    /// Think times from a truncated exponential distribution
    Tpca,
    /// Think times of exactly ten seconds
    Fixed,
    /// Three segments at once for each that is needed
    Tripled,
    /// Bulk transfers in trains of 32 segments
    Trains,
}

impl Load {
    fn workload(self) -> Workload {
        match self {
            Load::Tpca => Workload::Tpca,
            Load::Fixed => Workload::Fixed,
            Load::Tripled => Workload::Tripled,
            Load::Trains => Workload::Trains,
        }
    }

    /// Segments of a transaction that the server receives; trains have none.
    fn segments_a_transaction(self) -> Option<f64> {
        match self {
            Load::Tpca | Load::Fixed => Some(2.0),
            Load::Tripled => Some(6.0),
            Load::Trains => None,
        }
    }
}

/// An algorithm's results.
struct Row {
    algorithm: Algorithm,
    stated: Option<Stated>,
    analytic: Cost,
    model: Option<Measured>,
    users: Option<Measured>,
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let settings = Settings {
        users: args.users,
        chains: args.chains,
        response_s: args.response,
        seed: args.seed,
    };
    settings.check().map_err(CliError::refused)?;
    crate::report::plot::prepare(args.svg.as_deref())?;
    let mut rows = Vec::new();
    for algorithm in Algorithm::ALL {
        let measure = |method| simulate(algorithm, method, &settings).map_err(CliError::refused);
        rows.push(Row {
            algorithm,
            stated: stated(algorithm, &settings),
            analytic: analysis::cost(algorithm, &settings),
            model: measure(Method::Model)?,
            users: measure(Method::Users(args.workload.workload()))?,
        });
    }
    if let Some(folder) = &args.svg {
        let measured = rows.iter().filter_map(|row| {
            let users = row.users.as_ref()?;
            Some((row.algorithm.name(), users.cost.mean()))
        });
        plot::figures(folder, &settings, &measured.collect::<Vec<_>>())?;
    }
    stdout::report(args.json, &json(args, &settings, &rows), || {
        table(args, &settings, &rows)
    })
}

fn number(value: f64) -> String {
    if value < 1000.0 {
        return format!("{value:.2}");
    }
    format::grouped(value.round() as u64)
}

fn table(args: &Args, settings: &Settings, rows: &[Row]) -> String {
    let columns = [
        Left("algorithm"),
        Right("paper"),
        Left("section"),
        Right("equations"),
        Right("model"),
        Right("users"),
        Right("entry"),
        Right("ack"),
        Right("off by"),
        Right("hits"),
        Right("a transaction"),
    ];
    let dash = || "-".to_owned();
    let cells = rows.iter().map(|row| {
        let users = row.users.as_ref();
        let cost = |of: fn(&Cost) -> f64| users.map_or_else(dash, |users| number(of(&users.cost)));
        let off = |users: &Measured| (users.cost.mean() / row.analytic.mean() - 1.0) * 100.0;
        let transaction = users.zip(args.workload.segments_a_transaction());
        vec![
            row.algorithm.name().into(),
            row.stated
                .map_or(NOT_IN_OUR_COPY, |stated| stated.text)
                .into(),
            row.stated.map_or("", |stated| stated.section).into(),
            number(row.analytic.mean()),
            row.model
                .map_or_else(dash, |model| number(model.cost.mean())),
            cost(Cost::mean),
            cost(|cost| cost.entry),
            cost(|cost| cost.acknowledgment),
            users.map_or_else(dash, |users| format!("{:+.1} %", off(users))),
            users.map_or_else(dash, |users| format!("{:.1} %", users.hits * 100.0)),
            transaction.map_or_else(dash, |(users, segments)| {
                number(users.cost.mean() * segments)
            }),
        ]
    });
    let table = format::table(&columns, cells);
    let (n, h) = (f64::from(settings.users), f64::from(settings.chains.get()));
    let printed = analysis::sequent_as_printed(n, h, settings.response_s);
    let corrected = analysis::sequent_corrected(n, h, settings.response_s);
    let equations = equation_table(&equations(settings));
    format!(
        "PCBs examined a look-up: {} users, {} chains, response {} s, seed {}\n\n{table}\n\n{equations}\n\n\
         Equation 11 as printed gives {}; with (N/H)^2 for N^2/H it gives {}.",
        format::grouped(settings.users.into()),
        settings.chains,
        settings.response_s,
        settings.seed,
        number(printed),
        number(corrected),
    )
}

fn equation_table(equations: &[Equation]) -> String {
    let columns = [
        Right("equation"),
        Left("section"),
        Left("gives"),
        Right("paper"),
        Right("ours"),
    ];
    let cells = equations.iter().map(|equation| {
        let value = match equation.unit {
            Unit::Pcbs | Unit::Users => number(equation.value),
            Unit::Probability => format!("{:.2} %", equation.value * 100.0),
            Unit::PerSecond => format!("{:.4}/s", equation.value),
        };
        let stated = equation
            .stated
            .map_or(NOT_IN_OUR_COPY, |stated| stated.text);
        vec![
            equation.number.to_string(),
            equation.section.to_owned(),
            equation.what.to_owned(),
            stated.to_owned(),
            value,
        ]
    });
    format::table(&columns, cells)
}

#[derive(Serialize)]
struct JsonCost {
    entry: f64,
    acknowledgment: f64,
    mean: f64,
}

impl JsonCost {
    fn new(cost: &Cost) -> JsonCost {
        JsonCost {
            entry: cost.entry,
            acknowledgment: cost.acknowledgment,
            mean: cost.mean(),
        }
    }
}

#[derive(Serialize)]
struct JsonMeasured {
    #[serde(flatten)]
    cost: JsonCost,
    hits: f64,
    segments: u64,
    a_transaction: Option<f64>,
}

#[derive(Serialize)]
struct JsonStated {
    text: &'static str,
    value: f64,
    section: &'static str,
}

#[derive(Serialize)]
struct JsonRow {
    name: &'static str,
    paper: Option<JsonStated>,
    analytic: JsonCost,
    model: Option<JsonMeasured>,
    measured: Option<JsonMeasured>,
}

impl JsonStated {
    fn new(stated: Stated) -> JsonStated {
        JsonStated {
            text: stated.text,
            value: stated.value,
            section: stated.section,
        }
    }
}

#[derive(Serialize)]
struct JsonEquation {
    equation: u8,
    section: &'static str,
    gives: &'static str,
    paper: Option<JsonStated>,
    value: f64,
}

#[derive(Serialize)]
struct Json {
    users: u32,
    chains: u32,
    response_s: f64,
    seed: u64,
    workload: Load,
    algorithms: Vec<JsonRow>,
    equations: Vec<JsonEquation>,
    /// Equation 11 with the N²/H that is printed.
    equation_11_as_printed: f64,
}

fn json(args: &Args, settings: &Settings, rows: &[Row]) -> Json {
    let measured = |measured: &Measured, segments: Option<f64>| JsonMeasured {
        cost: JsonCost::new(&measured.cost),
        hits: measured.hits,
        segments: measured.segments,
        a_transaction: segments.map(|segments| segments * measured.cost.mean()),
    };
    let row = |row: &Row| JsonRow {
        name: row.algorithm.name(),
        paper: row.stated.map(JsonStated::new),
        analytic: JsonCost::new(&row.analytic),
        model: row.model.as_ref().map(|model| measured(model, Some(2.0))),
        measured: (row.users.as_ref())
            .map(|users| measured(users, args.workload.segments_a_transaction())),
    };
    let equation = |equation: Equation| JsonEquation {
        equation: equation.number,
        section: equation.section,
        gives: equation.what,
        paper: equation.stated.map(JsonStated::new),
        value: equation.value,
    };
    Json {
        users: args.users,
        chains: args.chains.get(),
        response_s: args.response,
        seed: args.seed,
        workload: args.workload,
        algorithms: rows.iter().map(row).collect(),
        equations: equations(settings).into_iter().map(equation).collect(),
        equation_11_as_printed: analysis::sequent_as_printed(
            f64::from(settings.users),
            f64::from(settings.chains.get()),
            settings.response_s,
        ),
    }
}
