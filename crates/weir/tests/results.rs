//! `weir lab results`: running benches (with a fake cargo), tables, and
//! comparisons.

mod common;

use common::{Folder, interrupt, stdout, weir};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::testenv;

fn results<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = weir(["lab", "results"]);
    command.args(arguments);
    command
}

fn stderr(run: &Output) -> String {
    String::from_utf8(run.stderr.clone()).unwrap()
}

/// A measurement as recorded by a bench.
fn line(name: &str, value: f64, more: &Value) -> String {
    let mut line = json!({
        "name": name, "value": value, "unit": "ns", "better": "less", "bench": "weir-x y",
        "command": "cargo bench -p weir-x --bench y", "time": "2026-11-24T03:00:00Z",
        "machine": {"kernel": "6.18", "cpu": "A | B", "cores": 2, "memory": 1_u64 << 34, "load": 0.5},
        "commit": {"id": "0123456789abcdef", "dirty": false}, "version": "0.1.0",
    });
    for (key, value) in more.as_object().unwrap() {
        line[key] = value.clone();
    }
    format!("{line}\n")
}

fn three_runs(values: [f64; 3], bar: f64) -> String {
    let bar = json!({"bar": {"at_most": bar}});
    let ratio = json!({"unit": "× the rate of", "peer": "x|y", "better": "more"});
    let lines = values.map(|value| line("a: cost", value, &bar) + &line("a: ratio", value, &ratio));
    lines.concat()
}

#[test]
fn a_table_has_medians_ranges_and_what_is_required() {
    let folder = Folder::new("results-render");
    let other = line("a: cost", 7.0, &json!({"bar": {"at_most": 8.0}}));
    let one = folder.write("one", three_runs([12.0, 3.0, 5000.0], 10.0).as_bytes());
    let two = folder.write("two", other.as_bytes());
    let render = |format| {
        results(["render", "--file", &one, "--format", format])
            .output()
            .unwrap()
    };
    let markdown = render("markdown");
    assert!(markdown.status.success(), "{markdown:?}");
    assert_eq!(
        stdout(&markdown),
        "2 × A | B, 16 GiB, Linux 6.18; load average 0.5 to 0.5 at the start of a bench; \
         commit 0123456789ab; 2026-11-24T03:00:00Z to 2026-11-24T03:00:00Z.\n\n\
         | measurement | required | median | least | most | unit | met | by |\n\
         |---|---:|---:|---:|---:|---|---|---:|\n\
         | a: cost | ≤ 10 | 12.0 | 3.00 | 5,000 | ns | no, 1 of 3 runs | 1 |\n\
         | a: ratio |  | 12.0 | 3.00 | 5,000 | × the rate of x\\|y |  | 1 |\n\n\
         Measured by\n\n1. `cargo bench -p weir-x --bench y`\n"
    );
    assert_eq!(stdout(&render("markdown")), stdout(&markdown));
    let text = stdout(&render("text"));
    let row = text
        .lines()
        .find(|line| line.starts_with("a: cost"))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells[2..],
        [
            "≤", "10", "12.0", "3.00", "5,000", "ns", "no,", "1", "of", "3", "runs", "1"
        ]
    );
    let both = results(["render", "--format=json", "--file", &one, "--file", &two]).output();
    let rows: Value = serde_json::from_slice(&both.unwrap().stdout).unwrap();
    let cost = &rows[0];
    assert_eq!(cost["median"], 9.5);
    assert_eq!((&cost["runs"], &cost["met"]), (&json!(4), &json!(false)));
    assert_eq!(
        (&cost["bar"], &cost["machine"]["cores"]),
        (&json!({"at_most": 8.0}), &json!(2))
    );
    assert_eq!(rows[1]["peer"], "x|y");
}

