//! Numbers and tables as a person reads them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use jiff::Timestamp;

/// A column of a table: its heading, and the side its cells stand on.
pub(crate) enum Column {
    /// Text.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

/// A table without lines.
pub(crate) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    let heading = columns.iter().map(|column| match column {
        Column::Left(text) | Column::Right(text) => *text,
    });
    table.load_style(NOTHING).set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    for (column, cells) in columns.iter().zip(table.column_iter_mut()) {
        cells.set_cell_alignment(match column {
            Column::Left(_) => CellAlignment::Left,
            Column::Right(_) => CellAlignment::Right,
        });
    }
    // Each cell has a blank on either side: the outermost go.
    let lines: Vec<String> = table.lines().map(|line| cut(&line)).collect();
    lines.join("\n")
}

fn cut(line: &str) -> String {
    line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
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
    let plural = if number == 1 { "" } else { "s" };
    format!("{} frame{plural}", grouped(number))
}

/// `part` of `whole` in per cent with one decimal; `-` of nothing.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        "-".into()
    } else {
        format!("{:.1} %", part as f64 * 100.0 / whole as f64)
    }
}

/// Nanoseconds since 1970 as a UTC date and time to the microsecond, as
/// RFC 3339 has it; `-` without a time.
pub(crate) fn time(time_ns: Option<i64>) -> String {
    let timestamp = time_ns.and_then(|ns| Timestamp::from_nanosecond(i128::from(ns)).ok());
    timestamp.map_or_else(
        || "-".into(),
        |timestamp| timestamp.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
    )
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
    fn times_are_utc() {
        assert_eq!(time(None), "-");
        assert_eq!(time(Some(0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            time(Some(951_827_696_123_456_789)),
            "2000-02-29T12:34:56.123456Z"
        );
        assert_eq!(time(Some(-1)), "1969-12-31T23:59:59.999999Z");
        assert_eq!(time(Some(i64::MAX)), "2262-04-11T23:47:16.854775Z");
    }
}
