//! `weir rarpd`, client and server, across a link.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, weir};
use live::{Running, net, open_folder};
use weir_lab::net::Signal;
use weir_lab::net::unprivileged::NOBODY;

#[test]
fn a_station_learns_its_address() {
    let Some(net) = net() else { return };
    let folder = Folder::new("rarpd");
    let station = net.eth_a.mac();
    let table = format!("\"{station}\" = \"10.0.0.77\"\n\"02:00:00:00:99:99\" = \"10.0.0.9\"\n");
    let table = folder.write("hosts.toml", table.as_bytes());
    let server = net.weir(&["rarpd", "eth0", "--table", &table]);
    let server = server.until("stations: 2").until("ready");
    let client = Running::start(&net.a, weir([]), &["rarpd", "eth0", "--ask"]).end();
    assert_eq!(client.code, Some(0), "{client:?}");
    assert_eq!(client.stdout, "10.0.0.77\n");
    server.signal(Signal::TERM);
    let server = server.end();
    assert_eq!(server.code, Some(0), "{server:?}");
    assert_eq!(server.stdout, format!("{station} is 10.0.0.77\n"));
}

#[test]
fn an_ordinary_user_serves_as_the_policy_grants() {
    let Some(net) = net() else { return };
    let folder = open_folder("rarpd-nobody");
    let station = net.eth_a.mac();
    let table = folder.write(
        "hosts.toml",
        format!("\"{station}\" = \"10.0.0.78\"\n").as_bytes(),
    );
    let (socket, keep) = (folder.path("socket"), folder.path("keep"));
    let broker = |send: &str| {
        let policy = format!(
            "[[grant]]\nusers = [{NOBODY}]\ninterfaces = ['eth0']\nfilter = 'rarp'\n{send}\n"
        );
        let config = folder.write("policy.toml", policy.as_bytes());
        let broker = ["broker", "--config", &config, "--socket", &socket];
        let broker = net.weir(&[&broker[..], &["--keep", &keep]].concat());
        broker.until("listens on")
    };
    let serve = ["rarpd", "eth0", "--table", &table, "--socket", &socket];
    let first = broker("take = true");
    let refused = net.weir_as_nobody(&serve).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("does not grant sending"),
        "{refused:?}"
    );
    first.signal(Signal::TERM);
    first.end();
    // The grant permits sending, but not this EtherType.
    let other = broker("send = true");
    let ask = ["rarpd", "eth0", "--ask", "--socket", &socket];
    let refused = net.weir_as_nobody(&ask).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("[0x8035]"), "{refused:?}");
    other.signal(Signal::TERM);
    other.end();
    let second = broker("take = true\nsend = { ethertypes = [0x8035] }");
    let server = net.weir_as_nobody(&serve).until("stations: 1");
    let client = Running::start(&net.a, weir([]), &["rarpd", "eth0", "--ask"]).end();
    assert_eq!(client.stdout, "10.0.0.78\n", "{client:?}");
    server.signal(Signal::TERM);
    assert_eq!(server.end().stdout, format!("{station} is 10.0.0.78\n"));
    second.signal(Signal::TERM);
    second.end();
    let clean = ["broker", "--clean", "--socket", &socket, "--keep", &keep];
    let cleaned = net.weir(&clean).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}

#[test]
fn a_server_is_silent_about_strangers_and_a_client_gives_up() {
    let Some(net) = net() else { return };
    let folder = Folder::new("rarpd-strange");
    let table = folder.write("hosts.toml", b"\"02:00:00:00:99:99\" = \"10.0.0.9\"\n");
    let server = net.weir(&["rarpd", "eth0", "--table", &table]);
    let server = server.until("stations: 1");
    let client = Running::start(&net.a, weir([]), &["rarpd", "eth0", "--ask"]).end();
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(client.stderr.contains("no RARP server"), "{client:?}");
    server.signal(Signal::INT);
    let server = server.end();
    assert_eq!((server.code, &*server.stdout), (Some(0), ""));
}

#[test]
fn a_server_ends_with_its_interface() {
    let Some(net) = net() else { return };
    let folder = Folder::new("rarpd-gone");
    let table = folder.write("hosts.toml", b"\"02:00:00:00:00:01\" = \"10.0.0.9\"");
    let server = net.weir(&["rarpd", "eth0", "--table", &table]);
    let server = server.until("stations: 1");
    net.eth_a.clone().delete().unwrap();
    let server = server.end();
    assert_eq!(server.code, Some(1), "{server:?}");
    assert!(server.stderr.contains("eth0 is gone"), "{server:?}");
}

#[test]
fn a_wrong_table_is_refused() {
    let Some(net) = net() else { return };
    let folder = Folder::new("rarpd-wrong");
    let cases = [
        ("\"02:00\" = \"10.0.0.9\"", "no Ethernet address"),
        (
            "\"02:00:00:00:00:01\" = \"10.0.0\"",
            "hosts.toml:1:23: `10.0.0` is not an IPv4 address",
        ),
    ];
    for (text, message) in cases {
        let table = folder.write("hosts.toml", text.as_bytes());
        let ended = net.weir(&["rarpd", "eth0", "--table", &table]).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(message), "{ended:?}");
    }
}