#[test]
fn a_regression_gives_the_exit_status() {
    let folder = Folder::new("results-diff");
    let old = folder.write("old", three_runs([10.0, 11.0, 12.0], 20.0).as_bytes());
    let same = folder.write("same", three_runs([10.0, 11.5, 90.0], 20.0).as_bytes());
    let run = results(["diff", &old, &same]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    assert!(stdout(&run).contains("\n0 regressions, 0 better, 2 within the old range\n"));
    let worse = line("a: cost", 12.1, &json!({})) + &line("b: new", 1.0, &json!({}));
    let worse = folder.write("worse", worse.as_bytes());
    let run = results(["diff", &old, &worse]).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let text = stdout(&run);
    let row = text
        .lines()
        .find(|line| line.starts_with("a: cost"))
        .unwrap();
    assert!(row.ends_with("ns    REGRESSION"), "{text}");
    for said in [
        "\n1 regression, 0 better, 0 within the old range\n",
        "\nOnly in the old file:\n  a: ratio\n",
        "\nOnly in the new file:\n  b: new\n",
    ] {
        assert!(text.contains(said), "{text}");
    }
    assert!(
        stderr(&run).contains("1 regression, see the report"),
        "{run:?}"
    );
    let elsewhere =
        json!({"machine": {"kernel": "7", "cpu": "C", "cores": 4, "memory": 0, "load": 0}});
    let elsewhere = folder.write("elsewhere", line("a: cost", 1.0, &elsewhere).as_bytes());
    let run = results(["diff", &old, &elsewhere]).output().unwrap();
    assert!(
        run.status.success() && stderr(&run).contains("different machines"),
        "{run:?}"
    );
}

#[test]
fn a_lost_requirement_gives_the_exit_status() {
    let folder = Folder::new("results-lost");
    // Within the old range, but the requirement is missed.
    let old = folder.write("old", three_runs([10.0, 11.0, 13.0], 12.0).as_bytes());
    let new = folder.write("new", three_runs([12.5, 12.5, 12.5], 12.0).as_bytes());
    let run = results(["diff", &old, &new]).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(stdout(&run).contains("REQUIREMENT LOST"), "{run:?}");
    assert!(
        stderr(&run).contains("1 lost requirement, see the report"),
        "{run:?}"
    );
    // A requirement that was missed before is not lost.
    let run = results(["diff", &new, &new]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
}

#[test]
fn the_page_has_missed_first_marks_what_is_stale_and_is_checked() {
    let folder = Folder::new("results-page");
    let commit = |id: &str| json!({"id": id, "dirty": false});
    let at_most = |most: f64| json!({"at_most": most});
    let lines = [
        // A run of an older commit does not count.
        line(
            "a: met",
            9.0,
            &json!({"bar": at_most(8.0), "commit": commit("old"),
            "time": "2026-11-01T00:00:00Z"}),
        ),
        line("a: met", 7.0, &json!({"bar": at_most(8.0)})),
        line("b: old", 1.0, &json!({"time": "2026-08-25T00:00:00Z"})),
        line(
            "c: missed",
            9.0,
            &json!({"bar": at_most(8.0), "time": "2026-08-27T00:00:00Z"}),
        ),
    ];
    let file = folder.write("all.jsonl", lines.concat().as_bytes());
    let render = |more: &[&str]| {
        let mut command = results(["render", "--format", "page", "--file", &file]);
        command.args(more).output().unwrap()
    };
    let run = render(&[]);
    assert!(run.status.success(), "{run:?}");
    let page = stdout(&run);
    let parts = [
        "\n## 2 × A | B, 16 GiB, Linux 6.18\n",
        "\n### Missed requirements\n",
        "| c: missed | ≤ 8 | 9.00 | 9.00 | 9.00 | ns | no, 1 run | 1 |\n",
        "\n### Met requirements\n",
        "| a: met | ≤ 8 | 7.00 | 7.00 | 7.00 | ns | yes, 1 run | 1 |\n",
        "\n### Without a requirement\n",
        "| b: old |  | 1.00 | 1.00 | 1.00 | ns | stale | 1 |\n",
        "\n### Commands\n\n1. `cargo bench -p weir-x --bench y`\n",
    ];
    let places: Vec<_> = parts.map(|part| page.find(part)).into();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?}\n{page}"
    );
    let good = folder.write("good.md", page.as_bytes());
    let run = render(&["--check", &good]);
    assert!(run.status.success() && run.stdout.is_empty(), "{run:?}");
    let other = page.replace("| 7.00 |", "| 7.01 |");
    let bad = folder.write("bad.md", other.as_bytes());
    let run = render(&["--check", &bad]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let at = page
        .lines()
        .position(|line| line.contains("| a: met |"))
        .unwrap()
        + 1;
    assert!(
        stderr(&run).contains(&format!("bad.md:{at}: is not what")),
        "{run:?}"
    );
    let run = results(["render", "--format", "json", "--file", &file])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&run.stdout).unwrap();
    let stale = |name: &str| {
        let row = json
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["name"] == name);
        row.unwrap()["stale"].clone()
    };
    assert_eq!(
        (stale("b: old"), stale("c: missed")),
        (json!(true), json!(false))
    );
}

