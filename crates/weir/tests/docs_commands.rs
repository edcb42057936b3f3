//! Checks that the commands in pages and `--help` exist: subcommands and
//! options, benches and their parts, tests, examples.

mod common;

use common::{stdout, weir};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Every page for readers, by its path.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut folders = vec![root().join("docs")];
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]
        .map(|name| root().join(name))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    let read = |path: PathBuf| (path.clone(), fs::read_to_string(path).unwrap());
    found.into_iter().map(read).collect()
}

/// The code of a page: inline code, and the lines of its code blocks, with
/// continuation lines joined.
fn code(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (index, part) in page.split("```").enumerate() {
        if index % 2 == 1 {
            let joined = part.replace("\\\n", " ");
            all.extend(joined.lines().map(|line| line.trim().to_owned()));
        } else {
            let inline = part.split('`').skip(1).step_by(2);
            all.extend(inline.map(|code| code.replace('\n', " ")));
        }
    }
    all
}

/// The words of a command after its name, anywhere in the line, up to the end
/// of the command; and the commands quoted in it.
fn calls(line: &str, name: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    let mut outside = String::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            1 => {
                calls.extend(
                    self::calls(part, name)
                        .into_iter()
                        .filter(|_| part.starts_with(name)),
                );
                outside += "QUOTED";
            }
            _ => outside += part,
        }
    }
    let outside = outside.split(['#', '|', '&', ';', ')', '…', ':', '[', ']']);
    for part in outside {
        let words: Vec<&str> = part.split_whitespace().collect();
        let words = words.strip_prefix(&["$"]).unwrap_or(&words);
        let words = words.strip_prefix(&["sudo"]).unwrap_or(words);
        if let Some((first, rest)) = words.split_first()
            && *first == name
        {
            calls.push(rest.iter().map(|word| (*word).to_owned()).collect());
        }
    }
    calls
}

/// The help texts of subcommands requested so far.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, Option<String>>);

impl Helps {
    /// The help of a subcommand; `None` if it does not exist.
    fn of(&mut self, subcommand: &[String]) -> Option<&str> {
        let help = self.0.entry(subcommand.to_vec()).or_insert_with(|| {
            let run = weir([]).args(subcommand).arg("--help").output().unwrap();
            run.status.success().then(|| stdout(&run))
        });
        help.as_deref()
    }
}

/// The reason why a call is not valid, if any.
fn fault(helps: &mut Helps, words: &[String]) -> Option<String> {
    let is_name = |word: &&String| {
        word.chars()
            .all(|c| c.is_ascii_lowercase() || "-0123456789".contains(c))
    };
    let depth = match words.first().map(String::as_str) {
        Some("lab") if words.get(1).is_some_and(|word| word == "results") => 3,
        Some("lab" | "experiment") => 2,
        _ => 1,
    };
    let names: Vec<String> = words
        .iter()
        .take(depth)
        .take_while(is_name)
        .cloned()
        .collect();
    if names.is_empty() {
        return None;
    }
    let Some(help) = helps.of(&names) else {
        return Some(format!("there is no `weir {}`", names.join(" ")));
    };
    // Behind `--` are another program's.
    let own = words.iter().take_while(|word| *word != "--");
    let options = own.filter(|word| word.starts_with("--"));
    let names_of = options.map(|word| word.split(['=', ',', '.']).next().unwrap().to_owned());
    let known = |option: &String| {
        let of = |line: &str| line.split([' ', ',', '=', '[']).any(|word| word == option);
        option == "--" || help.lines().any(of)
    };
    let mut unknown = names_of.filter(|option| !known(option));
    unknown
        .next()
        .map(|option| format!("`weir {}` has no {option}", names.join(" ")))
}

