//! `weir usage --audit`.

use super::Answer;
use crate::error::CliError;
use crate::report::format::Column::{Left, Right};
use crate::report::format::{self, grouped};
use weir_ledger::{Audit, AuditRow, Ledger, UsageQuery};
use weir_meter::{Direction, OwnerKind};

/// Compares what is charged with the audit counters.
pub(super) fn answer(ledger: &Ledger, query: &UsageQuery, json: bool) -> Result<Answer, CliError> {
    let audits = ledger
        .audit(query.since_unix_ns, query.until_unix_ns)
        .map_err(CliError::run)?;
    let differences: usize = audits.iter().map(|audit| audit.differences.len()).sum();
    let text = if json {
        serde_json::to_string(&audits).map_err(CliError::run)?
    } else if audits.is_empty() {
        "No point has an audit counter: [[point]] in mediator.toml names them.".to_owned()
    } else {
        text(&audits)
    };
    let failed = (differences > 0).then(|| {
        let rows = format::counted(differences as u64, "row");
        format!("what is charged and what audit counters have is not the same: {rows} above")
    });
    Ok(Answer {
        text,
        svg: None,
        failed,
    })
}

fn text(audits: &[Audit]) -> String {
    let mut text = String::new();
    for audit in audits {
        let (point, counter) = (&audit.point, &audit.audit);
        if !text.is_empty() {
            text += "\n\n";
        }
        let Some([start, end]) = audit.unix_ns else {
            text += &format!("{point}: {counter} has no periods of the same time yet.");
            continue;
        };
        let [start, end] = [start, end].map(|time| format::time(Some(time)));
        let packets = [&audit.charged, &audit.audited].map(|it| grouped(it.packets.iter().sum()));
        let bytes = [&audit.charged, &audit.audited].map(|it| grouped(it.bytes.iter().sum()));
        text += &format!(
            "{point}, {start} to {end}: {} packets, {} bytes are charged; {counter} has {} packets, \
             {} bytes",
            packets[0], bytes[0], packets[1], bytes[1],
        );
        if audit.differences.is_empty() {
            text += ": the same, for each subscriber and service.";
            continue;
        }
        let columns = [
            Left("subscriber"),
            Left("service"),
            Left("direction"),
            Right("packets charged"),
            Right("audited"),
            Right("more"),
            Right("bytes charged"),
            Right("audited"),
            Right("more"),
        ];
        let rows = audit.differences.iter().map(cells);
        text += &format!(".\n\n{}", format::table(&columns, rows));
    }
    text
}

fn cells(row: &AuditRow) -> Vec<String> {
    let more = |[charged, audited]: [u64; 2]| {
        let sign = if charged > audited { "-" } else { "+" };
        format!("{sign}{}", grouped(charged.abs_diff(audited)))
    };
    let name = match row.owner {
        OwnerKind::Session => row.subscriber.clone(),
        OwnerKind::Unattributed => format!("unattributed {}", row.subscriber),
        OwnerKind::Overflow => "unattributed, others".to_owned(),
    };
    let direction = match row.direction {
        Direction::Up => "up",
        Direction::Down => "down",
    };
    let mut cells = vec![name, row.service.clone(), direction.to_owned()];
    for counts in [row.packets, row.bytes] {
        cells.extend(counts.map(grouped));
        cells.push(more(counts));
    }
    cells
}
