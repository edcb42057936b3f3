//! `weir experiment` as a script uses it.

mod common;

use common::Folder;
use serde_json::{Value, json};
use std::process::{Output, Stdio};
use weir_lab::command::Command;
use weir_lab::net::Signal;
use weir_lab::testenv;
use weir_lab::wait;

fn experiment(args: &[&str]) -> Output {
    let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
    command.arg("experiment").args(args).output().unwrap()
}

#[test]
fn tpca_gives_each_algorithms_measured_and_analytic_counts() {
    let args = ["tpca", "--users", "950", "--response", "0.5", "--json"];
    let run = experiment(&args);
    assert!(run.status.success(), "{run:?}");
    let json: Value = serde_json::from_slice(&run.stdout).unwrap();
    let names = ["bsd", "mtf", "sequent", "weir"];
    for (name, row) in names.iter().zip(json["algorithms"].as_array().unwrap()) {
        assert_eq!(row["name"], *name);
        let mean = |of: &str| row[of]["mean"].as_f64().unwrap();
        assert!(
            (mean("model") / mean("analytic") - 1.0).abs() < 0.03,
            "{row}"
        );
        // Fifty users a chain: that chains are of unequal length, and that the cached
        // PCB is examined too, is little of that (docs/explanation/experiments.md).
        assert!(
            (mean("measured") / mean("analytic") - 1.0).abs() < 0.1,
            "{row}"
        );
        assert!(row["paper"].is_null(), "the paper has no 950 users: {row}");
    }
    let numbers: Vec<u64> = (json["equations"].as_array().unwrap().iter())
        .map(|row| row["equation"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=11).collect::<Vec<_>>());
    assert_eq!(experiment(&args).stdout, run.stdout, "a seed replays a run");
}

#[test]
fn what_our_copy_lacks_is_said_and_never_made_up() {
    let run = experiment(&["tpca", "--users", "190", "--workload", "trains"]);
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(text.matches("not in our copy").count(), 4 + 11, "{text}");
}

