//! Values of keys: numbers with units, times.

use serde::Deserialize;
use toml::Spanned;
use weir_chain::config::ConfigError;

/// A number, or a text with a unit.
#[derive(Clone, Deserialize, Debug)]
#[serde(untagged, expecting = "expected a number, or a text as in \"100M\"")]
pub(super) enum Number {
    Plain(u64),
    Text(String),
}

pub(super) fn wrong(at: usize, message: impl Into<String>) -> ConfigError {
    ConfigError {
        at: Some(at),
        message: message.into(),
    }
}

/// A number with a decimal unit, k, M, G or T, in `min..=max`; `None` if it is not.
pub(super) fn number(text: &str, min: u64, max: u64) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return None,
    };
    let number = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (min..=max).contains(&number).then_some(number)
}

/// As [`number`], of a key; `like` shows how to write one.
pub(super) fn number_of(
    key: &str,
    value: &Spanned<Number>,
    (min, max): (u64, u64),
    like: &str,
) -> Result<u64, ConfigError> {
    let text = match value.get_ref() {
        Number::Plain(number) => number.to_string(),
        Number::Text(text) => text.clone(),
    };
    number(&text, min, max).ok_or_else(|| {
        let message = format!("{key} = {text}: write {min} to {max}, or with k, M or G, as {like}");
        wrong(value.span().start, message)
    })
}

/// A time in ns: `"5ms"`.
pub(super) fn time(
    key: &str,
    value: &Spanned<String>,
    (min, max): (u64, u64),
) -> Result<u64, ConfigError> {
    let text = value.get_ref();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let found = number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .filter(|time| (min..=max).contains(time));
    found.ok_or_else(|| {
        let message = format!(
            "{key} = \"{text}\": write a number and us, ms or s, as in \"5ms\"; {} us to {} ms",
            min / 1_000,
            max / 1_000_000
        );
        wrong(value.span().start, message)
    })
}

/// A whole number in a range.
pub(super) fn count(
    key: &str,
    value: &Spanned<u64>,
    (min, max): (u64, u64),
) -> Result<u64, ConfigError> {
    let number = *value.get_ref();
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(wrong(
            value.span().start,
            format!("{key} = {number}: write {min} to {max}"),
        ))
    }
}
