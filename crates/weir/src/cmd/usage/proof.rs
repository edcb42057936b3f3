//! `weir usage --prove`.

use super::{Answer, empty};
use crate::error::CliError;
use crate::report::format::Column::{Left, Right};
use crate::report::format::{self, grouped};
use serde::Serialize;
use weir_ledger::{Difference, Ledger, PeriodProof, Proof, UsageQuery};
use weir_meter::Totals;

/// The proof, stable for scripts.
#[derive(Serialize)]
struct Json<'a> {
    holds: bool,
    link: Totals,
    periods: &'a [PeriodProof],
}

/// Proves the periods of the query, or of this number alone.
pub(super) fn answer(
    ledger: &Ledger,
    query: &UsageQuery,
    period: Option<u64>,
    json: bool,
) -> Result<Answer, CliError> {
    let mut proof = ledger
        .prove(query.since_unix_ns, query.until_unix_ns)
        .map_err(CliError::run)?;
    if let Some(number) = period {
        proof.periods.retain(|proven| proven.period == number);
        if proof.periods.is_empty() {
            return Err(CliError::run(format!(
                "--period {number}: the ledger has no period of this number"
            )));
        }
    }
    let text = if json {
        let json = Json {
            holds: proof.holds(),
            link: proof.link(),
            periods: &proof.periods,
        };
        serde_json::to_string(&json).map_err(CliError::run)?
    } else if proof.periods.is_empty() {
        empty::text(ledger, query)?
    } else {
        text(&proof)
    };
    let wrong = proof.periods.iter().filter(|it| !it.differences.is_empty());
    let failed = (!proof.holds()).then(|| {
        format!(
            "the proof does not hold: {} of {} differ",
            wrong.count(),
            format::counted(proof.periods.len() as u64, "period")
        )
    });
    Ok(Answer {
        text,
        svg: None,
        failed,
    })
}

fn text(proof: &Proof) -> String {
    let columns = [
        Left("counter"),
        Right("period"),
        Left("start"),
        Right("link packets"),
        Right("link bytes"),
        Right("sessions"),
        Right("unattributed"),
        Left("outputs"),
        Left("agrees"),
    ];
    let rows = proof.periods.iter().map(|it| {
        vec![
            it.counter.clone(),
            it.period.to_string(),
            format::time(Some(it.unix_ns[0])),
            grouped(both(it.link.packets)),
            grouped(both(it.link.bytes)),
            grouped(both(it.sessions.bytes)),
            grouped(both(it.unattributed.bytes)),
            if it.outputs.is_empty() {
                "-".to_owned()
            } else {
                it.outputs.join(" ")
            },
            if it.differences.is_empty() {
                "yes"
            } else {
                "NO"
            }
            .to_owned(),
        ]
    });
    let mut text = format::table(&columns, rows);
    text += "\n\nSessions and unattributed are bytes.";
    for period in &proof.periods {
        let at = format!("{}, period {}", period.counter, period.period);
        for difference in &period.differences {
            text += &format!("\n{at}: {}", named(difference));
        }
        if period.lost_inside > 0 {
            let lost = format::frames(period.lost_inside);
            text += &format!("\n{at}: weir lost {lost} after it had counted them");
        }
        if let Some([from, to]) = period.gap_unix_ns {
            let [from, to] = [from, to].map(|time| format::time(Some(time)));
            text += &format!("\n{at}: nothing was counted from {from} to {to}");
        }
    }
    let link = proof.link();
    let periods = format::counted(proof.periods.len() as u64, "period");
    if proof.holds() {
        text += &format!(
            "\n{periods}: link = sessions + unattributed = ledger, to the packet: {} packets, {} bytes.",
            grouped(both(link.packets)),
            grouped(both(link.bytes)),
        );
    }
    text
}

fn both(counts: [u64; 2]) -> u64 {
    counts[0].saturating_add(counts[1])
}

fn named(difference: &Difference) -> String {
    let sums = |totals: &Totals| {
        let (packets, bytes) = (both(totals.packets), both(totals.bytes));
        format!("{} packets, {} bytes", grouped(packets), grouped(bytes))
    };
    match difference {
        Difference::Records { link, records } => {
            format!(
                "the link had {}; its records have {}",
                sums(link),
                sums(records)
            )
        }
        Difference::Incomplete { chunks } => {
            let chunks: Vec<_> = chunks.iter().map(ToString::to_string).collect();
            format!(
                "chunks are missing; only these are here: {}",
                chunks.join(", ")
            )
        }
        Difference::Chain { chunk } => {
            format!("the chunk before chunk {chunk} is missing, or was changed")
        }
        Difference::Output {
            output,
            found,
            ledger,
        } => {
            format!(
                "output {output} has {}; the ledger has {}",
                sums(found),
                sums(ledger)
            )
        }
        Difference::OutputFile { output, path, why } => {
            format!("output {output}: {}: {why}", path.display())
        }
    }
}
