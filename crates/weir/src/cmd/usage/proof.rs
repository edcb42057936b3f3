//! `weir usage --prove`.

use super::{Answer, empty};
use crate::error::CliError;
use crate::report::format::Column::{Left, Right};
use crate::report::format::{self, grouped};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_ledger::{Difference, InterfaceProof, Ledger, PeriodProof, Proof, UsageQuery};
use weir_meter::Totals;
use weir_wire::ethernet;

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
        Right("interface"),
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
            it.interfaces
                .as_ref()
                .map_or_else(|| "-".to_owned(), |it| signed(it.more_packets)),
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
    text += "\n\nSessions and unattributed are bytes; interface: packets of the link less frames that the \
             interfaces themselves counted.";
    for period in &proof.periods {
        let at = format!("{}, period {}", period.counter, period.period);
        for difference in &period.differences {
            text += &format!("\n{at}: {}", named(difference));
        }
        if period.lost_inside > 0 {
            let lost = format::frames(period.lost_inside);
            text += &format!("\n{at}: weir lost {lost} after it had counted them");
        }
        if period.wall_step_ns != 0 {
            let by = Duration::from_nanos(period.wall_step_ns.unsigned_abs()).as_secs_f64();
            let way = if period.wall_step_ns < 0 {
                "back"
            } else {
                "on"
            };
            text += &format!(
                "\n{at}: the wall clock was set {way} by {by:.3} s; the period has its length"
            );
        }
        if let Some([from, to]) = period.gap_unix_ns {
            let [from, to] = [from, to].map(|time| format::time(Some(time)));
            text += &format!("\n{at}: nothing was counted from {from} to {to}");
        }
    }
    text += &interfaces(proof);
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

/// Bytes of the link header, which interfaces count.
const LINK_HEADER: i64 = ethernet::Repr::LEN as i64;

/// The interfaces' own counts of all periods, by counter, and the differences of the links.
fn interfaces(proof: &Proof) -> String {
    let mut sums: BTreeMap<&str, (BTreeSet<&str>, [i64; 4])> = BTreeMap::new();
    for period in &proof.periods {
        let Some(own) = &period.interfaces else {
            continue;
        };
        let (names, sum) = sums.entry(&period.counter).or_default();
        names.extend(own.interfaces.iter().map(|it| it.name.as_str()));
        let InterfaceProof { frames, bytes, .. } = own;
        let more = [
            frames.cast_signed(),
            bytes.cast_signed(),
            own.more_packets,
            own.more_bytes,
        ];
        for (sum, more) in sum.iter_mut().zip(more) {
            *sum = sum.saturating_add(more);
        }
    }
    let mut text = String::new();
    for (counter, (names, [frames, bytes, more_packets, more_bytes])) in sums {
        let names: Vec<&str> = names.into_iter().collect();
        let [count, sum] = [frames, bytes].map(|it| grouped(it.unsigned_abs()));
        text += &format!(
            "\n{counter}: {} counted {count} frames, {sum} bytes",
            names.join(", ")
        );
        let packets = frames.saturating_add(more_packets);
        text += &match (more_packets, more_bytes) {
            (0, 0) => "; the link's totals are the same".to_owned(),
            (0, bytes) if bytes <= -LINK_HEADER.saturating_mul(packets) => format!(
                "; the link has as many packets, and {} bytes less: it counts IP packets without their \
                 link headers",
                grouped(bytes.unsigned_abs())
            ),
            (packets, bytes) => format!(
                "; the link has {} packets, {} bytes",
                signed(packets),
                signed(bytes)
            ),
        };
    }
    text
}

/// A number with its sign.
fn signed(number: i64) -> String {
    let sign = match number {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", grouped(number.unsigned_abs()))
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
