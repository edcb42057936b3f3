//! `weir rarpd`, both its ends, across a link.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, weir};
use live::{Running, net};
use weir_lab::net::Signal;

#[test]
fn a_station_learns_its_address() {
    let Some(net) = net() else { return };
    let folder = Folder::new("rarpd");
    let station = net.eth_a.mac();
    let table = format!("\"{station}\" = \"10.0.0.77\"\n\"02:00:00:00:99:99\" = \"10.0.0.9\"\n");
    let table = folder.write("hosts.toml", table.as_bytes());
    let server = net.weir(&["rarpd", "eth0", "--table", &table]);
    let server = server.until("stations: 2");
    let client = Running::start(&net.a, weir([]), &["rarpd", "eth0", "--ask"]).end();
    assert_eq!(client.code, Some(0), "{client:?}");
    assert_eq!(client.stdout, "10.0.0.77\n");
    server.signal(Signal::TERM);
    let server = server.end();
    assert_eq!(server.code, Some(143), "{server:?}");
    assert_eq!(server.stdout, format!("{station} is 10.0.0.77\n"));
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
    assert_eq!((server.code, &*server.stdout), (Some(130), ""));
}

#[test]
fn a_server_ends_with_its_interface() {
    let Some(net) = net() else { return };
    let folder = Folder::new("rarpd-gone");
    let table = folder.write("hosts.toml", b"");
    let server = net.weir(&["rarpd", "eth0", "--table", &table]);
    let server = server.until("stations: 0");
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
        ("\"02:00:00:00:00:01\" = \"10.0.0\"", "invalid"),
    ];
    for (text, message) in cases {
        let table = folder.write("hosts.toml", text.as_bytes());
        let ended = net.weir(&["rarpd", "eth0", "--table", &table]).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(message), "{ended:?}");
    }
}
