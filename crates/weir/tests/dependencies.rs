//! The dependencies are as `deny.toml` permits: licences, sources, and no
//! duplicates. cargo-deny makes the same checks, but may not be installed.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;
use weir_lab::testenv;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn deny() -> toml::Table {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    text.parse().unwrap()
}

fn strings(value: &toml::Value) -> Vec<String> {
    let items = value.as_array().unwrap().iter();
    items
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

/// The packages that the workspace is built from on this platform, tests
/// included; `None` (after a skip) without cargo in `PATH`.
fn packages() -> Option<&'static [Value]> {
    static PACKAGES: OnceLock<Vec<Value>> = OnceLock::new();
    testenv::programs(&["cargo"]).then(|| PACKAGES.get_or_init(listed).as_slice())
}

fn listed() -> Vec<Value> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = testenv::program("cargo")
        .expect("the test has asked for it")
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", &platform])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = all["resolve"]["nodes"].as_array().unwrap();
    let used: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let packages = all["packages"].as_array().unwrap().iter();
    let packages = packages.filter(|package| used.contains(package["id"].as_str().unwrap()));
    packages.cloned().collect()
}

fn name(package: &Value) -> String {
    let part = |key: &str| package[key].as_str().unwrap();
    format!("{} {}", part("name"), part("version"))
}

/// Whether the licences `allowed` satisfy an SPDX expression. Old manifests
/// write `/` for OR. AND has the higher precedence.
fn may_be_used(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ");
    let spaced = spaced.replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = either(&mut words, allowed);
    assert!(words.next().is_none(), "`{expression}` is not understood");
    met
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = both(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= both(words, allowed);
    }
    met
}

fn both(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let word = words.next().expect("a licence");
    if word == "(" {
        let met = either(words, allowed);
        assert_eq!(words.next(), Some(")"));
        return met;
    }
    let mut licence = word.to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", words.next().expect("an exception"));
    }
    allowed.contains(&licence)
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed = ["MIT", "Zlib"].map(str::to_owned);
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("Apache-2.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND GPL-3.0 OR Zlib", true),
        ("(MIT OR GPL-3.0) AND Zlib", true),
        ("(MIT OR Zlib) AND GPL-3.0", false),
        ("MIT WITH LLVM-exception", false),
    ] {
        assert_eq!(may_be_used(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn licences_and_sources_are_allowed() {
    let Some(packages) = packages() else { return };
    let allowed = strings(&deny()["licenses"]["allow"]);
    let deny = deny();
    let exceptions = deny["licenses"]["exceptions"].as_array().unwrap();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        let exception = exceptions
            .iter()
            .find(|it| it["crate"].as_str() == package["name"].as_str());
        let own = exception.map_or_else(Vec::new, |it| strings(&it["allow"]));
        assert!(
            may_be_used(licence, &[&allowed[..], &own[..]].concat()),
            "{}: `{licence}` is none of deny.toml's licences",
            name(package)
        );
        // None is a path.
        let source = package["source"].as_str().unwrap_or("registry+");
        assert!(
            source.starts_with("registry+"),
            "{}: {source}",
            name(package)
        );
    }
    for licence in &allowed {
        let without: Vec<String> = allowed
            .iter()
            .filter(|one| *one != licence)
            .cloned()
            .collect();
        let is_needed = |package: &Value| {
            let licence = package["license"].as_str().unwrap_or_default();
            !may_be_used(licence, &without)
        };
        assert!(
            packages.iter().any(is_needed),
            "deny.toml: no crate needs {licence}"
        );
    }
}

#[test]
fn no_crate_is_there_twice() {
    let Some(packages) = packages() else { return };
    let deny = deny();
    let skipped: Vec<(String, String)> = deny["bans"]["skip"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skip| {
            let (name, version) = skip["crate"].as_str().unwrap().split_once('@').unwrap();
            (name.to_owned(), format!("{version}."))
        })
        .collect();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let part = |key: &str| package[key].as_str().unwrap();
        versions
            .entry(part("name"))
            .or_default()
            .push(part("version"));
    }
    let is_skipped = |name: &str, version: &str| {
        let mut skips = skipped.iter();
        skips.any(|(other, prefix)| name == other && format!("{version}.").starts_with(prefix))
    };
    for (name, versions) in &versions {
        let counted = versions.iter().filter(|version| !is_skipped(name, version));
        assert!(
            counted.count() <= 1,
            "{name} is there as {versions:?}: name one of them in deny.toml with the reason"
        );
    }
    for (name, version) in &skipped {
        let there = versions.get(&**name).map_or(0, Vec::len);
        assert!(there > 1, "deny.toml: {name}@{version} is there once");
    }
}
