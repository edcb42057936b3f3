//! Calls on sockets in rare states, which random calls have found to differ.

use super::programs::on_both;
use super::*;

const SCRIPT: &str = include_str!("states.py");

/// What the script prints of a state is the same on the kernel's sockets and on weir's; `line` is among it.
fn compare(state: &str, line: &str) {
    let Some(kernel) = bench(&format!("exec-{state}"), &["python3"]) else {
        return;
    };
    let script = kernel.folder.write("states.py", SCRIPT.as_bytes());
    let [kernels, weirs] = on_both(&kernel, &["python3", &script, state]);
    assert!(kernels.lines().any(|one| one == line), "{kernels}");
    assert_eq!(weirs, kernels);
}

#[test]
fn a_socket_with_a_peer_of_ipv6_sends_to_mapped_addresses() {
    compare("peer_of_ipv6", "b'datagram' 127.0.0.1 True");
}

#[test]
fn a_receive_waits_for_a_connect() {
    compare("opening", "recv that waits: b'hello'");
}

/// By a child, which the owner's relay answers.
#[test]
fn a_connection_that_is_over_has_options() {
    compare("over", "get TCP_KEEPIDLE: 77");
}

/// By lists of readable connections, and by the kernel's epoll.
#[test]
fn each_arrival_is_an_edge() {
    compare("edges", "own behind it [1]");
}

#[test]
fn the_unspecified_address_stands_for_the_sockets_own() {
    compare("unspecified", "127.0.0.2: 127.0.0.2");
}

#[test]
fn a_name_has_no_address_after_a_failed_bind() {
    compare("bind_fails", "name: ('0.0.0.0', 'own')");
}

/// With a connection of the same ends, beside one that waits, and after one of which no call said that it
/// was open.
#[test]
fn a_second_connect_fails_as_the_kernels() {
    compare("connects", "again: ECONNABORTED");
}
