//! Policies that RADIUS names and changes.

use super::{write_config, write_secret};
use crate::common::Folder;
use crate::live::net;
use std::fs;
use std::process::Output;
use weir_lab::testenv;
use weir_ledger::{Ledger, SessionLog, Spool};
use weir_meter::SessionEventKind;

/// Packets of service `test` in the records of a spool, and those of them that were policed.
fn policed(folder: &Folder) -> [u64; 2] {
    let spool = Spool::open(folder.path("spool").as_ref()).unwrap();
    let mut ledger = Ledger::open(folder.path("scratch.db").as_ref()).unwrap();
    let (mut after, mut sums) = (0, [0; 2]);
    while let Some(stored) = spool.next(after).unwrap() {
        after = stored.sequence;
        let (chunk, _) = ledger.accept(&stored.encoded).unwrap();
        let of_test = chunk
            .records
            .iter()
            .filter(|record| chunk.services[usize::from(record.service)] == "test");
        for record in of_test {
            sums[0] += record.counts[0];
            sums[1] += record.counts[2];
        }
    }
    sums
}

/// The policies of a session in the log of sessions, one after another.
fn policies(folder: &Folder) -> Vec<Option<String>> {
    let log = SessionLog::beside(folder.path("spool").as_ref()).unwrap();
    let events = log.events(0, 1000).unwrap().into_iter();
    let policies = events.filter_map(|event| match event.kind {
        SessionEventKind::Up(info) => Some(info.policy),
        _ => None,
    });
    policies.collect()
}

/// `radclient` names a policy in a Start, and changes it with a CoA-Request.
#[test]
fn a_session_has_the_policy_that_radius_names_and_changes() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["radclient"]) {
        return;
    }
    let folder = Folder::new("live-meter-coa");
    write_secret(&folder);
    // One packet uses a quota up.
    write_config(
        &folder,
        "[radius]\nlisten = \"127.0.0.1:1813\"\ndynamic = \"127.0.0.1:3799\"\n\
         [[radius.client]]\naddress = \"127.0.0.1\"\nsecret_file = \"secret\"\n\
         [policy.open]\nrate = \"1G\"\n[policy.closed]\nquota = \"1B\"\n",
    );
    let spool = folder.path("spool");
    let config = folder.path("counter.toml");
    let arguments = [
        "meter",
        "--config",
        &config,
        "--json",
        "--no-store",
        "--spool",
        &spool,
    ];
    let running = net.weir(&arguments).until("ready");
    let radclient = |kind: &str, port: u16, secret: &str, text: &str| -> Output {
        fs::write(folder.path("request"), text).unwrap();
        let mut client = testenv::program("radclient").unwrap();
        client.args(["-f", &folder.path("request"), "-r", "2", "-t", "2", "-x"]);
        client.args([&format!("127.0.0.1:{port}"), kind, secret]);
        net.b.output(client).unwrap()
    };
    let session = "Acct-Session-Id = \"7\"\nUser-Name = \"alice\"\nNAS-Identifier = \"nas\"\n\
                   Framed-IP-Address = 10.0.0.1\n";
    let accounting = |status: &str, filter: &str| {
        let text = format!("{session}Acct-Status-Type = {status}\nFilter-Id = \"{filter}\"\n");
        let sent = radclient("acct", 1813, "s3cret", &text);
        assert!(sent.status.success(), "{sent:?}");
    };
    let change = |secret: &str, filter: &str| {
        let text = format!("{session}Filter-Id = \"{filter}\"\nMessage-Authenticator = 0x00\n");
        let sent = radclient("coa", 3799, secret, &text);
        String::from_utf8_lossy(&sent.stdout).into_owned()
    };
    accounting("Start", "open");
    net.send(9, 50);
    let said = change("s3cret", "closed");
    assert!(said.contains("CoA-ACK"), "{said}");
    net.send(9, 50);
    // The access server goes on to say what it was told at first.
    accounting("Interim-Update", "open");
    net.send(9, 50);
    let said = change("s3cret", "unheard");
    assert!(said.contains("CoA-NAK"), "{said}");
    assert!(
        said.contains("Error-Cause = Invalid-Attribute-Value"),
        "{said}"
    );
    let said = change("guess", "open");
    assert!(
        !said.contains("CoA-ACK") && !said.contains("CoA-NAK"),
        "{said}"
    );
    accounting("Interim-Update", "unheard");
    net.send(9, 50);
    let said = change("s3cret", "open");
    assert!(said.contains("CoA-ACK"), "{said}");
    net.send(9, 50);
    let running = running.until("whose Filter-Id names no policy: 1, the last `unheard`");
    let ended = running.stop();
    let radius = &ended.json()["radius"];
    assert_eq!(radius["unknown_policies"], 1, "{ended:?}");
    assert_eq!(radius["dynamic"]["changed"], 2, "{ended:?}");
    assert_eq!(radius["dynamic"]["refused"], 1, "{ended:?}");
    assert!(
        radius["dynamic"]["ignored"].as_u64().unwrap() >= 1,
        "{ended:?}"
    );
    assert_eq!(policed(&folder), [250, 149]);
    let named = [Some("open"), Some("closed"), Some("open")];
    let named = named.map(|name| name.map(str::to_owned));
    assert_eq!(policies(&folder), named);
}
