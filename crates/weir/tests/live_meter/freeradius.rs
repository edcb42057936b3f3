//! A FreeRADIUS server between the access server and the counter, which hands accounting on to it.

use super::meter;
use super::radclient::{Client, requests, write_config};
use crate::common::Folder;
use crate::live::{Net, Running};
use crate::net;
use std::fs;
use weir_lab::net::Signal;
use weir_lab::testenv;

/// A server that hands each request for port 1913 on to port 1813, and gives the answer back. Nothing is
/// its own: no module, no file of the system's but dictionaries.
fn config(folder: &str) -> String {
    format!(
        r#"
prefix = /usr
localstatedir = {folder}
logdir = {folder}
raddbdir = {folder}
run_dir = {folder}
pidfile = {folder}/pid
max_request_time = 120
max_requests = 65536
cleanup_delay = 0
log {{
    destination = stderr
}}
proxy_requests = yes
home_server weir {{
    type = acct
    ipaddr = 127.0.0.1
    port = 1813
    secret = s3cret
    response_window = 60
    status_check = none
}}
home_server_pool weir {{
    home_server = weir
}}
realm weir {{
    acct_pool = weir
    nostrip
}}
client access-server {{
    ipaddr = 127.0.0.1
    secret = acc3ss
}}
server default {{
    listen {{
        type = acct
        ipaddr = 127.0.0.1
        port = 1913
    }}
    preacct {{
        update control {{
            &Proxy-To-Realm := "weir"
        }}
    }}
}}
"#
    )
}

/// In the foreground, with one thread: it hands requests on in the order of their arrival.
fn server(net: &Net, folder: &Folder) -> Running {
    let home = folder.path("freeradius");
    fs::create_dir(&home).unwrap();
    fs::write(format!("{home}/radiusd.conf"), config(&home)).unwrap();
    let mut command = testenv::program("freeradius").unwrap();
    command.args(["-f", "-s", "-d", &home]);
    Running::start(&net.b, command, &[]).until("Ready to process requests")
}

/// As of `radclient` alone: the log has what was sent, and what `radsniff` saw answered on either side of
/// the server.
#[test]
fn ten_thousand_sessions_behind_freeradius_come_to_what_they_say() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["freeradius", "radclient", "radsniff", "tcpdump"]) {
        return;
    }
    let folder = Folder::new("live-meter-freeradius");
    write_config(&folder);
    let running = meter(&net, &folder, &["--json"]);
    let server = server(&net, &folder);
    let mut seeds = weir_lab::seeds::seeds(1);
    let (requests, model) = requests(seeds.next().unwrap());
    let client = Client {
        net: &net,
        folder: &folder,
        port: 1913,
        secret: "acc3ss",
    };
    let capture = client.capture(&[1813, 1913]);
    client.send_all(&requests);
    client.guess(&requests);
    client.begin_last();
    client.until_captured(2);
    capture.signal_at_once(Signal::INT);
    let captured = capture.end();
    let [seen, before] = [1813, 1913].map(|port| client.seen(port));
    server.signal(Signal::TERM);
    let server = server.end();
    let ended = running.stop();
    let radius = &ended.json()["radius"];
    // The server itself refuses what has a wrong secret.
    assert_eq!(radius["bad_authenticators"], 0, "{ended:?}");
    assert_eq!(
        radius["answered"],
        requests.len() as u64 + 1,
        "{ended:?} {server:?}"
    );
    assert_eq!(seen.len(), requests.len() + 1, "{captured:?} {server:?}");
    model.check(&folder, seen.clone());
    // Answers of several of the server's sockets may pass each other in it.
    let sorted = |mut exchanges: Vec<(String, String)>| {
        exchanges.sort_unstable();
        exchanges
    };
    assert_eq!(sorted(seen), sorted(before), "on either side of the server");
}
