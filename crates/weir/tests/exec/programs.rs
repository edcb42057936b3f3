//! Programs that call sockets in ways of their own.

use super::*;

const NUMBERED: &str = include_str!("numbered.c");

/// What a program prints on the kernel's sockets, and with weir's own addresses of loopback.
pub(super) fn on_both(kernel: &Bench, program: &[&str]) -> [String; 2] {
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

/// The application reads nothing, so that neither what the peer has sent nor the end behind it reaches it.
#[test]
fn a_send_that_waits_for_room_fails_at_a_reset() {
    let Some(kernel) = bench("exec-room-reset", &["python3"]) else {
        return;
    };
    let script = "
import os, select, signal, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
child = os.fork()
if child == 0:
    # A call that stands for good ends the child.
    signal.alarm(30)
    connection = socket.create_connection(listener.getsockname())
    connection.setblocking(sys.argv[1] == 'sends')
    try:
        while True:
            try:
                connection.sendall(b'x' * 10000)
            except BlockingIOError:
                select.select([], [connection], [])
    except OSError as error:
        print(error.errno, flush=True)
    connection.setblocking(True)
    read = b''
    while part := connection.recv(100000):
        read += part
    print(len(read) > 0, read == bytes(len(read)), flush=True)
    os._exit(0)
connection, _ = listener.accept()
connection.setblocking(False)
# Until neither the application nor the way to it takes more.
while select.select([], [connection], [], 0.5)[1]:
    connection.send(bytes(100000))
select.select([connection], [], [])
# With bytes unread.
connection.close()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    for how in ["sends", "selects"] {
        let [kernels, weirs] = on_both(&kernel, &["python3", "-c", script, how]);
        assert_eq!(kernels, "104\nTrue True\n0\n", "{how}");
        assert_eq!(weirs, kernels, "{how}");
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

/// By connect and by datagrams.
#[test]
fn a_socket_at_a_mapped_address_has_no_peers_of_ipv6() {
    let Some(kernel) = bench("exec-mapped", &["python3"]) else {
        return;
    };
    let script = "
import errno, socket
def tried(call, *arguments):
    try:
        print(call(*arguments))
    except OSError as error:
        print(errno.errorcode[error.errno])
listener = socket.create_server(('::1', 24003), family=socket.AF_INET6)
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for at in ('::ffff:127.0.0.1', '::ffff:0.0.0.0', '::'):
        for to in (('::1', 24003), ('::', 24003)):
            if kind == socket.SOCK_DGRAM:
                one = socket.socket(socket.AF_INET6, kind)
                one.bind((at, 0))
                tried(one.sendto, b'datagram', to)
            elif to[0] == '::':
                continue
            one = socket.socket(socket.AF_INET6, kind)
            one.bind((at, 0))
            tried(one.connect, to)
";
    let [kernels, weirs] = on_both(&kernel, &["python3", "-c", script]);
    assert!(
        kernels.starts_with("EAFNOSUPPORT\nEAFNOSUPPORT\nNone\nEAFNOSUPPORT\n"),
        "{kernels}"
    );
    assert_eq!(weirs, kernels);
}

/// Processes with a listener and a UDP socket each at one address; one is killed.
#[test]
fn processes_share_an_address_by_reuseport() {
    let Some(kernel) = bench("exec-reuseport", &["python3"]) else {
        return;
    };
    let script = "
import os, signal, socket, threading, time
at = ('127.0.0.1', 24002)
def bound(kind, *options):
    one = socket.socket(socket.AF_INET, kind)
    for option in options:
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        one.bind(at)
    except OSError as error:
        print(error.errno)
    return one
def answers(datagrams, name):
    while True:
        _, peer = datagrams.recvfrom(10)
        datagrams.sendto(name, peer)
def serves(name, ready):
    listener = bound(socket.SOCK_STREAM, socket.SO_REUSEPORT)
    listener.listen(64)
    datagrams = bound(socket.SOCK_DGRAM, socket.SO_REUSEPORT)
    threading.Thread(target=answers, args=(datagrams, name), daemon=True).start()
    os.write(ready, b'r')
    while True:
        connection, _ = listener.accept()
        connection.sendall(name)
        connection.close()
def ask(count, kind):
    names = []
    for _ in range(count):
        one = socket.socket(socket.AF_INET, kind)
        one.settimeout(5)
        one.connect(at)
        if kind == socket.SOCK_DGRAM:
            one.send(b'?')
        names.append(one.recv(1))
        one.close()
    print(len(names), sorted(set(names)))
keeps = socket.create_server(('127.0.0.1', 0))
ready = os.pipe()
children = []
for name in (b'a', b'b'):
    child = os.fork()
    if child == 0:
        serves(name, ready[1])
    children.append(child)
for _ in children:
    os.read(ready[0], 1)
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    bound(kind)
    bound(kind, socket.SO_REUSEADDR)
    ask(60, kind)
os.kill(children[0], signal.SIGKILL)
os.waitpid(children[0], 0)
time.sleep(0.3)
ask(20, socket.SOCK_STREAM)
ask(20, socket.SOCK_DGRAM)
os.kill(children[1], signal.SIGKILL)
";
    let [kernels, weirs] = on_both(&kernel, &["python3", "-c", script]);
    let expected = "98\n98\n60 [b'a', b'b']\n".repeat(2) + &"20 [b'b']\n".repeat(2);
    assert_eq!(kernels, expected);
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

/// A server with several threads, each with an epoll set, to clients of the kernel.
#[test]
fn memcached_serves_clients_from_its_threads() {
    let Some(kernel) = bench("exec-memcached", &["memcached", "python3"]) else {
        return;
    };
    let program = [
        "memcached",
        "-l",
        "192.0.2.5",
        "-p",
        "11211",
        "-U",
        "0",
        "-t",
        "2",
    ];
    let server = exec(&kernel, &["--stats"], &program);
    drop(connect(&kernel, 11211));
    let script = "
import random, socket, threading
done = []
def one(number):
    stream = socket.create_connection(('192.0.2.5', 11211), 10)
    file = stream.makefile('rb')
    chance = random.Random(number)
    for turn in range(50):
        value = bytes(chance.randrange(33, 127) for _ in range(chance.choice([1, 100, 5000])))
        stream.sendall(b'set k%d 0 0 %d\\r\\n%s\\r\\n' % (number, len(value), value))
        assert file.readline() == b'STORED\\r\\n'
        stream.sendall(b'get k%d\\r\\n' % number)
        assert file.readline() == b'VALUE k%d 0 %d\\r\\n' % (number, len(value))
        assert file.read(len(value) + 7) == value + b'\\r\\nEND\\r\\n'
    done.append(number)
threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(done))
";
    let script = kernel.folder.write("clients.py", script.as_bytes());
    assert_eq!(kernel.run(&format!("python3 {script}")), b"20\n");
    server.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    check_owner(&ended);
}

/// A server that is a client, too: with connections of two threads to the kernel's server.
#[test]
fn haproxy_passes_requests_on() {
    let Some(kernel) = bench("exec-haproxy", &["haproxy", "python3", "curl"]) else {
        return;
    };
    let body: Vec<u8> = (0..700_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    kernel.folder.write("file", &body);
    let site = kernel.folder.path("");
    let line = format!("python3 -m http.server 8080 --bind 192.0.2.1 --directory {site}");
    let _server = kernel.server(&line, 8080);
    let config = "
global
  nbthread 2
defaults
  timeout connect 5s
  timeout client 10s
  timeout server 10s
listen http
  mode http
  bind 192.0.2.5:8000
  server one 192.0.2.1:8080 check
listen tcp
  mode tcp
  bind 192.0.2.5:8001
  server one 192.0.2.1:8080
";
    let config = kernel.folder.write("haproxy.cfg", config.as_bytes());
    let program = ["haproxy", "-db", "-f", &config];
    let proxy = exec(&kernel, &["--stats"], &program);
    let out = kernel.folder.path("out");
    for port in [8000, 8001] {
        drop(connect(&kernel, port));
        let url = format!("http://192.0.2.5:{port}/file");
        for urls in [
            format!("-o {out} {url}"),
            format!("-o {out} {url} -o {out} {url}"),
        ] {
            std::fs::write(&out, "").unwrap();
            kernel.run(&format!("curl -sSf --retry 5 {urls}"));
            assert!(std::fs::read(&out).unwrap() == body, "{port}");
        }
    }
    // It ends when its connections have.
    proxy.signal_at_once(Signal::USR1);
    let ended = proxy.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    check_owner(&ended);
}