#[test]
fn a_malformed_line_is_named_by_all() {
    let folder = Folder::new("results-malformed");
    let good = folder.write("good", three_runs([1.0, 2.0, 3.0], 4.0).as_bytes());
    let bad = format!("{}{{\"name\": 7}}\n", line("a: cost", 1.0, &json!({})));
    let bad = folder.write("bad", bad.as_bytes());
    checkout(&folder, "");
    for mut command in [
        results(["render", "--file", &good, "--file", &bad]),
        results(["diff", &good, &bad]),
        results(["diff", &bad, &good]),
        results(["run", "--only", "demux/acl", "--file", &bad]),
    ] {
        let run = command.current_dir(folder.path("")).output().unwrap();
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        assert!(
            stderr(&run).contains("bad:2: not a measurement: invalid type"),
            "{run:?}"
        );
    }
}

#[test]
fn the_list_tells_names_needs_and_commands() {
    let run = results(["run", "--list"]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = stdout(&run);
    assert!(
        text.contains("cargo bench -p weir-demux --bench acl\n"),
        "{text}"
    );
    let serve = text
        .lines()
        .find(|line| line.starts_with("weir/serve "))
        .unwrap();
    assert!(
        serve.contains("root, /dev/net/tun, ip, nginx, wrk"),
        "{serve}"
    );
    let few = stdout(
        &results(["run", "--list", "--only=pcb", "--only=rfc2544/ro"])
            .output()
            .unwrap(),
    );
    let names: Vec<&str> = few
        .lines()
        .skip(1)
        .map_while(|line| line.split("  ").next())
        .collect();
    let names: Vec<&str> = names
        .into_iter()
        .take_while(|name| !name.is_empty())
        .collect();
    assert_eq!(
        names,
        [
            "stack/pcb",
            "rfc2544/router tc",
            "rfc2544/router xdp",
            "rfc2544/router destinations"
        ]
    );
    let run = results(["run", "--only", "nothing"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(
        stderr(&run).contains("no bench has `nothing` in its name"),
        "{run:?}"
    );
}

/// Makes a folder look like a checkout, with a fake `cargo` in it.
fn checkout(folder: &Folder, cargo: &str) {
    for path in ["crates/lab", "crates/weir"] {
        std::fs::create_dir_all(folder.path(path)).unwrap();
        folder.write(&format!("{path}/Cargo.toml"), b"");
    }
    folder.write("Cargo.toml", b"");
    let script = format!("#!/bin/sh\n{cargo}\n");
    let cargo = folder.write("cargo", script.as_bytes());
    std::fs::set_permissions(cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs benches with the checkout's cargo.
fn run_in(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = results(["run"]);
    command.args(arguments).current_dir(folder.path(""));
    command.env("CARGO", folder.path("cargo"));
    command
}

#[test]
fn benches_are_compiled_run_in_rounds_and_summed_up() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let folder = Folder::new("results-run");
    let met = line(
        "a: one",
        1.0,
        &json!({"bar": {"at_most": 8.0}, "met": true}),
    );
    let missed = line(
        "a: two",
        9.0,
        &json!({"bar": {"at_most": 8.0}, "met": false}),
    );
    folder.write("lines", (met + &missed).as_bytes());
    checkout(
        &folder,
        "echo \"cargo $*\"\n\
         case \"$*\" in *--no-run*) exit 0 ;; esac\n\
         case \"$*\" in *acl*) echo 'skipped: acl: no peer (apt)' >>\"$WEIR_SKIPPED\" ;; esac\n\
         case \"$*\" in *goodput*) exit 3 ;; esac\n\
         case \"$*\" in *pcb*) exit 0 ;; esac\n\
         cat lines >>\"$WEIR_RESULTS\"",
    );
    let benches = ["--only=demux/acl", "--only=small_plans"];
    let mut good = run_in(&folder, &benches);
    let run = good
        .args(["--repeat", "2", "--file", "out/new.jsonl"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = stdout(&run);
    let row = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        row("demux/acl")[1..],
        ["2", "4", "2", "0", "s", "skipped:", "no", "peer", "(apt)"]
    );
    assert_eq!(row("weir/small_plans")[1..], ["2", "4", "2", "0", "s"]);
    assert!(
        text.contains("8 figures, 4 of them worse than required, in /"),
        "{text}"
    );
    let recorded = std::fs::read_to_string(folder.path("out/new.jsonl")).unwrap();
    assert_eq!(recorded.lines().count(), 8);
    let log = std::fs::read_to_string(folder.path("out/new.log")).unwrap();
    let commands: Vec<&str> = log
        .lines()
        .filter(|line| line.starts_with("cargo "))
        .collect();
    let acl = "cargo bench -p weir-demux --bench acl --";
    let small = "cargo bench -p weir --bench small_plans --";
    assert_eq!(
        commands,
        [
            "cargo bench --no-run -p weir-demux --bench acl",
            "cargo bench --no-run -p weir --bench small_plans",
            acl,
            small,
            acl,
            small
        ]
    );
    assert!(!folder.has("out/new.skips"));
    // Failed benches are named; the others run.
    let benches = [
        "--only=stack/goodput",
        "--only=stack/pcb",
        "--only=demux/plan",
    ];
    let run = run_in(&folder, &benches).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let said = stderr(&run);
    assert!(
        said.contains("stack/goodput: exit status 3, see "),
        "{said}"
    );
    assert!(said.contains("stack/pcb: recorded nothing, see "), "{said}");
    assert!(
        stdout(&run).contains("2 figures, 1 of them worse than required"),
        "{run:?}"
    );
    assert!(folder.has("target/results.jsonl"));
}

#[test]
fn what_cannot_run_is_said() {
    let folder = Folder::new("results-cannot");
    let run = run_in(&folder, &["--only=demux/acl"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(
        stderr(&run).contains("is not in a checkout of weir"),
        "{run:?}"
    );
    checkout(&folder, "exit 101");
    let run = run_in(&folder, &["--only=demux/acl"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(
        stderr(&run).contains("does not compile: exit status 101"),
        "{run:?}"
    );
    let run = run_in(&folder, &["--only=demux/acl"])
        .env("CARGO", "/none/cargo")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(
        stderr(&run).contains("cannot run cargo: No such file"),
        "{run:?}"
    );
    // Without any program in PATH, the one that this bench needs is missing.
    let run = run_in(&folder, &["--only=weir/serve"])
        .env("PATH", "/none")
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    assert!(stdout(&run).contains("skipped: "), "{run:?}");
}

#[test]
fn a_signal_ends_the_bench_and_what_it_has_started() {
    if !testenv::programs(&["sh", "sleep"]) {
        return;
    }
    let folder = Folder::new("results-signal");
    checkout(
        &folder,
        "case \"$*\" in *--no-run*) exit 0 ;; esac\nsleep 300 &\necho $! >sleeping\nwait",
    );
    let mut command = run_in(&folder, &["--only=demux/acl"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let sleeping = loop {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no bench was started"
        );
        let text = std::fs::read_to_string(folder.path("sleeping")).unwrap_or_default();
        if text.ends_with('\n') {
            break text.trim().to_owned();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    interrupt(&child);
    let run = child.wait_with_output().unwrap();
    assert_eq!(run.status.code(), Some(130), "{run:?}");
    assert!(stdout(&run).contains("demux/acl"), "{run:?}");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "it was waited for"
    );
    // A signal was sent to it; when it ends, and when the process that adopts orphans collects its
    // status, is the kernel's and the adopter's affair.
    let ended = Instant::now() + Duration::from_secs(30);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{sleeping}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim());
        if state.is_empty() || state.starts_with('Z') {
            break;
        }
        assert!(Instant::now() < ended, "it still sleeps: {stat}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
