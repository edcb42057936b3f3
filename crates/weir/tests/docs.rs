//! What the README, the book and `--help` show: commands run, programs and
//! configurations are those that are compiled and read.

mod common;

use common::{Folder, stdout, weir};
use std::fs;
use std::path::Path;
use std::process::Output;
use weir_broker::policy::{Accounts, Policy};
use weir_lab::testenv;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The `weir` commands of a text, of which `\` continues a line.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("weir ") || line.contains("| weir "))
        .map(str::to_owned)
        .collect()
}

/// A folder as a reader has it: the examples, and captures of the demo.
fn checkout(name: &str) -> Folder {
    let folder = Folder::new(name);
    let examples = folder.path("examples");
    fs::create_dir(&examples).unwrap();
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        folder.write(&format!("examples/{name}"), &bytes);
        folder.write(name, &bytes);
    }
    let run = weir(["demo", "-n", "2000", "--json", "-w", &folder.path("")])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    folder
}

/// Runs `command` in the folder, with `weir` on the path.
fn shell(folder: &Folder, command: &str) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    testenv::program("sh")
        .expect("the test has asked for it")
        .args(["-c", command])
        .current_dir(folder.path(""))
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("STATE_DIRECTORY", folder.path(""))
        .output()
        .unwrap()
}

/// As [`shell`], of a command that ends well; its output.
fn run(folder: &Folder, command: &str) -> String {
    let run = shell(folder, command);
    assert!(run.status.success(), "{command}: {run:?}");
    assert!(!run.stdout.is_empty(), "{command}: {run:?}");
    stdout(&run)
}

/// The code blocks of a page: language and text, in the page's order.
fn blocks(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let fenced = text.split("```").skip(1).step_by(2);
    let parts = fenced.filter_map(|block| block.split_once('\n'));
    parts
        .map(|(language, text)| (language.to_owned(), text.to_owned()))
        .collect()
}

/// The texts of a page's code blocks in one language.
fn blocks_in(page: &str, language: &str) -> Vec<String> {
    let blocks = blocks(page).into_iter();
    let of_language = blocks.filter(|(name, _)| name == language);
    of_language.map(|(_, text)| text).collect()
}

/// Pages whose commands need neither root nor a network.
const PAGES: [&str; 3] = [
    "docs/tutorials/divide-a-capture.md",
    "docs/how-to/debug-a-filter.md",
    "docs/how-to/meter.md",
];

#[test]
fn every_command_of_pages_on_captures_runs_and_prints_what_they_show() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let mut ran = 0;
    for page in PAGES {
        let folder = checkout(page.rsplit('/').next().unwrap());
        let mut output = String::new();
        for (language, text) in blocks(page) {
            match language.as_str() {
                "sh" => {
                    let commands = commands(&text);
                    ran += commands.len();
                    let outputs = commands.iter().map(|command| run(&folder, command));
                    output = outputs.collect();
                }
                // What the block before printed.
                "text" => {
                    for line in text.lines() {
                        assert!(output.contains(line), "{page}: not printed: {line}");
                    }
                }
                _ => {}
            }
        }
    }
    assert!(ran >= 12, "only {ran} commands were found");
}

#[test]
fn a_refusal_reads_as_the_page_on_filters_shows_it() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let folder = checkout("refusal");
    let blocks = blocks_in("docs/how-to/debug-a-filter.md", "console");
    let block = blocks.first().expect("the page shows a refusal");
    let (command, said) = block.split_once('\n').expect("has two lines");
    let run = shell(&folder, command.trim_start_matches("$ "));
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert_eq!(String::from_utf8_lossy(&run.stderr), said);
}

#[test]
fn programs_of_pages_are_the_examples_that_are_compiled() {
    for (page, source, least) in [
        ("docs/tutorials/bump.md", "examples/bump.rs", 1),
        ("docs/tutorials/sockets.md", "examples/echo.rs", 2),
        ("docs/how-to/share-a-tap.md", "examples/shared.rs", 3),
        ("docs/how-to/ports-in-c.md", "examples/port_count.c", 3),
        ("docs/how-to/sockets-in-c.md", "examples/socket_echo.c", 2),
        ("docs/tutorials/protocol.md", "crates/weir/src/rarp.rs", 5),
        (
            "docs/how-to/add-a-protocol-view.md",
            "examples/pup_view.py",
            1,
        ),
    ] {
        let language = match source.rsplit('.').next() {
            Some("c") => "c",
            Some("py") => "python",
            _ => "rust",
        };
        let text = fs::read_to_string(root().join(source)).unwrap();
        let blocks = blocks_in(page, language);
        assert!(blocks.len() >= least, "{page}");
        for block in blocks {
            assert!(
                text.contains(&block),
                "{page}: no longer so in {source}:\n{block}"
            );
            assert!(block.lines().count() < 20, "{page}:\n{block}");
        }
    }
}

#[test]
fn configurations_of_guides_are_read() {
    let accounts = Accounts::parse("bob:x:1001:1001::/home/bob:/bin/sh\n", "");
    let policies = blocks_in("docs/how-to/grant-ports.md", "toml");
    assert!(!policies.is_empty());
    for policy in policies {
        let read = Policy::parse(&policy, &accounts);
        assert!(read.is_ok(), "{read:?}:\n{policy}");
    }
    let folder = Folder::new("configurations");
    let routers = blocks_in("docs/how-to/route.md", "toml");
    assert!(!routers.is_empty());
    for router in routers {
        folder.write("router.toml", router.as_bytes());
        let path = folder.path("router.toml");
        let run = weir(["route", "--check", "--config", &path]).output();
        // The interfaces may be missing: that is status 1.
        let run = run.unwrap();
        assert!(matches!(run.status.code(), Some(0 | 1)), "{run:?}");
    }
}

#[test]
fn every_example_of_the_help_runs() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let folder = checkout("help");
    for subcommand in ["demux", "filter", "meter"] {
        let help = stdout(&weir([subcommand, "--help"]).output().unwrap());
        let examples = help.split_once("Examples:").expect("has examples").1;
        let commands = commands(examples);
        assert!(commands.len() >= 2, "{commands:?}");
        for command in commands {
            // Capturing needs a privilege and a network.
            let command = command.replace("tcpdump -w - |", "cat office.pcapng |");
            if command.contains("tcpdump -ddd") && !testenv::programs(&["tcpdump"]) {
                continue;
            }
            run(&folder, &command);
        }
    }
}

#[test]
fn pages_say_how_long_the_protocol_is() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let lines = read("crates/weir/src/rarp.rs").lines().count();
    for (page, words) in [
        ("docs/tutorials/protocol.md", format!("{lines} lines")),
        ("README.md", format!("RARP is {lines} lines")),
    ] {
        assert!(read(page).contains(&words), "{page}: {words}");
    }
    assert!(lines < 150, "short is what it is an example of");
}
