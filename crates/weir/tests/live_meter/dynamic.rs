//! Policies that RADIUS names and changes, and what access servers are asked when a quota is spent.

use super::{AccessServer, meter, write_config, write_secret};
use crate::common::Folder;
use crate::common::chunks::policed;
use crate::live::WAIT_MAX;
use crate::net;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::process::Output;
use std::time::Duration;
use weir_lab::testenv;
use weir_ledger::SessionLog;
use weir_meter::SessionEventKind;
use weir_meter::radius::packet::{COA_REQUEST, DISCONNECT_REQUEST, Packet, attribute};

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
    // The access server still says what it got at first.
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

/// Takes requests as an access server does.
struct Asked(UdpSocket);

impl Asked {
    fn next(&self) -> (Vec<u8>, SocketAddr) {
        let mut bytes = [0; 4096];
        let (length, from) = self.0.recv_from(&mut bytes).expect("a request");
        let packet = Packet::new(&bytes[..length]).unwrap();
        assert_eq!(packet.verify_request(b"other"), Ok(()));
        assert_eq!(packet.verify_message(&[0; 16], b"other"), Ok(()));
        assert_eq!(packet.first(attribute::USER_NAME), Some(&b"alice"[..]));
        let local: &[u8] = &[127, 0, 0, 1];
        assert_eq!(packet.first(attribute::NAS_IP_ADDRESS), Some(local));
        (bytes[..length].to_vec(), from)
    }
}

#[test]
fn the_access_server_is_asked_when_a_quota_is_spent() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-spent");
    write_secret(&folder);
    let other = folder.path("other");
    fs::copy(folder.path("secret"), &other).unwrap();
    fs::write(&other, "other").unwrap();
    let config = write_config(
        &folder,
        "default_policy = \"small\"\n[radius]\nlisten = \"127.0.0.1:1813\"\n[[radius.client]]\n\
         address = \"127.0.0.0/8\"\nsecret_file = \"secret\"\ndynamic = \"127.0.0.1:3799\"\n\
         dynamic_secret_file = \"other\"\n\
         [policy.small]\nquota = \"1B\"\nspent_request = \"disconnect\"\n",
    );
    let asked = net.b.run(|| UdpSocket::bind("127.0.0.1:3799").unwrap());
    asked.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let asked = Asked(asked);
    let stats = folder.path("stats");
    let start = || meter(&net, &folder, &["--json", "--keep", "--stats-json", &stats]);
    let running = start();
    let server = AccessServer::new(&net);
    server.send(1, 1, 0);
    assert_eq!(server.answer(WAIT_MAX), Some(1));
    net.send(9, 50);
    let (first, from) = asked.next();
    // It does not answer: requests of accounting are answered all the same.
    server.send(2, 3, 9);
    assert_eq!(server.answer(WAIT_MAX), Some(2));
    let (second, _) = asked.next();
    assert_eq!(first, second);
    let packet = Packet::new(&first).unwrap();
    assert_eq!(packet.code(), DISCONNECT_REQUEST);
    assert_eq!(
        packet.first(attribute::ACCT_SESSION_ID),
        Some(&b"session"[..])
    );
    let cause: (u8, &[u8]) = (attribute::ERROR_CAUSE, &[0, 0, 1, 247]);
    let nak = packet.signed_response(42, &[cause], b"other");
    asked
        .0
        .send_to(&packet.signed_response(42, &[], b"guess"), from)
        .unwrap();
    asked.0.send_to(&nak, from).unwrap();
    let running = running.until("1 refused (Error-Cause 503 of 127.0.0.1:3799)");
    let ended = running.stop();
    let requests = &ended.json()["quota_requests"];
    assert_eq!((&requests["nak"], &requests["ack"]), (&1.into(), &0.into()));
    assert_eq!(
        (&requests["ignored"], &requests["none"]),
        (&1.into(), &0.into())
    );
    // The quota is spent in the kernel still: another process asks again, by its own configuration.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace("\"disconnect\"", "\"coa:walled-garden\""),
    )
    .unwrap();
    let running = start();
    let (bytes, from) = asked.next();
    let packet = Packet::new(&bytes).unwrap();
    assert_eq!(packet.code(), COA_REQUEST);
    let filter = packet.first(attribute::FILTER_ID);
    assert_eq!(filter, Some(&b"walled-garden"[..]));
    asked
        .0
        .send_to(&packet.signed_response(44, &[], b"other"), from)
        .unwrap();
    let began = std::time::Instant::now();
    while !fs::read_to_string(&stats)
        .unwrap_or_default()
        .contains("\"ack\":1")
    {
        assert!(began.elapsed() < WAIT_MAX, "the answer is not counted");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The counter has the answer, and asks no more for this session.
    asked.0.set_nonblocking(true).unwrap();
    while asked.0.recv(&mut [0; 4096]).is_ok() {}
    std::thread::sleep(Duration::from_millis(2500));
    assert!(asked.0.recv(&mut [0; 4096]).is_err());
    let ended = running.stop();
    let requests = &ended.json()["quota_requests"];
    assert_eq!((&requests["nak"], &requests["ack"]), (&0.into(), &1.into()));
    let cleaned = net.weir(&["meter", "--config", &config, "--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}