#[test]
fn figures_are_drawn() {
    let folder = std::env::temp_dir().join(format!("weir-experiment-{}", std::process::id()));
    let path = folder.to_str().unwrap();
    let run = experiment(&["tpca", "--users", "100", "--svg", path]);
    assert!(run.status.success(), "{run:?}");
    for figure in ["figure4.svg", "figure9.svg"] {
        let svg = std::fs::read_to_string(folder.join(figure)).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("polyline"),
            "{figure}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn setup_gives_times_and_pcbs_beside_the_papers() {
    let folder = std::env::temp_dir().join(format!("weir-setup-{}", std::process::id()));
    let path = folder.to_str().unwrap();
    let args = ["setup", "--connections", "300", "--json", "--svg", path];
    let run = experiment(&args);
    assert!(run.status.success(), "{run:?}");
    let json: Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = json["runs"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["algorithm"].clone()).collect();
    assert_eq!(names, ["bsd", "mtf", "sequent", "weir"]);
    for row in rows {
        let of = |what: &str| row[what].as_f64().unwrap();
        assert_eq!(of("bytes"), 300.0 * 500.0);
        assert_eq!(of("segments_server"), 300.0 * 7.0);
        assert!(of("setup_ms") > 0.0 && of("setup_ms") <= of("total_ms"));
        assert!(row["paper"].is_null(), "the paper has no 300");
    }
    let examined = |row: usize| rows[row]["examined_server"].as_u64().unwrap();
    assert!(examined(0) > 10 * examined(3), "{rows:?}");
    let svg = std::fs::read_to_string(folder.join("setup.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("polyline"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let cases = [["--users", "1"], ["--response", "0"], ["--chains", "3000"]];
    for [option, value] in cases {
        let run = experiment(&["tpca", option, value]);
        assert_eq!(run.status.code(), Some(2), "{option} {value}: {run:?}");
    }
    let cases = [["--connections", "0"], ["--chains", "4000000000"]];
    for [option, value] in cases {
        let run = experiment(&["setup", option, value]);
        assert_eq!(run.status.code(), Some(2), "{option} {value}: {run:?}");
    }
}

/// Before an hour's figures would have nowhere to go.
#[test]
fn a_folder_that_cannot_be_is_refused_at_once() {
    let file = env!("CARGO_BIN_EXE_weir");
    for words in [
        // Each takes longer than the test waits.
        &["setup", "--connections", "1000000", "--chains", "1000000"][..],
        &["tpca", "--users", "4000000"],
        &["adapter", "--trips", "10000000"],
    ] {
        let run = experiment(&[words, &["--svg", file]].concat());
        assert_eq!(run.status.code(), Some(1), "{words:?}: {run:?}");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.contains("is not a folder"), "{said}");
    }
}

#[test]
fn the_packet_filters_tables_stand_beside_the_papers() {
    if !testenv::root() {
        return;
    }
    let run = experiment(&["packet-filter", "--each", "10", "--rounds", "1", "--json"]);
    assert!(run.status.success(), "{run:?}");
    let json: Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of = |table: &str| {
        let rows = rows.iter().filter(|row| row["table"] == table);
        let values = rows.map(|row| {
            assert!(row["now_ns"].as_f64().unwrap() > 10.0, "{row}");
            row["paper_ms"].as_f64()
        });
        values.flatten().collect::<Vec<_>>()
    };
    assert_eq!(of("6-1"), [1.9, 3.1, 3.6, 4.9]);
    assert_eq!(of("6-8"), [2.3, 5.0, 4.0, 9.0]);
    assert_eq!(of("6-9"), [1.9, 2.4, 3.5, 5.9]);
    assert_eq!(of("6-10"), [1.9, 2.0, 2.2, 2.5]);
    // Filters of one shape cost one look-up, programs a run each.
    let lines = json["cost_line"]["now"].as_array().unwrap();
    let each = |line: usize| lines[line]["each_ns"].as_f64().unwrap();
    assert!(each(0) < each(2) / 10.0, "{lines:?}");
}

#[test]
fn without_privilege_the_packet_filters_need_is_said() {
    if !testenv::root() {
        return;
    }
    let run = weir_lab::net::unprivileged::run(|| experiment(&["packet-filter"]));
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let message = String::from_utf8_lossy(&run.stderr);
    assert!(message.contains("a lab needs root"), "{message}");
}

#[test]
fn the_adapters_round_trips_are_split_for_kernel_and_ours() {
    if !testenv::root() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("weir-adapter-{}", std::process::id()));
    let path = folder.to_str().unwrap();
    let quick = [
        ["--trips", "50"],
        ["--megabytes", "1"],
        ["--rounds", "1"],
        ["--program-rounds", "1"],
    ]
    .concat();
    let args = [&["adapter", "--json", "--svg", path][..], &quick].concat();
    let run = experiment(&args);
    assert!(run.status.success(), "{run:?}");
    let json: Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = json["latency"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| format!("{} {}", row["transport"], row["protocols"]).replace('"', ""))
        .collect();
    let expected = [
        "TCP SYS", "TCP MUX", "TCP OPT", "UDP SYS", "UDP MUX", "UDP OPT",
    ];
    assert_eq!(names, expected);
    for row in rows {
        let of = |what: &str| row[what].as_f64().unwrap();
        let parts = [
            "client_send_ns",
            "server_receive_and_send_ns",
            "client_receive_ns",
        ];
        assert!(parts.iter().all(|part| of(part) > 0.0), "{row}");
        let sum: f64 = parts.iter().map(|part| of(part)).sum();
        assert!((of("round_trip_ns") - sum).abs() < 1e-3, "{row}");
        assert!(row["paper"].is_null(), "our copy has no tables: {row}");
    }
    let rates = json["throughput"].as_array().unwrap();
    assert_eq!(rates.len(), 2 * 3 * 7);
    let rate = |row: &Value| row["gbit_s"].as_f64().unwrap();
    assert!(rates.iter().all(|row| rate(row) > 0.0), "{rates:?}");
    // Also under load nothing of it is left out.
    assert!(json["program_left_out"].is_null(), "{json}");
    let rows = json["program"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * (1 + 7), "{rows:?}");
    for row in rows {
        let of = |what: &str| row[what].as_f64().unwrap();
        assert!(of("median") > 0.0 && row["rounds"] == 1, "{row}");
        assert_eq!(row["range"][0], row["range"][1], "{row}");
        assert!(row["paper"].is_null(), "our copy has no tables: {row}");
    }
    for figure in ["adapter-tcp.svg", "adapter-udp.svg"] {
        let svg = std::fs::read_to_string(folder.join(figure)).unwrap();
        assert!(svg.contains("polyline"), "{figure}");
    }
    std::fs::remove_dir_all(folder).unwrap();
    // Without privilege ours alone is measured, and that is said.
    let args = [&["adapter"][..], &quick].concat();
    let run = weir_lab::net::unprivileged::run(|| experiment(&args));
    assert!(run.status.success(), "{run:?}");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("SYS is left out"), "{said}");
    assert!(said.contains("`weir exec` is left out"), "{said}");
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(text.matches("not in our copy").count(), 4 + 14, "{text}");
}

