//! Times and time zones as a command line has them.

use crate::error::CliError;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// The time zone of this name; without one, the system's.
pub(crate) fn zone(name: Option<&str>) -> Result<TimeZone, CliError> {
    let Some(name) = name else {
        return Ok(TimeZone::try_system().unwrap_or(TimeZone::UTC));
    };
    TimeZone::get(name).map_err(|_| {
        CliError::refused(format!(
            "--zone {name}: there is no such time zone: give a name as Europe/Berlin or UTC"
        ))
    })
}

/// A time, or how long ago, as Unix time in nanoseconds.
pub(crate) fn parse(text: &str, zone: &TimeZone) -> Result<i64, CliError> {
    let instant = text.parse::<Timestamp>().ok();
    let civil = || {
        let time: DateTime = text.parse().ok()?;
        Some(time.to_zoned(zone.clone()).ok()?.timestamp())
    };
    let ago = || {
        let span: Span = text.trim_end_matches(" ago").parse().ok()?;
        let now = Timestamp::now().to_zoned(zone.clone());
        let then: Zoned = now.checked_sub(span.abs()).ok()?;
        Some(then.timestamp())
    };
    let time = instant.or_else(civil).or_else(ago);
    let unix_ns = time.and_then(|time| i64::try_from(time.as_nanosecond()).ok());
    unix_ns.ok_or_else(|| {
        CliError::refused(format!(
            "{text}: not a time: give one as 2026-10-25, 2026-10-25T08:00 or 2026-10-25T08:00:00Z, \
             or how long ago, as 90m, 24h or 7d"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_instants_civil_times_and_spans() {
        let berlin = zone(Some("Europe/Berlin")).unwrap();
        let ns = |text| parse(text, &berlin).unwrap();
        assert_eq!(ns("1970-01-01T01:00:00Z"), 3_600_000_000_000);
        assert_eq!(ns("1970-01-01T02:00"), 3_600_000_000_000);
        assert_eq!(ns("1970-01-02"), 23 * 3_600_000_000_000);
        let ago = ns("7d") - ns("8d");
        assert!(
            (ago - 24 * 3_600_000_000_000).abs() < 3_700_000_000_000,
            "{ago}"
        );
        for text in ["", "yesterday", "2026-13-01", "7x", "9999999999d"] {
            let refused = parse(text, &berlin).unwrap_err().to_string();
            assert!(refused.contains("not a time"), "{refused}");
        }
        assert!(zone(Some("Europe/Atlantis")).is_err());
    }
}
