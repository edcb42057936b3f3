//! What stands beside the records: the interface's own counters, and the wall clock.

use super::{Net, meter, packets, write_config};
use crate::common::{Folder, stdout, weir};
use crate::net;
use serde_json::Value;
use std::fs;
use std::time::Duration;
use weir_lab::net::Signal;

const HOUR_NS: i64 = 3_600_000_000_000;

fn proof(folder: &Folder, json: bool) -> String {
    let store = folder.path("usage.db");
    let mut proof = weir(["usage", "--store", &store, "--prove"]);
    if json {
        proof.arg("--json");
    }
    let proof = proof.output().unwrap();
    assert!(proof.status.success(), "{proof:?}");
    stdout(&proof)
}

fn periods(folder: &Folder) -> Vec<Value> {
    let proof: Value = serde_json::from_str(&proof(folder, true)).unwrap();
    assert_eq!(proof["holds"], true);
    proof["periods"].as_array().unwrap().clone()
}

/// The sum of what interfaces counted, and of how the link's packets differ.
fn interfaces(periods: &[Value]) -> [i64; 2] {
    let of = |name: &str| {
        let counts = periods.iter().map(|period| &period["interfaces"][name]);
        counts.filter_map(Value::as_i64).sum()
    };
    [of("frames"), of("more_packets")]
}

/// Sends while no cut is near, so that no frame is between the interface's counter and weir's.
fn send(net: &Net, count: u32) {
    net.send(9, count);
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn the_interface_has_counted_the_same() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-interface");
    write_config(&folder, "bytes = \"wire\"");
    let mut running = meter(&net, &folder, &[]);
    for round in 0..3 {
        send(&net, 400);
        if round == 1 {
            // The next process goes on from the last reading that is durable.
            running.signal(Signal::KILL);
            running.end();
            send(&net, 50);
            running = meter(&net, &folder, &[]);
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    running.stop();
    let counted: u64 = packets(&folder, "nobody").iter().sum();
    assert_eq!(counted, 1250);
    let periods = periods(&folder);
    let last = periods.last().unwrap();
    assert_eq!(last["interfaces"]["interfaces"][0]["name"], "eth0");
    // Each was read; the sums are the same, whichever side of a cut a frame fell to.
    assert!(
        periods
            .iter()
            .all(|period| period["interfaces"].is_object())
    );
    let [frames, more] = interfaces(&periods);
    assert!(frames >= 1250, "{frames}");
    assert_eq!(more, 0, "{periods:?}");
    let text = proof(&folder, false);
    assert!(text.contains("test: eth0 counted"), "{text}");
    assert!(text.contains("the link's totals are the same"), "{text}");
}

#[test]
fn frames_that_went_by_the_programs_are_a_difference_with_a_name() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-beside");
    write_config(&folder, "");
    let running = meter(&net, &folder, &["--keep"]);
    send(&net, 100);
    running.stop();
    // While the interface is made without programs, frames are in its own counters alone.
    let pinned = &super::pins(&net)[0];
    for program in ["meter-in-", "meter-out-"] {
        for entry in fs::read_dir(pinned).unwrap() {
            let path = entry.unwrap().path();
            if path
                .file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(program)
            {
                fs::remove_file(path).unwrap();
            }
        }
    }
    send(&net, 30);
    let running = meter(&net, &folder, &["--keep"]);
    send(&net, 7);
    running.stop();
    let running = meter(&net, &folder, &[]);
    send(&net, 3);
    running.stop();
    let periods = periods(&folder);
    // The period after the programs were missing is a gap, and compared with nothing.
    let gaps: Vec<bool> = periods
        .iter()
        .filter(|period| !period["gap_unix_ns"].is_null())
        .map(|period| period["interfaces"].is_null())
        .collect();
    assert_eq!(gaps, [true]);
    assert_eq!(interfaces(&periods)[1], 0);
    let text = proof(&folder, false);
    assert!(text.contains("nothing was counted from"), "{text}");
    assert!(text.contains("without their link headers"), "{text}");
}

#[test]
fn a_step_of_the_wall_clock_is_noted_and_moves_no_boundary() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-clock");
    write_config(&folder, "");
    let file = folder.path("wall");
    fs::write(&file, "0").unwrap();
    let running = meter(&net, &folder, &["--wall-set", &file]);
    for set_by in [HOUR_NS, 0, -HOUR_NS, 0] {
        send(&net, 100);
        fs::write(folder.path("next"), set_by.to_string()).unwrap();
        fs::rename(folder.path("next"), &file).unwrap();
        send(&net, 100);
        // A period at least ends by the clock as it is now.
        std::thread::sleep(Duration::from_millis(1300));
    }
    running.signal(Signal::KILL);
    running.end();
    // Set while no process ran, too.
    send(&net, 100);
    fs::write(&file, HOUR_NS.to_string()).unwrap();
    meter(&net, &folder, &["--wall-set", &file]).stop();
    assert_eq!(packets(&folder, "nobody").iter().sum::<u64>(), 900);
    let mut periods = periods(&folder);
    periods.sort_by_key(|period| period["period"].as_u64());
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let unix = |period: &Value, at: usize| number(&period["unix_ns"][at]);
    let steps: Vec<i64> = periods
        .iter()
        .map(|period| number(&period["wall_step_ns"]))
        .filter(|step| *step != 0)
        .map(|step| (step as f64 / HOUR_NS as f64).round() as i64)
        .collect();
    assert_eq!(steps, [1, -1, -1, 1, 1]);
    for pair in periods.windows(2) {
        let [before, after] = pair else {
            unreachable!()
        };
        // Each has its length, and begins where the one before ended, by the clock as it is now.
        assert!(unix(before, 1) > unix(before, 0), "{before}");
        let step = number(&before["wall_step_ns"]);
        assert_eq!(unix(after, 0), unix(before, 1) + step, "{before} {after}");
        assert!(before["gap_unix_ns"].is_null());
        let monotonic = |period: &Value, at: usize| period["monotonic_ns"][at].as_u64().unwrap();
        assert_eq!(monotonic(before, 1), monotonic(after, 0));
        assert!(monotonic(before, 0) < monotonic(before, 1));
    }
    let text = proof(&folder, false);
    assert!(
        text.contains("the wall clock was set on by 3600."),
        "{text}"
    );
    assert!(text.contains("the wall clock was set back by"), "{text}");
}