/// Those whose parent is this process.
fn children(of: u32) -> Vec<String> {
    let is_child = |name: &String| {
        let status = std::fs::read_to_string(format!("/proc/{name}/status"));
        let parent = format!("\nPPid:\t{of}\n");
        status.is_ok_and(|status| status.contains(&parent))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(is_child).collect()
}

#[test]
fn an_interrupt_ends_the_program_that_the_adapter_measures() {
    if !testenv::root() {
        return;
    }
    let quick = ["--trips", "10", "--megabytes", "1", "--rounds", "1"];
    let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
    command.args(["experiment", "adapter", "--program-rounds", "100"]);
    command.args(quick).stdout(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut found = Vec::new();
    wait::until("client and server run", || {
        found = children(process.id());
        found.len() == 2
    });
    process.signal(Signal::INT).unwrap();
    let status = process.ended(wait::WAIT_MAX).unwrap();
    assert_eq!(status.code(), Some(130));
    for child in found {
        let left = std::fs::read_to_string(format!("/proc/{child}/comm"));
        assert!(left.is_err(), "{child}: {left:?}");
    }
}

/// As short as it can be: one size, trials of a hundredth of a second.
#[test]
fn bridges_and_routers_stand_beside_the_papers() {
    if !testenv::root() {
        return;
    }
    let run = experiment(&["nettap", "--sizes", "64", "--duration", "0.01", "--json"]);
    assert!(run.status.success(), "{run:?}");
    let json: Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    let all = [
        "weir bridge",
        "weir bridge --meter",
        "weir route",
        "linux-bridge",
        "linux-routing",
        "libpcap-bridge",
        "tun-relay",
        "weir bridge, cached",
    ];
    assert_eq!(names, all);
    assert_eq!(rows[0]["paper_celeron_kpps"], 92.0, "{json}");
    assert_eq!(rows[1]["paper_latency_us"], 49.0, "{json}");
    assert_eq!(json["paper_calls_us"], 4.5);
    let added = &json["calls_added_us"];
    let added = [0, 1, 2].map(|at| added[at].as_f64());
    assert!(added[0] <= added[1] && added[1] <= added[2], "{json}");
    // The measured bridge counts as NetCounter does, and knows the senders.
    let counted = &json["net_counter_packets"];
    let of = |key: &str| counted[key].as_u64().unwrap();
    assert!(of("attributed") > 0, "{json}");
    assert!(of("unattributed") * 100 < of("attributed"), "{json}");
    for row in rows {
        let point = &row["points"][0];
        assert_eq!(point["size"], 64, "{row}");
        // A machine without libpcap or TUN, or one that is busy, says so.
        let has_faults = point["faults"].is_array();
        let is_measured = point["frames_per_second"].as_f64() > Some(0.0);
        assert!(is_measured || has_faults, "{row}");
        // These cannot be kept from their CPU: it is the sender's.
        let is_in_kernel = row["name"].as_str().unwrap().starts_with("linux-");
        assert!(is_measured || !is_in_kernel, "{row}");
    }
}

#[test]
fn protocols_are_measured_beside_the_kernels() {
    if !testenv::root() {
        return;
    }
    for (name, rows) in [("vmtp", 7), ("bsp", 5)] {
        let run = experiment(&[name, "--each", "20", "--rounds", "1", "--json"]);
        assert!(run.status.success(), "{run:?}");
        let json: Value = serde_json::from_slice(&run.stdout).unwrap();
        let found = json["rows"].as_array().unwrap();
        assert_eq!(found.len(), rows, "{json}");
        assert!(
            found.iter().all(|row| row["now"].as_f64() > Some(0.0)),
            "{json}"
        );
        assert!(!json["ratios"].as_array().unwrap().is_empty());
    }
}

/// Links, FIFOs and large files in a folder of results.
#[test]
fn all_trusts_no_folder() {
    let folder = Folder::new("all-hostile");
    let (out, there) = (folder.path("out"), folder.path("there"));
    for path in [&out, &there] {
        std::fs::create_dir_all(format!("{path}/runs")).unwrap();
    }
    let precious = folder.write("precious", b"precious");
    std::fs::write(format!("{out}/runs/tpca-1.json"), "{\"seed\": 77}").unwrap();
    for name in ["index.html", "tpca.json"] {
        std::os::unix::fs::symlink(&precious, format!("{out}/{name}")).unwrap();
    }
    let rows: Vec<Value> = (0..1000)
        .map(|row| {
            (0..40)
                .map(|column| (format!("c{row}-{column}"), json!(1)))
                .collect()
        })
        .collect();
    std::fs::write(
        format!("{out}/bsp.json"),
        json!({ "rows": rows }).to_string(),
    )
    .unwrap();
    let all = ["all", "--out", &out, "--part", "tpca"];
    let run = experiment(&all);
    assert!(run.status.success(), "{run:?}");
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    let page = std::fs::read_to_string(format!("{out}/index.html")).unwrap();
    assert!(
        page.contains("1000 rows of 40000 columns: too many"),
        "{}",
        page.len()
    );
    // What is no result is named.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        format!("{there}/bsp.json"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let run = experiment(&[&all[..], &["--against", &there]].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(
        said.contains("bsp.json is no result: not a regular file"),
        "{said}"
    );
    // Two at a time, and a folder that others may write to.
    let held = std::fs::File::open(&out).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let run = experiment(&all);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        said.contains("another `weir experiment all` is at work"),
        "{said}"
    );
    drop(held);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&out, open).unwrap();
    let run = experiment(&all);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains("give a folder of your own"), "{said}");
}

