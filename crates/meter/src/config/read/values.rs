//! The forms that a value may have: a text or a list, a table in order, a number or a word.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use toml::Spanned;
use weir_wire::Protocol;

/// Protocols by the words of the configuration.
const PROTOCOLS: [(&str, u8); 16] = [
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("sctp", 132),
    ("udplite", 136),
];

/// A string or a list of strings, each with its place.
pub(super) struct OneOrMore(pub(super) Vec<Spanned<String>>);

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMore, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts")
            }

            fn visit_str<E>(self, text: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![Spanned::new(0..0, text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMore, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMore(texts))
            }
        }
        deserializer.deserialize_any(TextOrList)
    }
}

/// A table whose keys are names, in the order in which they stand in the file.
pub(super) struct Ordered<T>(pub(super) Vec<(Spanned<String>, Spanned<T>)>);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Ordered(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Table<T> {
            type Value = Ordered<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries: Vec<(Spanned<String>, Spanned<T>)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                entries.sort_by_key(|(name, _)| name.span().start);
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Table(PhantomData))
    }
}

/// A filter expression, or a table.
pub(super) enum ServiceValue {
    Filter(String),
    Table(ServiceTable),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ServiceTable {
    pub(super) tcp: Vec<PortRange>,
    pub(super) udp: Vec<PortRange>,
    pub(super) sctp: Vec<PortRange>,
    pub(super) dccp: Vec<PortRange>,
    pub(super) udplite: Vec<PortRange>,
    pub(super) protocols: Vec<ProtocolNumber>,
    pub(super) filter: Option<Spanned<String>>,
}

impl<'de> Deserialize<'de> for ServiceValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FilterOrTable;
        impl<'de> Visitor<'de> for FilterOrTable {
            type Value = ServiceValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a filter expression, or a table such as { tcp = [80, 443] }")
            }

            fn visit_str<E>(self, text: &str) -> Result<ServiceValue, E> {
                Ok(ServiceValue::Filter(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServiceValue, A::Error> {
                let table = ServiceTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ServiceValue::Table(table))
            }
        }
        deserializer.deserialize_any(FilterOrTable)
    }
}

/// A port, or a range of ports such as `"8000-8099"`.
pub(super) struct PortRange(pub(super) RangeInclusive<u16>);

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortOrRange;
        impl Visitor<'_> for PortOrRange {
            type Value = PortRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port from 0 to 65535, or a range such as \"8000-8099\"")
            }

            fn visit_i64<E: serde::de::Error>(self, port: i64) -> Result<PortRange, E> {
                let wrong = |_| E::invalid_value(serde::de::Unexpected::Signed(port), &self);
                let port = u16::try_from(port).map_err(wrong)?;
                Ok(PortRange(port..=port))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PortRange, E> {
                let range = text.split_once('-').and_then(|(first, last)| {
                    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
                    (first <= last).then_some(first..=last)
                });
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                range.map(PortRange).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(PortOrRange)
    }
}

/// An IP protocol by number, or by a word of [`PROTOCOLS`].
pub(super) struct ProtocolNumber(pub(super) Protocol);

impl<'de> Deserialize<'de> for ProtocolNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrWord;
        impl Visitor<'_> for NumberOrWord {
            type Value = ProtocolNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 255, or one of")?;
                PROTOCOLS
                    .iter()
                    .try_for_each(|(name, _)| write!(f, " {name}"))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<ProtocolNumber, E> {
                let wrong = |_| E::invalid_value(serde::de::Unexpected::Signed(number), &self);
                let number = u8::try_from(number).map_err(wrong)?;
                Ok(ProtocolNumber(Protocol(number)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ProtocolNumber, E> {
                let found = PROTOCOLS.iter().find(|(name, _)| *name == text);
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                found
                    .map(|(_, number)| ProtocolNumber(Protocol(*number)))
                    .ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(NumberOrWord)
    }
}

/// Whether it is measured, the measure's settings, or an expression.
pub(super) enum MeasureValue {
    On(bool),
    Settings(MeasureTable),
    Filter(String),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MeasureTable {
    pub(super) max: Option<Spanned<usize>>,
    pub(super) idle: Option<Spanned<String>>,
    pub(super) slot: Option<Spanned<String>>,
}

impl<'de> Deserialize<'de> for MeasureValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyForm;
        impl<'de> Visitor<'de> for AnyForm {
            type Value = MeasureValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, a table, or a filter expression")
            }

            fn visit_bool<E>(self, on: bool) -> Result<MeasureValue, E> {
                Ok(MeasureValue::On(on))
            }

            fn visit_str<E>(self, text: &str) -> Result<MeasureValue, E> {
                Ok(MeasureValue::Filter(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MeasureValue, A::Error> {
                let table = MeasureTable::deserialize(MapAccessDeserializer::new(map));
                table.map(MeasureValue::Settings)
            }
        }
        deserializer.deserialize_any(AnyForm)
    }
}
