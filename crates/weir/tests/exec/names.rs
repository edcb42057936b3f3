//! Names that an unmodified program looks up through weir: the servers are reached by weir's link alone.

use super::*;
use weir_lab::net::Host;

/// What a program prints about names.
const ASKS: &str = "
import os, socket, sys, threading

def found(name, *more):
    try:
        return sorted({one[4][0] for one in socket.getaddrinfo(name, 80, *more)})
    except socket.gaierror as error:
        return socket.EAI_AGAIN == error.errno and 'again' or error.errno

print(found('name.test'))
print(found('name.test', socket.AF_INET))
print(socket.gethostbyname('name.test'), socket.gethostbyname_ex('name.test')[2])
print(socket.gethostbyaddr('203.0.113.7')[0], socket.getnameinfo(('203.0.113.7', 80), 0)[0])
print(found('missing.test') == socket.EAI_NONAME)
# More addresses than a datagram has room for.
print(len(found('many.test', socket.AF_INET)))
lines = []
threads = [threading.Thread(target=lambda: lines.append(found('name.test'))) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(lines), all(line == lines[0] for line in lines))
sys.stdout.flush()
# A process that has not the link.
child = os.fork()
if child == 0:
    print('child', found('name.test'), found('many.test', socket.AF_INET)[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
os.execvp('python3', ['python3', '-c', '''
import socket
print('executed', socket.gethostbyname('name.test'))
'''])
";

/// What [`ASKS`] prints.
const FOUND: &str = "\
['2001:db8:7::7', '203.0.113.7']
['203.0.113.7']
203.0.113.7 ['203.0.113.7']
name.test name.test
True
90
8 True
child ['2001:db8:7::7', '203.0.113.7'] 203.0.113.100
executed 203.0.113.7
";

/// A server of names on the kernel's side.
fn server(kernel: &Bench, more: &str) -> Running {
    let many: Vec<String> = (100..190)
        .map(|at| format!("203.0.113.{at} many.test\n"))
        .collect();
    let hosts = kernel.folder.write("hosts", many.concat().as_bytes());
    kernel.server(
        &format!(
            "dnsmasq --no-daemon --conf-file=/dev/null --no-resolv --no-hosts --user= \
             --bind-interfaces --listen-address=192.0.2.1 --listen-address=2001:db8::1 \
             --addn-hosts={hosts} --edns-packet-max=512 --local=/test/ \
             --host-record=name.test,203.0.113.7,2001:db8:7::7 {more}"
        ),
        53,
    )
}

/// The loopback interface of a host, by which the C library reaches the forwarders.
fn loopback(host: &Host) {
    host.device("lo").unwrap().up().unwrap();
}

#[test]
fn names_are_looked_up_through_weir() {
    let Some(kernel) = bench("exec-names", &["dnsmasq", "python3", "curl"]) else {
        return;
    };
    loopback(&kernel.host);
    let _server = server(&kernel, "");
    let script = kernel.folder.write("asks.py", ASKS.as_bytes());
    // Both versions of IP; and the next server if one cannot be reached, or does not answer.
    for servers in ["192.0.2.1", "2001:db8::1", "198.51.100.1,192.0.2.1"] {
        let ended = exec(&kernel, &["--dns", servers], &["python3", &script]).end();
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(0), FOUND),
            "{servers}: {ended:?}"
        );
    }
    kernel.folder.write("page", b"by name");
    let site = kernel.folder.path("");
    let line = format!("python3 -m http.server 80 --bind 192.0.2.1 --directory {site}");
    let _web = kernel.server(&line, 80);
    let url = ["curl", "-sSf", "http://web.test/page"];
    drop(_server);
    let _server = server(&kernel, "--host-record=web.test,192.0.2.1");
    let ended = exec(&kernel, &["--dns", "192.0.2.1", "--stats"], &url).end();
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "by name"),
        "{ended:?}"
    );
    check_owner(&ended);
}

/// Without a server that can be reached a look-up fails at once: weir's answer is that there is none.
#[test]
fn a_server_that_cannot_be_reached_fails_at_once() {
    let Some(kernel) = bench("exec-no-names", &["python3"]) else {
        return;
    };
    loopback(&kernel.host);
    let script = "
import socket, time
began = time.monotonic()
try:
    print(socket.getaddrinfo('name.test', 80))
except socket.gaierror as error:
    print(error.errno == socket.EAI_AGAIN, time.monotonic() - began < 4)
";
    let program = ["python3", "-c", script];
    let ended = exec(&kernel, &["--dns", "198.51.100.1"], &program).end();
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "True True\n"),
        "{ended:?}"
    );
}

/// The servers that a DHCP server names are used without further options.
#[test]
fn names_are_looked_up_where_dhcp_says() {
    let Some(kernel) = bench("exec-dhcp-names", &["dnsmasq", "python3"]) else {
        return;
    };
    loopback(&kernel.host);
    let more = format!(
        "--dhcp-range=192.0.2.50,192.0.2.60 --dhcp-leasefile={} --interface=tap0",
        kernel.folder.path("leases")
    );
    let _server = server(&kernel, &more);
    let library = kernel.folder.path(LIBRARY);
    let asks = "import socket; print(socket.gethostbyname('name.test'))";
    let line = [
        "exec",
        "--library",
        &library,
        "--link",
        "tap0",
        "--addr",
        "dhcp",
        "--",
        "python3",
        "-c",
        asks,
    ];
    let ended = kernel.weir_as_said(&line).end();
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "203.0.113.7\n"),
        "{ended:?}"
    );
}

/// Addresses need no server: the program then takes no link, which another command may have.
#[test]
fn addresses_in_place_of_names_start_no_host() {
    let Some(kernel) = bench("exec-no-host", &["python3"]) else {
        return;
    };
    loopback(&kernel.host);
    let asks = "
import os, socket

def has_link():
    found = (os.path.join('/proc/self/fd', fd) for fd in os.listdir('/proc/self/fd'))
    return any(os.path.lexists(fd) and os.readlink(fd).endswith('/net/tun') for fd in found)

for name in ('192.0.2.1', '2001:db8::1', None):
    print(socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)[0][4][1])
print(socket.getnameinfo(('192.0.2.1', 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV))
print(has_link())
try:
    socket.getaddrinfo('name.test', 80)
except socket.gaierror:
    print(has_link())
";
    let program = ["python3", "-c", asks];
    let ended = exec(&kernel, &["--dns", "198.51.100.1"], &program).end();
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), "80\n80\n80\n('192.0.2.1', '80')\nFalse\nTrue\n"),
        "{ended:?}"
    );
}
