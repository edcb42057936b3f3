//! Two and more programs of `weir exec` on a link in shared memory.

use super::*;
use weir_lab::net::Host;

const SHARED: &str = include_str!("shared_link.py");

/// The options of the link, which no other test has, and of an address on it.
fn at(link: &str, host: u8) -> [String; 4] {
    [
        "--link".to_owned(),
        format!("shm:{link}-{}", std::process::id()),
        "--addr".to_owned(),
        format!("192.0.2.{host}/24"),
    ]
}

/// Runs the script as user nobody with weir's sockets.
fn shared(bench: &Bench, place: &[String; 4], arguments: &[&str]) -> Running {
    let script = bench.folder.write("shared_link.py", SHARED.as_bytes());
    let library = bench.folder.path(LIBRARY);
    let head = ["exec", "--library", &library, "--stats"];
    let head = head.into_iter().chain(place.iter().map(String::as_str));
    let all: Vec<&str> = head
        .chain(["--", "python3", &script])
        .chain(arguments.iter().copied())
        .collect();
    bench.weir_as_said(&all)
}

/// The kernel's counts of TCP segments and UDP datagrams in this network namespace.
fn kernels_counts(host: &Host) -> Vec<String> {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let of_transport = |line: &&str| line.starts_with("Tcp:") || line.starts_with("Udp:");
    text.lines()
        .filter(of_transport)
        .map(str::to_owned)
        .collect()
}

fn succeeded(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    check_owner(ended);
}

/// 256 MiB of TCP each way and 2,000 datagrams, by two programs, without the kernel's TCP and UDP.
#[test]
fn programs_on_a_link_in_shared_memory_exchange_exact_data() {
    let Some(bench) = bench("exec-shared", &["python3"]) else {
        return;
    };
    let before = kernels_counts(&bench.host);
    let server = shared(&bench, &at("data", 1), &["serve", "192.0.2.1", "1"]);
    let client = shared(&bench, &at("data", 2), &["client", "192.0.2.1", "256"]);
    succeeded(&client.end());
    succeeded(&server.end());
    assert_eq!(kernels_counts(&bench.host), before);
}

/// Three clients with an address each, two at the same time, find the server by ARP.
#[test]
fn several_programs_share_a_link() {
    let Some(bench) = bench("exec-shared-three", &["python3"]) else {
        return;
    };
    let server = shared(&bench, &at("three", 1), &["serve", "192.0.2.1", "3"]);
    let client = |host| shared(&bench, &at("three", host), &["client", "192.0.2.1", "4"]);
    let (first, second) = (client(2), client(3));
    succeeded(&first.end());
    succeeded(&second.end());
    succeeded(&client(4).end());
    succeeded(&server.end());
}

/// A server is killed in the middle of a transfer; another one takes its address and serves.
#[test]
fn a_killed_program_leaves_its_place_to_the_next() {
    let Some(bench) = bench("exec-shared-kill", &["python3"]) else {
        return;
    };
    for _ in 0..3 {
        let server = shared(&bench, &at("kill", 1), &["serve", "192.0.2.1", "1"]);
        let client = shared(&bench, &at("kill", 2), &["client", "192.0.2.1", "4096"]);
        let client = client.until("half a MiB");
        server.signal_at_once(Signal::KILL);
        drop(server);
        client.signal_at_once(Signal::KILL);
        drop(client);
    }
    let server = shared(&bench, &at("kill", 1), &["serve", "192.0.2.1", "1"]);
    succeeded(&shared(&bench, &at("kill", 2), &["client", "192.0.2.1", "4"]).end());
    succeeded(&server.end());
}

/// An address that another program has is not used, and a line names it.
#[test]
fn a_second_program_with_the_same_address_says_so() {
    let Some(bench) = bench("exec-shared-same", &["python3"]) else {
        return;
    };
    let server = shared(&bench, &at("same", 1), &["serve", "192.0.2.1", "1"]);
    let client = shared(&bench, &at("same", 2), &["client", "192.0.2.1", "1"]);
    succeeded(&client.end());
    succeeded(&server.end());
    let first = shared(&bench, &at("same", 1), &["serve", "192.0.2.1", "1"]).until("listens");
    let second = shared(&bench, &at("same", 1), &["serve", "192.0.2.1", "1"]);
    let second = second.until("is not used any more");
    assert!(
        second.said().contains("192.0.2.1 on shm:same-"),
        "{}",
        second.said()
    );
    drop((first, second));
}

/// A worker that opens a socket gets it from the process that has the link.
#[test]
fn processes_of_a_program_share_its_station() {
    let Some(bench) = bench("exec-shared-fork", &["python3"]) else {
        return;
    };
    let server = shared(&bench, &at("fork", 1), &["serve", "192.0.2.1", "1", "fork"]);
    succeeded(&shared(&bench, &at("fork", 2), &["client", "192.0.2.1", "4"]).end());
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
