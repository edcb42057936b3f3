//! The commands that the README and `--help` show, run as a reader would.

mod common;

use common::{Folder, stdout, weir};
use std::fs;
use std::path::Path;
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
fn run(folder: &Folder, command: &str) {
    let binary = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let run = testenv::program("sh")
        .expect("the test has asked for it")
        .args(["-c", command])
        .current_dir(folder.path(""))
        .env("PATH", format!("{}:{path}", binary.display()))
        .output()
        .unwrap();
    assert!(run.status.success(), "{command}: {run:?}");
    assert!(!run.stdout.is_empty(), "{command}: {run:?}");
}

#[test]
fn every_command_of_the_readme_runs() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let folder = checkout("readme");
    let blocks = readme.split("```sh\n").skip(1);
    let blocks: String = blocks.filter_map(|rest| rest.split("```").next()).collect();
    let commands = commands(&blocks);
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        // Fewer frames show the same.
        run(&folder, &command.replace("weir demo", "weir demo -n 2000"));
    }
}

#[test]
fn the_program_of_the_readme_is_the_example_that_is_compiled() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let example = fs::read_to_string(root().join("examples/bump.rs")).unwrap();
    let blocks: Vec<&str> = readme.split("```rust\n").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let program = block.split("```").next().unwrap();
        assert!(example.contains(program), "{program}");
        assert!(program.lines().count() < 20, "{program}");
    }
}

#[test]
fn every_example_of_the_help_runs() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let folder = checkout("help");
    for subcommand in ["demux", "filter"] {
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
fn the_tutorial_shows_the_protocol_as_it_is() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let tutorial = read("docs/tutorial-protocol.md");
    let source = read("crates/weir/src/rarp.rs");
    let blocks = tutorial.split("```rust\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5);
    for block in blocks {
        assert!(source.contains(block), "no longer so in rarp.rs:\n{block}");
    }
    let lines = source.lines().count();
    assert!(
        tutorial.contains(&format!("{lines} lines")),
        "rarp.rs has {lines} lines"
    );
    let readme = format!("RARP is {lines} lines");
    assert!(read("README.md").contains(&readme), "{readme}");
    assert!(lines < 150, "short is what it is an example of");
}
