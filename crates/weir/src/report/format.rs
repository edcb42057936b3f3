//! Numbers and tables for people.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use unicode_width::UnicodeWidthStr;

/// A column of a table: its heading and alignment.
#[derive(Clone, Copy)]
pub(crate) enum Column<'a> {
    /// Text.
    Left(&'a str),
    /// Numbers.
    Right(&'a str),
}

/// A table without rules, with two blanks between columns. The rows are
/// iterated twice, without a copy, since there may be a million. A cell may
/// have text from the network: characters that move the cursor, end a line or
/// turn the direction of text are escaped.
pub(crate) fn table<R>(columns: &[Column<'_>], rows: R) -> String
where
    R: IntoIterator<Item = Vec<String>> + Clone,
{
    let heading = columns.iter().map(|column| match column {
        Column::Left(text) | Column::Right(text) => (*text).to_owned(),
    });
    let all = || {
        let rows = rows.clone().into_iter();
        let rows = rows.map(|row| row.into_iter().map(escaped).collect());
        std::iter::once(heading.clone().collect::<Vec<String>>()).chain(rows)
    };
    let mut widths = vec![0; columns.len()];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = cell.width().max(*width);
        }
    }
    let mut out = String::new();
    for row in all() {
        if !out.is_empty() {
            out.push('\n');
        }
        add_row(&mut out, columns, &widths, &row);
    }
    out
}

/// The text with escapes, as `\n` and `\u{1b}`, in place of characters that
/// are not shown but obeyed.
pub(crate) fn escaped(cell: String) -> String {
    let is_obeyed = |letter: char| {
        letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !cell.contains(is_obeyed) {
        return cell;
    }
    let mut out = String::with_capacity(cell.len() + 8);
    for letter in cell.chars() {
        if is_obeyed(letter) {
            out.extend(letter.escape_default());
        } else {
            out.push(letter);
        }
    }
    out
}

/// Adds a line of cells, without trailing blanks.
fn add_row(out: &mut String, columns: &[Column<'_>], widths: &[usize], row: &[String]) {
    let mut blanks = 0;
    for ((column, width), cell) in columns.iter().zip(widths).zip(row) {
        let rest = width.saturating_sub(cell.width());
        let (before, after) = match column {
            Column::Left(_) => (0, rest),
            Column::Right(_) => (rest, 0),
        };
        blanks += before;
        if !cell.is_empty() {
            out.extend(std::iter::repeat_n(' ', blanks));
            out.push_str(cell);
            blanks = 0;
        }
        blanks += after + 2;
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 frame`, `1,234 frames`.
pub(crate) fn frames(number: u64) -> String {
    counted(number, "frame")
}

/// A number with a unit in singular or plural.
pub(crate) fn counted(number: u64, unit: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {unit}{plural}", grouped(number))
}

/// `part` of `whole` in per cent with one decimal; `-` if `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        "-".into()
    } else {
        format!("{:.1} %", part as f64 * 100.0 / whole as f64)
    }
}

/// Nanoseconds since 1970 as a UTC date and time to the microsecond (RFC 3339);
/// `-` without a time.
pub(crate) fn time(time_ns: Option<i64>) -> String {
    utc(time_ns).map_or_else(
        || "-".into(),
        |time| time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
    )
}

/// Nanoseconds since 1970 as a UTC time of day to the microsecond; `-` if out
/// of range.
pub(crate) fn time_of_day(time_ns: i64) -> String {
    utc(Some(time_ns)).map_or_else(
        || "-".into(),
        |time| time.strftime("%H:%M:%S.%6f").to_string(),
    )
}

/// The format of the times of one table: as short as distinguishes them, so
/// that the table fits 80 columns. All are UTC.
pub(crate) enum Times {
    /// All on this date: the time of day, to the microsecond.
    OneDay(Date),
    /// Date and time, to the second.
    Days,
    /// There are none.
    None,
}

impl Times {
    /// The format for times from `first_ns` to `last_ns`, in nanoseconds since
    /// 1970.
    pub(crate) fn spanning(first_ns: Option<i64>, last_ns: Option<i64>) -> Times {
        match (utc(first_ns), utc(last_ns)) {
            (Some(first), Some(last)) if first.date() == last.date() => Times::OneDay(first.date()),
            (Some(_), Some(_)) => Times::Days,
            _ => Times::None,
        }
    }

    /// A cell with a time in nanoseconds since 1970; `-` without a time.
    pub(crate) fn cell(&self, time_ns: Option<i64>) -> String {
        match (utc(time_ns), self) {
            (Some(time), Times::OneDay(_)) => time.strftime("%H:%M:%S.%6f").to_string(),
            (Some(time), _) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            (None, _) => "-".into(),
        }
    }

    /// The lines below the table with the parts that cells omit.
    pub(crate) fn note(&self) -> String {
        match self {
            Times::OneDay(date) => format!("\n\nTimes are UTC, on {date}."),
            Times::Days => "\n\nTimes are UTC.".into(),
            Times::None => String::new(),
        }
    }
}

fn utc(time_ns: Option<i64>) -> Option<DateTime> {
    let timestamp = Timestamp::from_nanosecond(i128::from(time_ns?)).ok()?;
    Some(Offset::UTC.to_datetime(timestamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!([frames(0), frames(1)], ["0 frames", "1 frame"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let columns = [Column::Left("a"), Column::Right("bytes"), Column::Left("c")];
        let rows = [["日本", "1", ""], ["x", "1,234,567", "end"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&columns, rows),
            "a         bytes  c\n日本          1\nx     1,234,567  end"
        );
        assert_eq!(table(&columns, []), "a  bytes  c");
    }

    #[test]
    fn cells_do_not_command_the_terminal() {
        let names = ["a\nb\tc", "\u{1b}[2Jé", "\u{9b}1m\u{202e}x"];
        let rows = names.map(|name| vec![name.to_owned(), "1".to_owned()]);
        assert_eq!(
            table(&[Column::Left("name"), Column::Right("n")], rows),
            "name               n\na\\nb\\tc            1\n\\u{1b}[2Jé         1\n\\u{9b}1m\\u{202e}x  1"
        );
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time(None), "-");
        assert_eq!(time(Some(0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            time(Some(951_827_696_123_456_789)),
            "2000-02-29T12:34:56.123456Z"
        );
        assert_eq!(time(Some(-1)), "1969-12-31T23:59:59.999999Z");
        assert_eq!(time_of_day(-1), "23:59:59.999999");
        assert_eq!(time(Some(i64::MAX)), "2262-04-11T23:47:16.854775Z");
    }

    #[test]
    fn times_of_one_day_are_to_the_microsecond() {
        let (first, last) = (951_827_696_123_456_789, 951_868_799_999_999_999);
        let times = Times::spanning(Some(first), Some(last));
        assert_eq!(times.cell(Some(first)), "12:34:56.123456");
        assert_eq!(times.cell(Some(last)), "23:59:59.999999");
        assert_eq!(times.cell(None), "-");
        assert!(times.note().contains("UTC, on 2000-02-29"));
    }

    #[test]
    fn times_of_several_days_have_their_dates() {
        let times = Times::spanning(Some(-1), Some(0));
        assert_eq!(times.cell(Some(0)), "1970-01-01 00:00:00");
        assert_eq!(times.cell(Some(-1)), "1969-12-31 23:59:59");
        assert_eq!(times.cell(Some(i64::MAX)), "2262-04-11 23:47:16");
        assert!(times.note().contains("UTC"));
        let none = Times::spanning(None, None);
        assert_eq!((none.cell(None).as_str(), none.note().as_str()), ("-", ""));
    }
}
