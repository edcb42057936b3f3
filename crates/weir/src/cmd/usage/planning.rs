//! `weir usage --planning`.

use super::{Answer, empty};
use crate::error::CliError;
use crate::report::format::Column::{Left, Right};
use crate::report::format::{self, grouped};
use jiff::tz::TimeZone;
use weir_ledger::{Ledger, Load, UsageQuery};

/// The load of links and services.
pub(super) fn answer(
    ledger: &Ledger,
    query: &UsageQuery,
    zone: &TimeZone,
    json: bool,
) -> Result<Answer, CliError> {
    let loads = ledger.load(query, zone).map_err(CliError::run)?;
    let text = if json {
        serde_json::to_string(&loads).map_err(CliError::run)?
    } else if loads.is_empty() {
        empty::text(ledger, query)?
    } else {
        text(&loads)
    };
    Ok(Answer {
        text,
        ..Answer::default()
    })
}

fn text(loads: &[Load]) -> String {
    let columns = [
        Left("counter"),
        Left("service"),
        Right("mean up"),
        Right("down"),
        Right("95 % up"),
        Right("down"),
        Right("peak up"),
        Right("down"),
        Left("busy hour"),
        Right("up"),
        Right("down"),
        Right("growth a week"),
    ];
    let rows = loads.iter().map(|load| {
        let service = load.service.clone().unwrap_or_else(|| "(all)".to_owned());
        let mut cells = vec![load.counter.clone(), service];
        for rates in [load.mean, load.percentile_95, load.peak] {
            cells.extend(rates.map(kbit));
        }
        cells.push(load.busy_hour.clone());
        cells.extend(load.busy_rate.map(kbit));
        cells.push(load.weekly_growth.map_or_else(
            || "-".to_owned(),
            |share| format!("{:+.1} %", share * 100.0),
        ));
        cells
    });
    let table = format::table(&columns, rows);
    format!("{table}\n\nRates are kbit/s; each sample is a period.")
}

/// A rate in kbit/s.
pub(super) fn kbit(rate: u64) -> String {
    if rate < 10_000 {
        format!("{}.{}", rate / 1000, rate % 1000 / 100)
    } else {
        grouped(rate / 1000)
    }
}