#[test]
fn all_goes_on_where_it_was() {
    let folder = std::env::temp_dir().join(format!("weir-all-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("runs")).unwrap();
    // What runs have printed; the third of three is lacking.
    let printed = |part: &str, number: u8, json: &Value| {
        let path = folder.join(format!("runs/{part}-{number}.json"));
        std::fs::write(path, json.to_string()).unwrap();
    };
    printed("tpca", 1, &json!({"seed": 77}));
    for (number, time) in [(1, 3.0), (2, 5.0)] {
        let row = json!({"what": "UDP", "paper": null, "now": time});
        printed("vmtp", number, &json!({ "rows": [row] }));
    }
    let path = folder.to_str().unwrap();
    let all = |options: &[&str]| {
        let run = experiment(&[&["all", "--out", path, "--runs", "2"], options].concat());
        assert!(run.status.success(), "{run:?}");
        run
    };
    let parts = ["--part", "tpca", "--part", "vmtp"];
    let run = all(&parts);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!said.contains("run 1"), "nothing is measured: {said}");
    let page = std::fs::read_to_string(folder.join("index.html")).unwrap();
    for piece in [
        "<th>seed</th><td class=\"number\">77</td>",
        // 4 ± 12.706 · √2 · √(3/2), and no time below zero.
        "<td class=\"number\">4.000 (0 to 26.01)</td><td>not in our copy</td>",
        "not measured",
    ] {
        assert!(page.contains(piece), "{piece}: {page}");
    }
    // Another run agrees with this one's ranges, or is outside of them.
    let earlier = folder.join("earlier");
    std::fs::create_dir(&earlier).unwrap();
    let against = ["--against", earlier.to_str().unwrap()];
    let ranges =
        json!({"rows": [{"what": "UDP", "now": 30.0}], "ranges": {"/rows/0/now": [29.0, 31.0]}});
    std::fs::write(earlier.join("vmtp.json"), ranges.to_string()).unwrap();
    let run = all(&[&parts[..], &against].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        said.contains("not compared, since it is not there: tpca"),
        "{said}"
    );
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(
        text.contains("/rows/0/now: 4.000, there 29.00 to 31.00"),
        "{text}"
    );
    let page = std::fs::read_to_string(folder.join("index.html")).unwrap();
    assert!(page.contains("Agreement with the earlier run"), "{page}");
    std::fs::remove_file(earlier.join("vmtp.json")).unwrap();
    for (options, words) in [
        (against, "there is no result"),
        (["--beside", "/nonexistent"], "cannot read /nonexistent"),
    ] {
        let run = experiment(&[&["all", "--out", path][..], &options].concat());
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(said.contains(words), "{said}");
    }
    // Anew, nothing of what was there is taken for one of these runs.
    printed("tpca", 2, &json!({"seed": 77}));
    all(&["--again", "--part", "tpca"]);
    let runs = std::fs::read_dir(folder.join("runs")).unwrap();
    let runs = runs.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let runs: Vec<String> = runs.filter(|name| name.starts_with("tpca")).collect();
    assert_eq!(runs, ["tpca-1.json"]);
    let run = std::fs::read_to_string(folder.join("runs/tpca-1.json")).unwrap();
    assert!(run.contains("\"seed\": 1992"), "{run}");
    let beside = ["all", "--out", path, "--part", "tpca", "--beside", "x"];
    let said = experiment(&beside).stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("give --part nettap"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
    let run = experiment(&["all", "--out", path, "--part", "x"]);
    assert_eq!(run.status.code(), Some(2), "{run:?}");
}
