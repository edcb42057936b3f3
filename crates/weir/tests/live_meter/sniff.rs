//! Sessions from the exchange of other programs: the counter sees what `radsniff` sees.

use super::{meter, packets, write_config, write_secret};
use crate::common::Folder;
use crate::live::{Running, WAIT_MAX};
use crate::net;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::net::UdpSocket;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use weir_lab::net::Signal;
use weir_lab::testenv;
use weir_ledger::SessionLog;
use weir_meter::radius::packet::{Packet, attribute};
use weir_meter::{SessionEvent, SessionEventKind};

const SESSIONS: u32 = 150;
/// How long a capturing program may take to begin, and to read what was captured.
pub(super) const SETTLING: Duration = Duration::from_secs(1);

/// Answers each request but those of the user `refused`.
fn answer(socket: &UdpSocket, has_ended: &AtomicBool) {
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let mut bytes = [0; 4096];
    while !has_ended.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else {
            continue;
        };
        let packet = Packet::new(&bytes[..length]).unwrap();
        if packet.first(attribute::USER_NAME) != Some(b"refused") {
            socket.send_to(&packet.response(b"s3cret"), from).unwrap();
        }
    }
}

fn request(status: &str, session: &str, user: &str, address: &str) -> String {
    format!(
        "Acct-Status-Type = {status}\nAcct-Session-Id = \"{session}\"\nUser-Name = \"{user}\"\n\
         Framed-IP-Address = {address}\n\n"
    )
}

/// Status and session of the answered requests, as `radsniff -x` prints them.
pub(super) fn answered(printed: &str) -> Vec<(String, String)> {
    let mut answered = Vec::new();
    let (mut requests, mut last) = (Vec::new(), None);
    let value = |line: &str| {
        let (_, value) = line.split_once(" = ")?;
        Some(value.trim_matches('"').to_owned())
    };
    let exchange = |line: &str| {
        let (_, rest) = line.split_once(" Id ")?;
        let mut words = rest.split_whitespace();
        let (id, at) = (words.next()?, words.next()?);
        Some(format!("{id} {at}"))
    };
    for line in printed.lines() {
        if line.contains(" Accounting-Request Id ") {
            requests.push((exchange(line), String::new(), String::new()));
            last = Some(requests.len() - 1);
        } else if line.contains(" Accounting-Response Id ") {
            last = None;
            let exchange = exchange(line);
            let found = requests.iter().rposition(|(of, _, _)| *of == exchange);
            let (_, status, session) = requests.remove(found.expect("the request"));
            answered.push((status, session));
        } else if let (Some(last), Some(value)) = (last, value(line)) {
            let (_, status, session) = &mut requests[last];
            if line.contains("Acct-Status-Type") {
                *status = value;
            } else if line.contains("Acct-Session-Id") {
                *session = value;
            }
        }
    }
    answered
}

/// Kind and Acct-Session-Id of the events of a log.
pub(super) fn logged(events: &[SessionEvent]) -> Vec<(String, String)> {
    let logged = events.iter().map(|event| {
        let (status, info) = match &event.kind {
            SessionEventKind::Up(info) => ("Start", info),
            SessionEventKind::Down(info) => ("Stop", info),
            other => panic!("{other:?}"),
        };
        let session = info.id.split('/').nth(3).unwrap();
        (status.to_owned(), session.to_owned())
    });
    logged.collect()
}

#[test]
fn the_log_has_what_radsniff_sees_answered() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["radclient", "radsniff"]) {
        return;
    }
    let folder = Folder::new("live-meter-sniff");
    write_secret(&folder);
    write_config(
        &folder,
        "[radius]\nsniff = \"eth0\"\n[[radius.client]]\naddress = \"10.0.0.1\"\n\
         secret_file = \"secret\"\n",
    );
    let config = folder.path("counter.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("capacity = 64", "capacity = 1024")).unwrap();
    let running = meter(&net, &folder, &["--json"]);
    let mut sniffer = testenv::program("sh").unwrap();
    sniffer.args([
        "-c",
        "exec radsniff -i eth0 -f 'udp port 1813' -x >\"$1\"",
        "sh",
    ]);
    sniffer.arg(folder.path("radsniff"));
    let sniffer = Running::start(&net.b, sniffer, &[]);
    // It prints into a buffer: that it captures is seen by its packet socket, the only one there.
    let sockets = format!("/proc/{}/net/packet", sniffer.id());
    let began = std::time::Instant::now();
    while fs::read_to_string(&sockets)
        .unwrap_or_default()
        .lines()
        .count()
        < 2
    {
        assert!(began.elapsed() < WAIT_MAX, "radsniff does not capture");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(SETTLING);
    let socket = net.b.run(|| UdpSocket::bind("10.0.0.2:1813").unwrap());
    let has_ended = AtomicBool::new(false);
    let send = |text: &str, secret: &str, more: &[&str]| -> Output {
        fs::write(folder.path("requests"), text).unwrap();
        let mut client = testenv::program("radclient").unwrap();
        client.args(["-f", &folder.path("requests"), "-q"]);
        client.args(more).args(["10.0.0.2:1813", "acct", secret]);
        net.a.output(client).unwrap()
    };
    thread::scope(|scope| {
        scope.spawn(|| answer(&socket, &has_ended));
        let mut text = String::new();
        for session in 0..SESSIONS {
            let address = format!("10.7.0.{}", session % 250);
            let (id, user) = (format!("s{session}"), format!("u{session}"));
            write!(text, "{}", request("Start", &id, &user, &address)).unwrap();
            if session % 3 > 0 {
                write!(text, "{}", request("Stop", &id, &user, &address)).unwrap();
            }
        }
        text += &request("Start", "mine", "alice", "10.0.0.1");
        send(&text, "s3cret", &["-r", "5", "-t", "5"]);
        // Not answered: it begins no session. And one whose secret is another.
        let refused = request("Start", "no", "refused", "10.0.0.1");
        send(&refused, "s3cret", &["-r", "1", "-t", "0.3"]);
        send(
            &request("Start", "forged", "eve", "10.0.0.1"),
            "guess",
            &["-r", "1", "-t", "0.3"],
        );
        has_ended.store(true, Ordering::Relaxed);
    });
    net.send(9, 50);
    thread::sleep(SETTLING);
    sniffer.signal(Signal::INT);
    sniffer.end();
    let printed = fs::read_to_string(folder.path("radsniff")).unwrap();
    let ended = running.stop();
    assert_eq!(ended.json()["radius"]["bad_authenticators"], 1, "{ended:?}");
    assert_eq!(packets(&folder, "alice"), [50, 0]);
    let log = SessionLog::beside(folder.path("test.spool").as_ref()).unwrap();
    let events = log.events(0, 10_000).unwrap();
    let mut seen = answered(&printed);
    // radsniff, without the secret, believes the answer to a forged request.
    seen.retain(|(_, session)| session != "forged");
    let unique: HashSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "radclient did not send again");
    assert_eq!(logged(&events), seen);
    assert!(seen.len() > SESSIONS as usize, "{seen:?}");
}
