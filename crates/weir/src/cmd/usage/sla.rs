//! `weir usage --sla`: what sessions used, beside what was agreed.

use super::planning::kbit;
use super::{Answer, empty};
use crate::error::CliError;
use crate::input::read_limited;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use weir_ledger::{Ledger, SessionUse, UsageQuery};
use weir_meter::OwnerKind;

/// The largest file of agreements, in bytes.
const FILE_LEN_MAX: u64 = 64 << 20;

/// The agreements with subscribers.
pub(super) struct Agreements(BTreeMap<String, Agreement>);

/// With one subscriber; what is empty in the file was not agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Agreement {
    /// Rates, bits a second, up then down.
    rate: [Option<u64>; 2],
    /// The share of packets that may be lost between counter and audit counter.
    loss: Option<f64>,
    /// The share of packets that may be policed.
    policed: Option<f64>,
}

/// A session beside its agreement, stable for scripts.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    used: SessionUse,
    /// The share of packets that were policed, up then down.
    policed: [f64; 2],
    /// The share of the subscriber's packets that no audit counter has seen; `None` without one.
    loss: Option<[f64; 2]>,
    agreed: Option<Agreement>,
    /// The broken parts of the agreement.
    broken: Vec<&'static str>,
}

impl Agreements {
    /// Reads the file.
    pub(super) fn read(path: &Path) -> Result<Agreements, CliError> {
        let text = read_limited::text(path, FILE_LEN_MAX)?;
        Agreements::parse(&text)
            .map_err(|(line, why)| CliError::refused(format!("{}:{line}: {why}", path.display())))
    }

    /// The agreements of a text, or the line of a mistake and what it is.
    fn parse(text: &str) -> Result<Agreements, (u64, String)> {
        let mut lines = text.lines().zip(1..);
        let mut columns = None;
        let mut agreements = BTreeMap::new();
        for (line, number) in &mut lines {
            let wrong = |why: String| (number, why);
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let Some(names) = &columns else {
                columns = Some(heading(&cells).map_err(wrong)?);
                continue;
            };
            if cells.len() > names.len() {
                let why = format!("{} cells, and {} columns", cells.len(), names.len());
                return Err(wrong(why));
            }
            let mut agreement = Agreement::default();
            let mut subscriber = "";
            for (name, cell) in names.iter().zip(&cells) {
                let given = !cell.is_empty();
                match *name {
                    "subscriber" => subscriber = cell,
                    "up" if given => agreement.rate[0] = Some(rate(cell).map_err(wrong)?),
                    "down" if given => agreement.rate[1] = Some(rate(cell).map_err(wrong)?),
                    "loss" if given => agreement.loss = Some(share(cell).map_err(wrong)?),
                    "policed" if given => agreement.policed = Some(share(cell).map_err(wrong)?),
                    _ => {}
                }
            }
            if subscriber.is_empty() {
                return Err(wrong("the subscriber is missing".to_owned()));
            }
            if agreements
                .insert(subscriber.to_owned(), agreement)
                .is_some()
            {
                return Err(wrong(format!("{subscriber} has an agreement above")));
            }
        }
        Ok(Agreements(agreements))
    }
}

fn heading<'a>(cells: &[&'a str]) -> Result<Vec<&'a str>, String> {
    const COLUMNS: [&str; 5] = ["subscriber", "up", "down", "loss", "policed"];
    let unknown = cells.iter().find(|cell| !COLUMNS.contains(cell));
    if let Some(unknown) = unknown {
        return Err(format!(
            "there is no column `{unknown}`: give {}",
            COLUMNS.join(", ")
        ));
    }
    if !cells.contains(&"subscriber") {
        return Err("the first line names the columns: `subscriber` is missing".to_owned());
    }
    Ok(cells.to_vec())
}

/// Bits a second, as 20M.
fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1_000),
        Some((at, 'M')) => (&text[..at], 1_000_000),
        Some((at, 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let rate = number.parse::<u64>().ok();
    let rate = rate.and_then(|number| number.checked_mul(unit));
    rate.filter(|rate| *rate > 0)
        .ok_or_else(|| format!("`{text}` is no rate: give bits a second, as 500k, 20M or 1G"))
}

/// A share, as 0.1% or 0.001.
fn share(text: &str) -> Result<f64, String> {
    let (number, of) = match text.strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number / of);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("`{text}` is no share: give 0% to 100%, as 0.1%"))
}

/// The sessions of the ledger beside the agreements.
pub(super) fn answer(
    ledger: &Ledger,
    query: &UsageQuery,
    agreements: &Agreements,
    json: bool,
) -> Result<Answer, CliError> {
    let sessions = ledger.sessions(query).map_err(CliError::run)?;
    let losses = losses(ledger, query)?;
    let rows: Vec<Row> = sessions
        .into_iter()
        .map(|used| {
            let agreed = agreements.0.get(&used.subscriber).copied();
            let loss = losses.as_ref().map(|all| {
                let [charged, lost] = all.get(&used.subscriber).copied().unwrap_or_default();
                [0, 1].map(|direction: usize| part(lost[direction], charged[direction]))
            });
            let policed = [0, 1].map(|direction: usize| {
                part(used.policed_packets[direction], used.packets[direction])
            });
            let broken = agreed.map_or_else(Vec::new, |agreed| broken(&agreed, policed, loss));
            Row {
                used,
                policed,
                loss,
                agreed,
                broken,
            }
        })
        .collect();
    let text = if json {
        serde_json::to_string(&rows).map_err(CliError::run)?
    } else if rows.is_empty() {
        empty::text(ledger, query)?
    } else {
        text(&rows)
    };
    let count = rows.iter().filter(|row| !row.broken.is_empty()).count();
    let failed = (count > 0).then(|| {
        let sessions = format::counted(count as u64, "session");
        format!("the agreements of {sessions} are not kept")
    });
    Ok(Answer {
        text,
        svg: None,
        failed,
    })
}

