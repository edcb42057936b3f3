//! `[policy.NAME]` of `counter.toml`.

use super::super::{ConfigError, POLICIES_MAX};
use super::{Ordered, check_name, error, wrong};
use crate::policy::{
    BURST_BYTES, Policy, PolicyAction, QUOTA_BYTES_MAX, RATE_BITS, RateLimit, SpentRequest,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use toml::Spanned;

/// Without `burst`: what the rate has in this part of a second, but at least `BURST_MIN` bytes.
const BURST_PART: u64 = 10;
const BURST_MIN: u64 = 16_000;

/// Bytes of Filter-Id, at most: those of an attribute (RFC 2865 §5).
const FILTER_BYTES_MAX: usize = 253;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PolicyTable {
    rate: Option<Spanned<RateValue>>,
    burst: Option<Spanned<String>>,
    over: Option<Spanned<String>>,
    quota: Option<Spanned<String>>,
    spent: Option<Spanned<String>>,
    spent_request: Option<Spanned<String>>,
}

/// One rate for either direction, or a rate for each.
enum RateValue {
    Both(String),
    Each(RateTable),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RateTable {
    up: Option<String>,
    down: Option<String>,
}

impl<'de> Deserialize<'de> for RateValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = RateValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate such as \"10M\", or { up = \"2M\", down = \"10M\" }")
            }

            fn visit_str<E>(self, text: &str) -> Result<RateValue, E> {
                Ok(RateValue::Both(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RateValue, A::Error> {
                let table = RateTable::deserialize(MapAccessDeserializer::new(map));
                table.map(RateValue::Each)
            }
        }
        deserializer.deserialize_any(TextOrTable)
    }
}

/// The policies, in order.
pub(super) fn policies(table: &Ordered<PolicyTable>) -> Result<Vec<Policy>, ConfigError> {
    if let Some((name, _)) = table.0.get(POLICIES_MAX) {
        let count = table.0.len();
        let message = format!("[policy]: {count} policies: at most {POLICIES_MAX}");
        return Err(error(name.span().start, message));
    }
    let mut policies = Vec::new();
    for (name, value) in &table.0 {
        check_name("[policy]: name", name)?;
        policies.push(policy(name.get_ref(), value)?);
    }
    Ok(policies)
}

fn policy(name: &str, value: &Spanned<PolicyTable>) -> Result<Policy, ConfigError> {
    let (at, table) = (value.span().start, value.get_ref());
    let place = format!("[policy.{name}]");
    let burst = match &table.burst {
        None => None,
        Some(text) => Some(bytes(&format!("{place}: burst"), text, BURST_BYTES)?),
    };
    let mut rates = [None; 2];
    if let Some(rate) = &table.rate {
        let texts = match rate.get_ref() {
            RateValue::Both(text) => [Some(text), Some(text)],
            RateValue::Each(table) => [table.up.as_ref(), table.down.as_ref()],
        };
        for (limit, text) in rates.iter_mut().zip(texts) {
            let Some(text) = text else { continue };
            let bits_per_second = number(
                text,
                &[("", 1), ("k", 1000), ("M", 1_000_000), ("G", 1_000_000_000)],
            )
            .filter(|bits| (RATE_BITS[0]..=RATE_BITS[1]).contains(bits));
            let Some(bits_per_second) = bits_per_second else {
                let remedy = "write bits a second from 8k to 400G: a number and k, M or G";
                return Err(wrong(
                    &format!("{place}: rate"),
                    rate,
                    format!("`{text}`"),
                    remedy,
                ));
            };
            let default = (bits_per_second / 8 / BURST_PART).clamp(BURST_MIN, BURST_BYTES[1]);
            *limit = Some(RateLimit {
                bits_per_second,
                burst_bytes: burst.unwrap_or(default) as u32,
            });
        }
    }
    let quota_bytes = match &table.quota {
        None => None,
        Some(text) => Some(bytes(
            &format!("{place}: quota"),
            text,
            [1, QUOTA_BYTES_MAX],
        )?),
    };
    let has_rate = rates.iter().any(Option::is_some);
    if !has_rate && quota_bytes.is_none() {
        return Err(error(
            at,
            format!("{place}: it limits nothing: give rate or quota"),
        ));
    }
    for (key, given, needs, has) in [
        ("burst", table.burst.as_ref(), "rate", has_rate),
        ("over", table.over.as_ref(), "rate", has_rate),
        (
            "spent",
            table.spent.as_ref(),
            "quota",
            quota_bytes.is_some(),
        ),
        (
            "spent_request",
            table.spent_request.as_ref(),
            "quota",
            quota_bytes.is_some(),
        ),
    ] {
        if let Some(given) = given.filter(|_| !has) {
            let remedy = format!("there is no {needs}: give one, or leave this out");
            let shown = format!("`{}`", given.get_ref());
            return Err(wrong(&format!("{place}: {key}"), given, shown, &remedy));
        }
    }
    Ok(Policy {
        name: name.to_owned(),
        rates,
        over: action(&format!("{place}: over"), &table.over)?,
        quota_bytes,
        spent: action(&format!("{place}: spent"), &table.spent)?,
        spent_request: match &table.spent_request {
            None => None,
            Some(text) => Some(request(&format!("{place}: spent_request"), text)?),
        },
    })
}

/// The request to the access server.
fn request(key: &str, text: &Spanned<String>) -> Result<SpentRequest, ConfigError> {
    let word = text.get_ref().as_str();
    let is_filter = |filter: &str| (1..=FILTER_BYTES_MAX).contains(&filter.len());
    match (word, word.strip_prefix("coa:")) {
        ("disconnect", _) => Ok(SpentRequest::Disconnect),
        (_, Some(filter)) if is_filter(filter) => Ok(SpentRequest::Change {
            filter: filter.to_owned(),
        }),
        _ => {
            let remedy = "there are \"disconnect\" and \"coa:FILTER\", with the Filter-Id that the \
                          access server is to give the session, 1 to 253 bytes";
            Err(wrong(key, text, format!("`{word}`"), remedy))
        }
    }
}

/// A whole number and one of these units.
fn number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn bytes(key: &str, text: &Spanned<String>, [least, most]: [u64; 2]) -> Result<u64, ConfigError> {
    let units = [
        ("B", 1),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let found = number(text.get_ref(), &units).filter(|bytes| (least..=most).contains(bytes));
    found.ok_or_else(|| {
        let remedy = format!(
            "write from {least} to {most} bytes: a number and B, kB, MB, GB or TB, as in \"100kB\""
        );
        wrong(key, text, format!("`{}`", text.get_ref()), &remedy)
    })
}

fn action(key: &str, text: &Option<Spanned<String>>) -> Result<PolicyAction, ConfigError> {
    let Some(text) = text else {
        return Ok(PolicyAction::Drop);
    };
    let word = text.get_ref().as_str();
    let code_point = || {
        word.strip_prefix("dscp:")?
            .parse::<u8>()
            .ok()
            .filter(|it| *it < 64)
    };
    match word {
        "drop" => Ok(PolicyAction::Drop),
        "portal" => Ok(PolicyAction::Portal),
        _ => code_point().map(PolicyAction::Mark).ok_or_else(|| {
            let remedy =
                "there are \"drop\", \"dscp:N\" with a code point from 0 to 63, and \"portal\"";
            wrong(key, text, format!("`{word}`"), remedy)
        }),
    }
}
