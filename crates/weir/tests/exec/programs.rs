//! Programs that call sockets in ways of their own.

use super::*;

const NUMBERED: &str = include_str!("numbered.c");

/// What a program prints on the kernel's sockets, and with weir's own addresses of loopback.
fn on_both(kernel: &Bench, program: &[&str]) -> [String; 2] {
    let [kernels, weirs] = [&["--stack", "sys"][..], &["--stats", "--loopback"]].map(|options| {
        let ended = exec(kernel, options, program).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {ended:?}");
        if options.len() == 2 && options[0] == "--stats" {
            check_owner(&ended);
        }
        ended.stdout
    });
    [kernels, weirs]
}

/// libuv closes by syscall(2), and so does Node.js.
#[test]
fn calls_by_number_are_weirs() {
    let Some(kernel) = bench("exec-numbered", &["cc"]) else {
        return;
    };
    let source = kernel.folder.write("numbered.c", NUMBERED.as_bytes());
    let program = kernel.folder.path("numbered");
    kernel.run(&format!("cc -O1 -w -o {program} {source}"));
    let [kernels, weirs] = on_both(&kernel, &[&program, "127.0.0.1"]);
    assert!(
        kernels.contains("epoll_pwait 1\nend 0\nclose 0\nagain EBADF\n"),
        "{kernels}"
    );
    assert_eq!(kernels, weirs);
}

/// A peer that closes a connection with bytes unread resets it: what it had written before arrives, whichever
/// end is of a child.
#[test]
fn what_was_written_before_a_reset_arrives() {
    let Some(kernel) = bench("exec-before-reset", &["python3"]) else {
        return;
    };
    let script = "
import os, select, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
at = listener.getsockname()
socket.create_connection(at).close()
listener.accept()[0].close()
def serve():
    for _ in range(100):
        connection, _ = listener.accept()
        select.select([connection], [], [])
        connection.sendall(b'refused')
        if sys.argv[2] == 'ends':
            connection.shutdown(socket.SHUT_WR)
        connection.close()
def ask():
    for _ in range(100):
        connection = socket.create_connection(at)
        said = []
        try:
            while True:
                connection.sendall(b'x' * 1000)
        except OSError as error:
            said.append(error.errno)
        for _ in range(3):
            try:
                said.append(connection.recv(100))
            except OSError as error:
                said.append(error.errno)
        print(said if sys.argv[2] == 'resets' else said[1:], flush=True)
child = os.fork()
if (child == 0) == (sys.argv[1] == 'ask'):
    ask()
else:
    serve()
if child == 0:
    os._exit(0)
os.wait()
";
    for child in ["ask", "serve"] {
        for (how, line) in [
            ("resets", "[104, b'refused', b'', b'']\n"),
            ("ends", "[b'refused', b'', b'']\n"),
        ] {
            let [kernels, weirs] = on_both(&kernel, &["python3", "-c", script, child, how]);
            assert_eq!(kernels, line.repeat(100), "{child} {how}");
            assert_eq!(weirs, kernels, "{child} {how}");
        }
    }
}

#[test]
fn udp_sockets_can_reuse_an_address() {
    let Some(kernel) = bench("exec-reuse", &["python3"]) else {
        return;
    };
    let script = "
import socket
def bound(port, *options):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in options:
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        one.bind(('127.0.0.1', port))
    except OSError as error:
        return print(error.errno)
    one.settimeout(0.3)
    return one
def ask(*all):
    sender = bound(0)
    for number in range(10):
        sender.sendto(b'datagram', ('127.0.0.1', port))
    for one in all:
        count = 0
        try:
            while one.recv(100):
                count += 1
        except TimeoutError:
            print(count)
a = bound(0, socket.SO_REUSEADDR)
port = a.getsockname()[1]
b, c = bound(port, socket.SO_REUSEADDR), bound(port, socket.SO_REUSEADDR)
bound(port)
bound(port, socket.SO_REUSEPORT)
ask(a, b, c)
c.close()
ask(a, b)
a.close()
ask(b, bound(port, socket.SO_REUSEADDR, socket.SO_REUSEPORT))
";
    let [kernels, weirs] = on_both(&kernel, &["python3", "-c", script]);
    assert_eq!(kernels, "98\n98\n0\n0\n10\n0\n10\n0\n10\n");
    assert_eq!(weirs, kernels);
}

/// Of sockets that another process has, too.
#[test]
fn an_address_is_free_once_its_socket_is_closed() {
    let Some(kernel) = bench("exec-free", &["python3"]) else {
        return;
    };
    let script = "
import os, socket
keeps = socket.create_server(('127.0.0.1', 0))
child = os.fork()
if child == 0:
    for turn in range(200):
        socket.create_server(('127.0.0.1', 24001)).close()
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(('127.0.0.1', 24001))
        datagrams.close()
    keeps = socket.create_server(('127.0.0.1', 24001))
    try:
        socket.create_server(('127.0.0.1', 24001))
    except OSError as error:
        print(error.errno, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    let [kernels, weirs] = on_both(&kernel, &["python3", "-c", script]);
    assert_eq!(kernels, "98\n0\n");
    assert_eq!(weirs, kernels);
}
