//! Why there is nothing to show.

use crate::error::CliError;
use crate::report::format;
use weir_ledger::{Ledger, UsageQuery};

/// That the ledger is empty, or what of the query may be the reason.
pub(super) fn text(ledger: &Ledger, query: &UsageQuery) -> Result<String, CliError> {
    let Some([start, end]) = ledger.extent().map_err(CliError::run)? else {
        return Ok(
            "The ledger has no records yet: a counter's come at the end of its first period, and \
             by `weir mediate` if it is not the counter's own ledger."
                .to_owned(),
        );
    };
    let [start, end] = [start, end].map(|time| format::time(Some(time)));
    let mut asked = Vec::new();
    let names = [
        ("subscriber", &query.subscriber),
        ("service", &query.service),
        ("counter", &query.counter),
    ];
    for (option, value) in names {
        asked.extend(value.as_ref().map(|value| format!("--{option} {value}")));
    }
    let times = [
        ("since", query.since_unix_ns),
        ("until", query.until_unix_ns),
    ];
    for (option, value) in times {
        let value = value.map(|value| format::time(Some(value)));
        asked.extend(value.map(|value| format!("--{option} {value}")));
    }
    let asked = if asked.is_empty() {
        "all periods are without traffic, or of audit counters".to_owned()
    } else {
        format!("asked was {}", asked.join(" "))
    };
    Ok(format!(
        "No usage records match: the ledger has periods from {start} to {end}; {asked}."
    ))
}
