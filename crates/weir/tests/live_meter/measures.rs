//! Measures beside packets and bytes, and adoption, on a live link.

use super::{AccessServer, meter, packets, write_config, write_secret};
use crate::common::{Folder, stdout, weir};
use crate::net;
use serde_json::Value;
use std::fs;
use std::time::Duration;
use weir_lab::net::Signal;

/// The rows of service `test`.
fn rows(folder: &Folder) -> Vec<Value> {
    let store = folder.path("usage.db");
    let rows = weir(["usage", "--store", &store, "--service", "test", "--json"]);
    let rows = { rows }.output().unwrap();
    assert!(rows.status.success(), "{rows:?}");
    serde_json::from_str(&stdout(&rows)).unwrap()
}

/// What the row has of a measure, going up.
fn up(row: &Value, measure: &str) -> u64 {
    row["more"][measure][0].as_u64().unwrap_or(0)
}

const MEASURES: &str = "[measures]\nshort = \"less 60\"\nflows = { idle = \"1h\" }\n\
    active = { slot = \"100ms\" }\ngaps = true\nnone = \"tcp\"\n";

/// `write_config` puts this before `[[link]]`, which is a table of its own.
fn write(folder: &Folder, keys: &str) {
    fs::write(
        folder.path("subscribers.csv"),
        "subscriber,key\nalice,10.0.0.1\n",
    )
    .unwrap();
    write_config(
        folder,
        &format!("subscribers = \"subscribers.csv\"\n{keys}\n{MEASURES}"),
    );
}

#[test]
fn measures_are_counted_through_kills_and_changes() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-measures");
    write(&folder, "");
    let running = meter(&net, &folder, &[]);
    // Each is a flow: a socket of its own.
    for _ in 0..5 {
        net.send(9, 40);
    }
    running.signal(Signal::KILL);
    running.end();
    net.send(9, 40);
    let running = meter(&net, &folder, &[]);
    net.send(9, 60);
    running.signal(Signal::KILL);
    running.end();
    // Other sizes: what was counted has its measures.
    let config = folder.path("counter.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("capacity = 64", "capacity = 65")).unwrap();
    let running = meter(&net, &folder, &[]);
    assert!(running.said().contains("earlier configuration"));
    net.send(9, 10);
    running.stop();
    assert_eq!(packets(&folder, "alice"), [310, 0]);
    let rows = rows(&folder);
    let row = rows
        .iter()
        .find(|row| row["subscriber"] == "alice")
        .unwrap();
    // A datagram of four bytes is a frame of 46.
    assert_eq!(up(row, "short"), 310, "{row}");
    assert_eq!(up(row, "none"), 0);
    assert_eq!(up(row, "flows"), 8);
    let active = up(row, "active_ms");
    assert!(active >= 100 && active.is_multiple_of(100), "{row}");
    let more = row["more"].as_object().unwrap();
    let gaps = more.keys().filter(|name| name.starts_with("gap_"));
    let gaps: u64 = gaps.map(|name| up(row, name)).sum();
    // In each period one less than there are packets.
    assert!((300..310).contains(&gaps), "{row}");
    // Without measures, what was counted before has none of another kind.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace(MEASURES, "")).unwrap();
    let running = meter(&net, &folder, &[]);
    net.send(9, 1);
    running.stop();
    assert_eq!(packets(&folder, "alice"), [311, 0]);
}

#[test]
fn services_and_measures_that_change_keep_the_names_of_what_was_counted() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-names");
    write(&folder, "");
    let config = folder.path("counter.toml");
    let first = fs::read_to_string(&config).unwrap();
    let services = "[services]\nbefore = { udp = [8] }\nrest = { udp = [9] }\n";
    let (keys, _) = first.split_once("[services]").unwrap();
    // Fewer and more services, in other places, with other measures.
    let changes = [
        first.clone(),
        format!("{keys}{services}").replace("short = \"less 60\"", "small = \"less 61\""),
        format!("{keys}[services]\ntest = {{ udp = [7, 9] }}\n").replace(MEASURES, ""),
    ];
    for (text, count) in changes.iter().zip([100, 20, 3]) {
        fs::write(&config, text).unwrap();
        let running = meter(&net, &folder, &[]);
        net.send(9, count);
        // Killed, so that the next one records what was counted.
        running.signal(Signal::KILL);
        running.end();
    }
    fs::write(&config, &first).unwrap();
    meter(&net, &folder, &[]).stop();
    let store = folder.path("usage.db");
    let rows = weir(["usage", "--store", &store, "--json"]);
    let rows = { rows }.output().unwrap();
    let rows: Value = serde_json::from_str(&stdout(&rows)).unwrap();
    let sum = |service: &str, what: &dyn Fn(&Value) -> u64| -> u64 {
        let rows = rows.as_array().unwrap().iter();
        let rows = rows.filter(|row| row["service"] == service && row["subscriber"] == "alice");
        rows.map(what).sum()
    };
    let packets = |row: &Value| row["packets"][0].as_u64().unwrap();
    assert_eq!(sum("test", &packets), 103, "{rows}");
    assert_eq!(sum("rest", &packets), 20, "{rows}");
    assert_eq!(sum("test", &|row| up(row, "short")), 100, "{rows}");
    assert_eq!(sum("rest", &|row| up(row, "small")), 20, "{rows}");
    let names = rows.as_array().unwrap().iter();
    let mut names = names.map(|row| row["service"].as_str().unwrap());
    assert!(names.all(|name| !name.starts_with("class-")), "{rows}");
}

#[test]
fn a_session_adopts_what_came_a_little_before_it() {
    let Some(net) = net() else { return };
    for (adoption, adopted) in [("30s", 100), ("1ms", 0)] {
        let folder = Folder::new("live-meter-adoption");
        write_secret(&folder);
        let config = write_config(
            &folder,
            &format!(
                "adoption = \"{adoption}\"\n[radius]\nlisten = \"127.0.0.1:1813\"\n\
                 [[radius.client]]\naddress = \"127.0.0.1\"\nsecret_file = \"secret\"\n"
            ),
        );
        // No cut comes between.
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.replace("period = \"1s\"", "period = \"1d\"")).unwrap();
        let running = meter(&net, &folder, &[]);
        net.send(9, 100);
        std::thread::sleep(Duration::from_millis(20));
        let server = AccessServer::new(&net);
        let account = |identifier: u8, status: u8| {
            server.send(identifier, status, 0);
            let answer = server.answer(Duration::from_secs(10));
            assert_eq!(answer, Some(identifier));
        };
        account(1, 1);
        net.send(9, 20);
        running.stop();
        assert_eq!(packets(&folder, "alice"), [20 + adopted, 100 - adopted]);
        let store = folder.path("usage.db");
        let ledger = weir_ledger::Ledger::open(store.as_ref()).unwrap();
        assert!(ledger.prove(None, None).unwrap().holds());
    }
}
