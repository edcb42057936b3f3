//! The deliberate differences from libpcap: `corpus/differences.toml`.

use std::fmt::Write as _;

use serde::Deserialize;
use weir_lab::oracle::Oracle;

use crate::judge::{Difference, Kind};

/// One rule of the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The libpcap versions that it applies to, such as `1.10`.
    versions: Vec<String>,
    /// The link types, by name; all if absent.
    #[serde(default)]
    linktypes: Vec<String>,
    /// The kind of difference.
    kind: Kind,
    /// The expressions, where `*` stands for any text.
    expressions: Vec<String>,
    /// A part of the error message, of the side that refuses.
    #[serde(default)]
    error: String,
    /// The reason.
    reason: String,
    /// Number of differences that it has explained.
    #[serde(skip)]
    hits: usize,
}

#[derive(Deserialize)]
struct List {
    difference: Vec<Rule>,
}

/// The rules for the loaded libpcap.
pub(crate) struct Expected {
    version: String,
    rules: Vec<Rule>,
}

impl Expected {
    pub(crate) fn read(oracle: &Oracle) -> Expected {
        let list: List = toml::from_str(include_str!("../../corpus/differences.toml"))
            .expect("differences.toml has its form");
        let (major, minor) = oracle.version_numbers().expect("libpcap names its version");
        let version = format!("{major}.{minor}");
        let mut rules = list.difference;
        assert!(rules.iter().all(|rule| !rule.reason.is_empty()));
        rules.retain(|rule| rule.versions.contains(&version));
        Expected { version, rules }
    }

    /// Fails on a difference that no rule explains, and, if the whole corpus
    /// was compared, on a rule for these link types that explains none.
    pub(crate) fn check(&mut self, what: &str, found: &[Difference], whole: bool) {
        let mut report = String::new();
        let mut unexplained = 0;
        for difference in found {
            let mut rules = self.rules.iter_mut();
            if let Some(rule) = rules.find(|rule| rule.explains(difference)) {
                rule.hits += 1;
                continue;
            }
            unexplained += 1;
            writeln!(report, "{difference}").expect("a string takes text");
        }
        if let Some(path) = std::env::var_os("WEIR_DIFFERENCES") {
            let path = format!("{}.{what}", path.to_string_lossy());
            std::fs::write(path, &report).expect("the report can be written");
        }
        let shown: Vec<&str> = report.lines().take(60).collect();
        assert!(
            unexplained == 0,
            "{unexplained} differences from libpcap {} not in corpus/differences.toml:\n{}",
            self.version,
            shown.join("\n")
        );
        let idle = self
            .rules
            .iter()
            .find(|rule| rule.hits == 0 && rule.is_for(what));
        if let (true, Some(rule)) = (whole, idle) {
            panic!(
                "listed, but no longer different: {:?} ({})",
                rule.expressions, rule.reason
            );
        }
    }
}

impl Rule {
    fn explains(&self, difference: &Difference) -> bool {
        let linktype = difference.linktype.to_string();
        self.kind == difference.kind
            && (self.linktypes.is_empty() || self.linktypes.contains(&linktype))
            && difference.detail.contains(&self.error)
            && self
                .expressions
                .iter()
                .any(|pattern| matches(pattern, &difference.text))
    }

    /// Whether unconverted captures (`own`) must show it: they contain
    /// Ethernet, PPP and Linux cooked frames.
    fn is_for(&self, what: &str) -> bool {
        let own = |linktype: &String| ["EN10MB", "PPP", "LINUX_SLL"].contains(&linktype.as_str());
        let owned = self.linktypes.is_empty() || self.linktypes.iter().any(own);
        owned == (what == "own")
    }
}

/// Whether the text matches the pattern, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(left) = text.strip_prefix(start) else {
        return false;
    };
    let mut cuts = left.char_indices().map(|(at, _)| at).chain([left.len()]);
    cuts.any(|at| matches(rest, &left[at..]))
}

#[test]
fn patterns_match_as_globs() {
    assert!(matches("vxlan", "vxlan") && !matches("vxlan", "vxlan 1"));
    assert!(matches("vxlan*", "vxlan 1") && matches("*vxlan*", "not vxlan and ip"));
    assert!(matches("a*c*e", "abcde") && !matches("a*c*f", "abcde"));
}
