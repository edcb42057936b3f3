//! The shared corpus of filter expressions, valid and invalid, of every family
//! of pcap-filter(7).
//!
//! There are two sources. Lists written by hand (`corpus/*.txt`) contain
//! realistic filters, precedence puzzles, encapsulations and errors. Templates
//! are combined with values that occur in the captures, so that filters match
//! some frames and not all. Random compositions and mutations are seeded: the
//! corpus is the same on every machine.

mod families;
mod random;
pub mod values;

use std::collections::HashSet;

/// A hand-written list: its name and its text.
const LISTS: [(&str, &str); 4] = [
    ("realistic", include_str!("../../corpus/realistic.txt")),
    ("precedence", include_str!("../../corpus/precedence.txt")),
    (
        "encapsulation",
        include_str!("../../corpus/encapsulation.txt"),
    ),
    ("errors", include_str!("../../corpus/errors.txt")),
];

/// One expression of the corpus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The family: a list's or a template's name.
    pub family: &'static str,
    /// The expression.
    pub text: String,
}

/// Every expression of the corpus once, in a fixed order.
pub fn entries() -> Vec<Entry> {
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    let mut add = |family: &'static str, text: &str| {
        if seen.insert(text.to_owned()) {
            let text = text.to_owned();
            entries.push(Entry { family, text });
        }
    };
    add("empty", "");
    for (family, list) in LISTS {
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            add(family, line);
        }
    }
    for (family, make) in families::FAMILIES {
        for text in make() {
            add(family, &text);
        }
    }
    for text in random::compositions(0x5eed, 600) {
        add("composed", &text);
    }
    for text in random::arithmetic(0xa12, 400) {
        add("arithmetic", &text);
    }
    for text in random::mutations(0xbad, 500) {
        add("mutated", &text);
    }
    entries
}

/// The expressions of one family.
pub fn family(name: &str) -> Vec<String> {
    let all = entries().into_iter();
    all.filter(|entry| entry.family == name)
        .map(|entry| entry.text)
        .collect()
}