#[test]
fn commands_of_pages_and_helps_have_their_options() {
    let mut helps = Helps::default();
    let mut texts = pages();
    let all = stdout(&weir(["--help"]).output().unwrap());
    let listed = all.split_once("Commands:").unwrap().1.lines().skip(1);
    for name in listed.map_while(|line| line.split_whitespace().next()) {
        if let Some(help) = helps.of(&[name.to_owned()]) {
            // The examples of the help form a block.
            let examples = help.split_once("Examples:").map_or("", |(_, rest)| rest);
            let block = examples.split("\n\n").next().unwrap_or_default();
            texts.insert(
                format!("weir {name} --help").into(),
                format!("```\n{block}\n```"),
            );
        }
    }
    let (mut checked, mut faults) = (0, Vec::new());
    for (path, text) in &texts {
        for line in code(text) {
            for call in calls(&line, "weir") {
                checked += 1;
                let fault = fault(&mut helps, &call);
                faults.extend(fault.map(|fault| format!("{}: {line}: {fault}", path.display())));
            }
        }
    }
    assert!(checked > 150, "only {checked} were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The source of a crate's bench, test or example.
fn source(krate: &str, kind: &str, name: &str) -> Option<String> {
    let folder = match krate {
        "weir" => "weir",
        other => other.strip_prefix("weir-")?,
    };
    let at = root().join("crates").join(folder);
    let manifest = fs::read_to_string(at.join("Cargo.toml")).ok()?;
    let shared = manifest.contains(&format!("examples/{name}.rs"));
    let plural = if kind == "bench" {
        "benches"
    } else {
        &format!("{kind}s")
    };
    let file = match kind {
        "example" if shared => root().join(format!("examples/{name}.rs")),
        _ => at.join(format!("{plural}/{name}.rs")),
    };
    if let Ok(text) = fs::read_to_string(file) {
        return Some(text);
    }
    let parts = fs::read_dir(at.join(format!("{plural}/{name}"))).ok()?;
    let text = parts.filter_map(|part| fs::read_to_string(part.unwrap().path()).ok());
    Some(text.collect())
}

#[test]
fn benches_tests_and_examples_of_pages_are_there() {
    let (mut checked, mut faults) = (0, Vec::new());
    for (path, text) in &pages() {
        for line in code(text) {
            for call in calls(&line, "cargo") {
                let after = |option: &str| {
                    let at = call.iter().position(|word| word == option)?;
                    call.get(at + 1).cloned()
                };
                let Some(krate) = after("-p").filter(|krate| krate != "CRATE") else {
                    continue;
                };
                for kind in ["bench", "test", "example"] {
                    let Some(name) = after(&format!("--{kind}")) else {
                        continue;
                    };
                    checked += 1;
                    let mut fault = |what: String| {
                        faults.push(format!("{}: {line}: {what}", path.display()));
                    };
                    let Some(source) = source(&krate, kind, &name) else {
                        fault(format!("{krate} has no {kind} `{name}`"));
                        continue;
                    };
                    // Arguments of a bench or test must occur in its source.
                    let told = call.iter().skip_while(|word| *word != "--").skip(1);
                    let words = told.filter(|word| {
                        kind != "example"
                            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                    });
                    for word in words.filter(|word| !source.contains(word.as_str())) {
                        fault(format!("`{word}` is nothing there"));
                    }
                }
            }
        }
    }
    assert!(checked > 15, "only {checked} were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Helps are wrapped at 100 columns, also what a source has wrapped already: single words would stand on
/// lines of their own. docs/reference/commands.md has the helps as they are shown.
#[test]
fn closing_texts_of_helps_are_wrapped_once() {
    let text = fs::read_to_string(root().join("docs/reference/commands.md")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 2_000, "{} lines of helps", lines.len());
    let indent = |line: &str| line.len() - line.trim_start().len();
    for three in lines.windows(3) {
        let [before, line, after] = three else {
            unreachable!("windows of three");
        };
        let is_between = !line.trim().is_empty()
            && !line.trim_start().starts_with('-')
            && !after.trim().is_empty()
            && !after.starts_with("```")
            && [before, after]
                .iter()
                .all(|one| indent(one) == indent(line));
        let is_rest = before.chars().count() >= 85 && line.chars().count() <= 40;
        assert!(
            !(is_between && is_rest),
            "the rest of a line that was too long: {before:?}, then {line:?}"
        );
    }
}
