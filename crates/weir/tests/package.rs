//! Man pages, completions, and what the Debian package is made of.

mod common;

use common::{Folder, stdout, weir};
use std::fs;
use std::path::Path;
use weir_lab::testenv;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn every_command_has_a_man_page_that_man_can_read() {
    let folder = Folder::new("generate-man");
    let place = folder.path("man");
    let run = weir(["generate", "--man", &place]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let help = stdout(&weir(["--help"]).output().unwrap());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    assert!(
        commands.len() > 15 && commands.contains(&"top"),
        "{commands:?}"
    );
    assert!(!commands.contains(&"generate"), "it is for packagers");
    for command in commands {
        let page = fs::read_to_string(format!("{place}/weir-{command}.1")).unwrap();
        assert!(
            page.contains(".SH NAME") && page.contains(".SH OPTIONS"),
            "{command}"
        );
    }
    assert!(fs::read_to_string(format!("{place}/weir-lab-rfc2544.1")).is_ok());
    let Some(mut man) = testenv::program("groff") else {
        return;
    };
    let page = format!("{place}/weir-top.1");
    let run = man
        .args(["-man", "-T", "utf8", "-w", "w", &page])
        .output()
        .unwrap();
    assert!(run.status.success() && run.stderr.is_empty(), "{run:?}");
    assert!(stdout(&run).contains("capture file"), "{run:?}");
}

#[test]
fn shells_complete_commands_and_options() {
    let folder = Folder::new("generate-completions");
    let place = folder.path("c");
    let run = weir(["generate", "--completions", &place])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    for (file, words) in [
        ("weir.bash", "--tls-keys"),
        ("_weir", "--tls-keys"),
        ("weir.fish", "tls-keys"),
    ] {
        let text = fs::read_to_string(format!("{place}/{file}")).unwrap();
        assert!(text.contains(words), "{file}");
    }
    let Some(mut bash) = testenv::program("bash") else {
        return;
    };
    let script = format!(
        "source {place}/weir.bash; COMP_WORDS=(weir liste); COMP_CWORD=1; _weir weir liste weir; \
         echo \"${{COMPREPLY[@]}}\""
    );
    let run = bash.args(["--norc", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&run).trim(), "listen", "{run:?}");
}

#[test]
fn the_package_names_files_that_exist_or_are_generated() {
    let text = fs::read_to_string(root().join("crates/weir/Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    let mut checked = 0;
    for asset in deb["assets"].as_array().unwrap() {
        let source = asset[0].as_str().unwrap();
        if source.contains("target/") {
            continue;
        }
        // Relative to the crate.
        let pattern = root().join("crates/weir").join(source);
        let folder = pattern.parent().unwrap();
        let there = if source.contains('*') {
            folder.is_dir()
        } else {
            pattern.exists()
        };
        assert!(there, "no {source}");
        checked += 1;
    }
    assert!(checked > 5);
    // cargo-deb gives the file to root's group; the script lets the broker's read it.
    let scripts = root()
        .join("crates/weir")
        .join(deb["maintainer-scripts"].as_str().unwrap());
    let script = fs::read_to_string(scripts.join("postinst")).unwrap();
    assert!(script.contains("adduser") && script.contains("chgrp weir"));
    for unit in fs::read_dir(root().join("systemd")).unwrap() {
        let path = unit.unwrap().path();
        let unit = fs::read_to_string(&path).unwrap();
        let starts = unit.lines().filter(|line| line.starts_with("ExecStart"));
        for line in starts {
            // A name without a folder: /usr/local/bin is looked at before /usr/bin.
            let command = line.split_once('=').unwrap().1;
            let command = command.strip_prefix('+').unwrap_or(command);
            assert!(command.starts_with("weir "), "{}: {line}", path.display());
        }
    }
}
