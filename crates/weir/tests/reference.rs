//! Checks that the generated pages of docs/reference are up to date.
//!
//! `WEIR_BLESS=1` writes the page of commands; `weir lab results render` writes
//! the page of results.

mod common;

use common::{stdout, weir};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use weir_lab::results::{Measurement, read};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

const COMMANDS_HEAD: &str = "\
# Commands

<!-- Generated: WEIR_BLESS=1 cargo test -p weir --test reference -->

What `weir` and each of its subcommands print with `--help`.
";

/// The help of a subcommand and of its subcommands, as chapters.
fn chapters(subcommand: &[String], page: &mut String) {
    let mut command = weir([]);
    command.args(subcommand).arg("--help").env("COLUMNS", "100");
    let run = command.output().unwrap();
    assert!(run.status.success(), "{subcommand:?}: {run:?}");
    let help = stdout(&run);
    let name = [&["weir".to_owned()], subcommand].concat().join(" ");
    write!(page, "\n## {name}\n\n```text\n").unwrap();
    for line in help.trim_end().lines() {
        writeln!(page, "{}", line.trim_end()).unwrap();
    }
    page.push_str("```\n");
    let list = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, list)| list);
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
    for (name, _) in names.filter(|(name, _)| !name.is_empty() && *name != "help") {
        chapters(&[subcommand, &[name.to_owned()]].concat(), page);
    }
}

#[test]
fn the_page_of_commands_is_what_help_prints() {
    let mut page = COMMANDS_HEAD.to_owned();
    chapters(&[], &mut page);
    assert!(page.contains("\n## weir lab results run\n"), "{page}");
    let file = root().join("docs/reference/commands.md");
    if std::env::var("WEIR_BLESS").is_ok() {
        fs::write(&file, &page).unwrap();
    }
    let text = fs::read_to_string(&file).unwrap_or_default();
    let same = text.lines().zip(page.lines()).take_while(|(a, b)| a == b);
    assert!(
        text == page,
        "{}:{}: is not what --help prints: WEIR_BLESS=1 writes it anew",
        file.display(),
        same.count() + 1
    );
}

#[test]
fn the_page_of_results_is_rendered_from_the_data() {
    let mut command = weir(["lab", "results", "render", "--format", "page", "--check"]);
    command.arg("docs/reference/results.md").current_dir(root());
    let run = command.output().unwrap();
    assert!(
        run.status.success(),
        "{}\n`weir lab results render --format page` writes the page",
        String::from_utf8_lossy(&run.stderr)
    );
}

/// The source of the bench that recorded a measurement.
fn source(of: &Measurement) -> String {
    let words: Vec<&str> = of.command.split_whitespace().collect();
    let after = |option: &str| {
        let at = words.iter().position(|word| *word == option)?;
        words.get(at + 1).copied()
    };
    let files: Vec<PathBuf> = match after("-p").zip(after("--bench")) {
        Some((package, bench)) => {
            let krate = package.strip_prefix("weir-").unwrap_or(package);
            let at = root()
                .join("crates")
                .join(krate)
                .join("benches")
                .join(bench);
            let parts = fs::read_dir(&at).into_iter().flatten();
            let parts = parts.map(|part| part.unwrap().path());
            parts.chain([at.with_extension("rs")]).collect()
        }
        None => vec![root().join("crates/weir/src/cmd/lab/rfc2544/required.rs")],
    };
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts.collect()
}

/// Whether a literal of a format string, or its part before the arguments, can
/// produce the start of `name`.
fn makes(literal: &str, name: &str) -> bool {
    let mut rest = name;
    for (number, piece) in literal.split('{').enumerate() {
        let piece = match number {
            0 => piece,
            _ => piece.split_once('}').map_or("", |(_, piece)| piece),
        };
        let at = match number {
            0 => rest.starts_with(piece).then_some(0),
            _ => rest.find(piece),
        };
        let Some(at) = at else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    true
}

#[test]
fn measurements_on_the_page_are_of_benches_that_there_are() {
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("docs/results")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|end| end != "jsonl") {
            continue;
        }
        for (place, one) in read(&file).unwrap() {
            let subject = one.name.split(": ").next().unwrap_or_default();
            let source = source(&one);
            let literals = source.split('"').filter(|text| text.starts_with(subject));
            if !literals
                .into_iter()
                .any(|literal| makes(literal, &one.name))
            {
                faults.push(format!("{place}: no bench records `{}`", one.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn names_are_told_by_the_literals_that_make_them() {
    assert!(makes(
        "plan: {count} under {key:?} keys",
        "plan: 10,000 under 1 keys : x"
    ));
    assert!(!makes(
        "plan: {count} under one key",
        "plan: 10,000 connections"
    ));
    assert!(makes("goodput: weir", "goodput: weir : smoltcp"));
    assert!(!makes("goodput: weir", "goodput: other"));
}

/// Without the figures of times, which differ from run to run, and the size, which they decide.
fn untimed(picture: &str) -> String {
    let is_timed = |line: &str| line.contains("&#160;ns") || line.contains("height=");
    let lines = picture.lines().map(|line| {
        if is_timed(line) {
            line.replace(|letter: char| letter.is_ascii_digit() || letter == ',', "")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `cargo run --release -- demo --write target/demo --svg docs/pictures/demo.svg` and
/// `cargo run --release -- top -r target/demo/office.pcapng --svg docs/pictures/top.svg` draw them.
#[test]
fn the_pictures_are_what_weir_draws() {
    let folder = common::Folder::new("pictures");
    let (demo, top) = (folder.path("demo.svg"), folder.path("top.svg"));
    let run = weir(["demo", "--write", &folder.path("."), "--svg", &demo]).output();
    assert!(run.as_ref().unwrap().status.success(), "{run:?}");
    let run = weir(["top", "-r", &folder.path("office.pcapng"), "--svg", &top]).output();
    assert!(run.as_ref().unwrap().status.success(), "{run:?}");
    assert!(run.unwrap().stdout.is_empty());
    for (name, path) in [("demo.svg", demo), ("top.svg", top)] {
        let kept = root().join("docs/pictures").join(name);
        let [kept, drawn] = [&kept, Path::new(&path)]
            .map(|path| untimed(&fs::read_to_string(path).unwrap_or_default()));
        assert!(kept == drawn, "docs/pictures/{name} is old: draw it again");
    }
}