/// Packets of each subscriber that are charged, and those of them that an audit counter has not; `None`
/// without an audit counter.
type Losses = BTreeMap<String, [[u64; 2]; 2]>;

fn losses(ledger: &Ledger, query: &UsageQuery) -> Result<Option<Losses>, CliError> {
    let audits = ledger
        .audit(query.since_unix_ns, query.until_unix_ns)
        .map_err(CliError::run)?;
    if audits.is_empty() {
        return Ok(None);
    }
    let mut losses = Losses::new();
    for session in ledger.sessions(query).map_err(CliError::run)? {
        let sums = losses.entry(session.subscriber).or_default();
        let policed = session.packets.iter().zip(session.policed_packets);
        for (sum, (packets, policed)) in sums[0].iter_mut().zip(policed) {
            *sum += packets.saturating_sub(policed);
        }
    }
    for audit in audits {
        for row in audit.differences {
            if row.owner == OwnerKind::Session {
                let lost = row.packets[0].saturating_sub(row.packets[1]);
                losses.entry(row.subscriber).or_default()[1][row.direction as usize] += lost;
            }
        }
    }
    Ok(Some(losses))
}

fn part(of: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        of as f64 / all as f64
    }
}

fn broken(agreed: &Agreement, policed: [f64; 2], loss: Option<[f64; 2]>) -> Vec<&'static str> {
    let exceeds = |shares: [f64; 2], most: Option<f64>| {
        most.is_some_and(|most| shares.iter().any(|share| *share > most))
    };
    let mut broken = Vec::new();
    if exceeds(loss.unwrap_or_default(), agreed.loss) {
        broken.push("loss");
    }
    if exceeds(policed, agreed.policed) {
        broken.push("policed");
    }
    broken
}

fn text(rows: &[Row]) -> String {
    let columns = [
        Left("subscriber"),
        Left("session"),
        Left("direction"),
        Right("agreed"),
        Right("mean"),
        Right("peak"),
        Right("policed"),
        Right("loss"),
        Left("kept"),
    ];
    let cells = rows.iter().flat_map(|row| {
        [0, 1].map(|direction: usize| {
            let percent = |share: f64| format!("{:.3} %", share * 100.0);
            let agreed = row.agreed.and_then(|agreed| agreed.rate[direction]);
            let is_first = direction == 0;
            let kept = match (&row.agreed, &row.broken[..]) {
                (None, _) => "no agreement".to_owned(),
                (Some(_), []) => "yes".to_owned(),
                (Some(_), broken) => format!("NO: {}", broken.join(", ")),
            };
            let first = |text: &str| {
                if is_first {
                    text.to_owned()
                } else {
                    String::new()
                }
            };
            vec![
                first(&row.used.subscriber),
                first(&row.used.session),
                ["up", "down"][direction].to_owned(),
                agreed.map_or_else(|| "-".to_owned(), kbit),
                kbit(row.used.rate[direction]),
                kbit(row.used.peak[direction]),
                percent(row.policed[direction]),
                row.loss
                    .map_or_else(|| "-".to_owned(), |loss| percent(loss[direction])),
                first(&kept),
            ]
        })
    });
    let table = format::table(&columns, cells);
    format!(
        "{table}\n\nRates are kbit/s of what passed: the mean over periods with traffic, and the \
         greatest of a period. Loss is what audit counters lack."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreements_are_read_and_mistakes_have_their_line() {
        let text = "# of 2026\nsubscriber, up, down, loss\nalice, 5M, 20M, 0.1%\nbob,,1G\n";
        let read = Agreements::parse(text).unwrap();
        let alice = Agreement {
            rate: [Some(5_000_000), Some(20_000_000)],
            loss: Some(0.001),
            policed: None,
        };
        assert_eq!(read.0["alice"], alice);
        assert_eq!(read.0["bob"].rate, [None, Some(1_000_000_000)]);
        for (text, line, why) in [
            ("subscriber,speed\n", 1, "no column `speed`"),
            ("up,down\n", 1, "`subscriber` is missing"),
            ("subscriber,up\na,fast\n", 2, "no rate"),
            ("subscriber,up\na,0\n", 2, "no rate"),
            ("subscriber,loss\na,101%\n", 2, "no share"),
            ("subscriber,loss\na,NaN\n", 2, "no share"),
            ("subscriber,up\n\n,1M\n", 3, "the subscriber is missing"),
            ("subscriber,up\na,1M\na,2M\n", 3, "above"),
            ("subscriber,up\na,1M,2\n", 2, "3 cells"),
        ] {
            let (at, said) = Agreements::parse(text).map(drop).unwrap_err();
            assert!(at == line && said.contains(why), "{at}: {said}");
        }
    }

    #[test]
    fn an_agreement_is_broken_by_what_exceeds_it() {
        let agreed = Agreement {
            loss: Some(0.01),
            policed: Some(0.0),
            ..Agreement::default()
        };
        assert_eq!(broken(&agreed, [0.0; 2], None), [""; 0]);
        assert_eq!(
            broken(&agreed, [0.0, 0.1], Some([0.01, 0.02])),
            ["loss", "policed"]
        );
        assert_eq!(
            broken(&Agreement::default(), [1.0; 2], Some([1.0; 2])),
            [""; 0]
        );
    }
}
