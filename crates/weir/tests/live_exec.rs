//! `weir exec`: unmodified programs with weir's sockets, over a TAP interface, without privilege;
//! the kernel's own sockets, in the same namespace, are the peer and the oracle.

#[path = "exec/all.rs"]
mod all;
#[path = "exec/cancel.rs"]
mod cancel;
mod common;
#[path = "exec/control.rs"]
mod control;
#[path = "exec/dnsmasq.rs"]
mod dnsmasq;
#[path = "exec/fork.rs"]
mod fork;
#[path = "exec/guests.rs"]
mod guests;
#[path = "exec/limits.rs"]
mod limits;
#[path = "common/live.rs"]
mod live;
#[path = "exec/names.rs"]
mod names;
#[path = "exec/programs.rs"]
mod programs;
#[path = "exec/random.rs"]
mod random;
#[path = "exec/sets.rs"]
mod sets;
#[path = "exec/shared.rs"]
mod shared;
#[path = "exec/states.rs"]
mod states;
#[path = "exec/suites.rs"]
mod suites;
#[path = "common/tap.rs"]
mod tap;

use common::Folder;
use live::{Ended, Running, open_folder};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant};
use tap::{HOST, KERNEL, Kernel, OURS, kernel_with};
use weir_lab::net::Signal;
use weir_lab::wait;

const PEER: &str = include_str!("exec/peer.py");
const OBSERVE: &str = include_str!("exec/observe.py");
const SIGNALS: &str = include_str!("exec/signals.c");

/// A kernel, and a folder that user nobody can use, with the library that `weir exec` loads.
struct Bench {
    kernel: Kernel,
    folder: Folder,
}

impl Deref for Bench {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        &self.kernel
    }
}

const LIBRARY: &str = "libweir_exec.so";

/// `None` without root, the driver or one of these programs.
fn bench(name: &str, programs: &[&str]) -> Option<Bench> {
    let kernel = kernel_with(programs)?;
    let folder = open_folder(name);
    // Cargo puts it beside the test; user nobody may not go there.
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut places = folders.map(|folder| folder.join(LIBRARY));
    let found = places.find(|path| path.exists());
    let found = found.unwrap_or_else(|| panic!("{LIBRARY} is not beside {}", test.display()));
    std::fs::copy(found, folder.path(LIBRARY)).unwrap();
    Some(Bench { kernel, folder })
}

/// Runs a program with weir's sockets, as user nobody; `options` are of `weir exec`.
fn exec(kernel: &Bench, options: &[&str], program: &[&str]) -> Running {
    let library = kernel.folder.path(LIBRARY);
    let head = ["exec", "--library", &library];
    let head = head.iter().chain(options).chain(&HOST);
    let all: Vec<&str> = head.chain(&["--"]).chain(program).copied().collect();
    kernel.weir_as_said(&all)
}

/// A connection from the kernel to the program, once the program accepts it.
fn connect(kernel: &Kernel, port: u16) -> TcpStream {
    let began = Instant::now();
    loop {
        match kernel.host.run(|| TcpStream::connect((OURS[0], port))) {
            Ok(stream) => {
                let limit = Some(Duration::from_secs(20));
                stream.set_read_timeout(limit).unwrap();
                return stream;
            }
            Err(error) => assert!(began.elapsed() < live::WAIT_MAX, "port {port}: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Fails unless at least nine of ten Internet sockets were weir's.
fn check_owner(ended: &Ended) {
    let mut counts = [0_u64; 2];
    for line in ended.stderr.lines() {
        let Some((_, rest)) = line.split_once("sockets of weir ") else {
            continue;
        };
        let (weirs, kernels) = rest.split_once(", of the kernel ").unwrap();
        counts[0] += weirs.parse::<u64>().unwrap();
        counts[1] += kernels.parse::<u64>().unwrap();
    }
    assert!(counts[0] > 0 && counts[0] >= 9 * counts[1], "{ended:?}");
}

/// What a script prints on the kernel's sockets and on weir's is the same.
#[test]
fn calls_return_what_the_kernels_return() {
    let Some(kernel) = bench("exec-observe", &["python3"]) else {
        return;
    };
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let observe = kernel.folder.write("observe.py", OBSERVE.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    for (ours, at) in OURS.into_iter().zip(KERNEL) {
        let native = kernel.run(&format!("python3 {observe} {at} {at}"));
        let native = String::from_utf8(native).unwrap();
        let program = ["python3", &observe, ours, at];
        let ended = exec(&kernel, &["--stats"], &program).end();
        assert_eq!(ended.code, Some(0), "{ended:?}\nnative:\n{native}");
        let pairs = native.lines().zip(ended.stdout.lines());
        let differ: Vec<_> = pairs.filter(|(native, weirs)| native != weirs).collect();
        assert!(differ.is_empty(), "(kernel, weir) at {at}: {differ:#?}");
        assert_eq!(native.lines().count(), ended.stdout.lines().count());
        check_owner(&ended);
    }
}

/// As above, with both ends in one process: addresses of loopback that weir has.
#[test]
fn loopback_addresses_can_be_weirs() {
    let Some(kernel) = bench("exec-loopback", &["python3"]) else {
        return;
    };
    let script = "
import socket, threading
for family, at in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    listener = socket.create_server((at, 0), family=family)
    def serve():
        connection, _ = listener.accept()
        while bytes_ := connection.recv(65536):
            connection.sendall(bytes_)
        connection.close()
    threading.Thread(target=serve).start()
    client = socket.create_connection(listener.getsockname()[:2], 5)
    whole = bytes(range(256)) * 4000
    threading.Thread(target=lambda: (client.sendall(whole), client.shutdown(1))).start()
    got = b''
    while part := client.recv(65536):
        got += part
    print(got == whole)
    a, b = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
    a.bind((at, 0))
    a.settimeout(5)
    b.sendto(b'datagram', a.getsockname())
    print(a.recv(100))
";
    for options in [&["--stats", "--loopback"][..], &["--stats"]] {
        let ended = exec(&kernel, options, &["python3", "-c", script]).end();
        let expected = "True\nb'datagram'\n".repeat(2);
        assert_eq!(
            (ended.code, &ended.stdout),
            (Some(0), &expected),
            "{ended:?}"
        );
        if options.len() == 2 {
            check_owner(&ended);
        } else {
            assert!(ended.stderr.contains("sockets of weir 0,"), "{ended:?}");
        }
    }
}

#[test]
fn clients_and_servers_run_unmodified() {
    let Some(kernel) = bench("exec-http", &["python3", "curl"]) else {
        return;
    };
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    kernel.folder.write("file", &body);
    let site = kernel.folder.path("");
    let out = kernel.folder.path("out");
    let line = format!("python3 -m http.server 8000 --bind :: --directory {site}");
    let server = kernel.server(&line, 8000);
    for at in ["192.0.2.1", "[2001:db8::1]"] {
        let url = format!("http://{at}:8000/file");
        let ended = exec(&kernel, &["--stats"], &["curl", "-sSf", "-o", &out, &url]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(std::fs::read(&out).unwrap() == body, "{at}");
        check_owner(&ended);
    }
    // The program's status is that of the command: curl's for an HTTP error, then for a refusal.
    for (url, status) in [
        ("http://192.0.2.1:8000/missing", 22),
        ("http://192.0.2.1:81/", 7),
    ] {
        let ended = exec(&kernel, &[], &["curl", "-sf", url]).end();
        assert_eq!(ended.code, Some(status), "{ended:?}");
    }
    drop(server);
    let program = ["python3", "-m", "http.server", "8001", "--directory", &site];
    let server = exec(&kernel, &[], &program);
    drop(connect(&kernel, 8001));
    kernel.run(&format!("curl -sSf -o {out} http://192.0.2.5:8001/file"));
    assert!(std::fs::read(&out).unwrap() == body);
    // The signal itself ends Python, which prints no counts then.
    server.signal_at_once(Signal::TERM);
    assert_eq!(server.end().code, None);
}

#[test]
fn iperf3_measures_both_ways() {
    let Some(kernel) = bench("exec-iperf3", &["iperf3"]) else {
        return;
    };
    let _server = kernel.server("iperf3 -s", 5201);
    for way in [&[][..], &["-R"], &["-u", "-b", "20M"]] {
        let mut program = vec!["iperf3", "-c", "192.0.2.1", "-t", "1", "-J"];
        program.extend(way);
        let began = Instant::now();
        loop {
            let ended = exec(&kernel, &["--stats"], &program).end();
            // The server ends its last test a moment later than the client.
            if ended.stdout.contains("the server is busy") && began.elapsed() < live::WAIT_MAX {
                continue;
            }
            assert_eq!(ended.code, Some(0), "{way:?}: {ended:?}");
            check_owner(&ended);
            let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
            let sum = &report["end"];
            let sum = sum.get("sum_received").unwrap_or(&sum["sum"]);
            let bytes = sum["bytes"].as_u64().unwrap();
            assert!(bytes > 1_000_000, "{way:?}: {report}");
            break;
        }
    }
}

#[test]
fn redis_serves_a_benchmark() {
    let Some(kernel) = bench(
        "exec-redis",
        &["redis-server", "redis-benchmark", "redis-cli"],
    ) else {
        return;
    };
    let dir = kernel.folder.path("");
    let program = [
        "redis-server",
        "--bind",
        "192.0.2.5",
        "--protected-mode",
        "no",
        "--dir",
        &dir,
        "--save",
        "",
    ];
    let server = exec(&kernel, &["--stats"], &program);
    drop(connect(&kernel, 6379));
    let bench = "redis-benchmark -h 192.0.2.5 -t set,get -n 5000 -c 50 -q";
    let said = String::from_utf8(kernel.run(bench)).unwrap();
    assert!(said.contains("GET:") && !said.contains("Error"), "{said}");
    // The child of a fork that writes a file has no part in the sockets.
    kernel.run("redis-cli -h 192.0.2.5 set key value");
    kernel.run("redis-cli -h 192.0.2.5 bgsave");
    let got = kernel.run("redis-cli -h 192.0.2.5 get key");
    assert_eq!(got, b"value\n");
    kernel.output("redis-cli -h 192.0.2.5 shutdown nosave");
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    check_owner(&ended);
}

#[test]
fn nginx_serves_files_from_one_process() {
    let Some(kernel) = bench("exec-nginx", &["nginx", "curl"]) else {
        return;
    };
    let dir = kernel.folder.path("");
    let body: Vec<u8> = (0..2_000_000_u32)
        .map(|at| ((at * 11) >> 4) as u8)
        .collect();
    kernel.folder.write("file", &body);
    let config = format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/errors;
         events {{ worker_connections 512; }}
         http {{ access_log off; sendfile on; tcp_nopush on;
           client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
           uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
           server {{ listen 192.0.2.5:8080; root {dir}; }} }}"
    );
    let config = kernel.folder.write("nginx.conf", config.as_bytes());
    let errors = kernel.folder.path("errors");
    let program = ["nginx", "-e", &errors, "-c", &config];
    let server = exec(&kernel, &["--stats"], &program);
    drop(connect(&kernel, 8080));
    let out = kernel.folder.path("out");
    // Twice on one connection, and on another.
    let url = "http://192.0.2.5:8080/file";
    for urls in [
        format!("-o {out} {url} -o {out} {url}"),
        format!("-o {out} {url}"),
    ] {
        std::fs::write(&out, "").unwrap();
        kernel.run(&format!("curl -sSf {urls}"));
        assert!(std::fs::read(&out).unwrap() == body);
    }
    server.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Nginx has made its error log its standard error.
    let stderr = std::fs::read_to_string(&errors).unwrap();
    check_owner(&Ended { stderr, ..ended });
}

/// A killed server's peers get nothing, but nothing else is left behind: the next one has the
/// link at once.
#[test]
fn a_signal_ends_the_program_and_frees_the_link() {
    let Some(kernel) = bench("exec-signal", &["python3"]) else {
        return;
    };
    let script = "
import socket
listener = socket.create_server(('192.0.2.5', 4000))
while True:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100))
";
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM] {
        let server = exec(&kernel, &[], &["python3", "-c", script]);
        let mut stream = connect(&kernel, 4000);
        stream.write_all(b"echo").unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"echo");
        // Python handles neither, so that the signal itself ends it.
        server.signal_at_once(signal);
        assert_eq!(server.end().code, None, "{signal:?}");
    }
}

/// Whatever descriptors other threads open while the host starts stay theirs.
#[test]
fn descriptors_of_other_threads_can_be_closed() {
    let Some(kernel) = bench("exec-threads", &["python3"]) else {
        return;
    };
    let script = "
import os, socket, threading
done, failed = False, []
def opens():
    while not done:
        fds = [os.open('/dev/null', os.O_RDONLY) for _ in range(50)] + list(os.pipe())
        for fd in fds:
            try:
                os.close(fd)
            except OSError as error:
                failed.append(error.errno)
threads = [threading.Thread(target=opens) for _ in range(4)]
for thread in threads:
    thread.start()
listener = socket.create_server(('192.0.2.5', 4000))
done = True
for thread in threads:
    thread.join()
print(failed)
";
    for _ in 0..5 {
        let ended = exec(&kernel, &[], &["python3", "-c", script]).end();
        assert_eq!((ended.code, &*ended.stdout), (Some(0), "[]\n"), "{ended:?}");
    }
}

/// The link is free when the program has ended, however long a child of its lives.
#[test]
fn a_child_does_not_keep_the_link() {
    let Some(kernel) = bench("exec-child", &["python3"]) else {
        return;
    };
    let lives = kernel.folder.write("lives", b"");
    let script = format!(
        "
import os, socket, time
listener = socket.create_server(('192.0.2.5', 4000))
if os.fork() == 0:
    nothing = os.open('/dev/null', os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    while os.path.exists('{lives}'):
        time.sleep(0.05)
    os._exit(0)
"
    );
    let again = "import socket; print(socket.create_server(('192.0.2.5', 4000)).fileno() > 0)";
    let first = exec(&kernel, &[], &["python3", "-c", &script]).end();
    let second = exec(&kernel, &[], &["python3", "-c", again]).end();
    std::fs::remove_file(&lives).unwrap();
    assert_eq!(first.code, Some(0), "{first:?}");
    assert_eq!(second.stdout, "True\n", "{second:?}");
}

/// Also a connection that another thread waits for data of.
#[test]
fn peers_see_the_end_when_the_program_exits() {
    let Some(kernel) = bench("exec-exit", &["python3"]) else {
        return;
    };
    let script = "
import os, socket, sys, threading
listener = socket.create_server(('192.0.2.5', 4000))
connection, _ = listener.accept()
def reads():
    connection.sendall(connection.recv(1))
    connection.recv(1)
thread = threading.Thread(target=reads, daemon=True)
thread.start()
sys.stdin.read()
os._exit(0)
";
    let script = kernel.folder.write("exits.py", script.as_bytes());
    let library = kernel.folder.path(LIBRARY);
    let mut command = weir_lab::net::unprivileged::command(env!("CARGO_BIN_EXE_weir"));
    command.args(["exec", "--library", &library]).args(HOST);
    command.args(["--", "python3", &script]);
    command.stdin(std::process::Stdio::piped());
    let mut program = kernel.host.spawn(command).unwrap();
    let mut stream = connect(&kernel, 4000);
    stream.write_all(b"x").unwrap();
    let mut bytes = [0; 2];
    assert_eq!(stream.read(&mut bytes).unwrap(), 1);
    // The end of its input: now the thread waits, or will in a moment.
    thread::sleep(Duration::from_millis(100));
    drop(program.child_mut().stdin.take());
    assert_eq!(stream.read(&mut bytes).unwrap(), 0);
    program.wait(live::WAIT_MAX).unwrap().expect("it ends");
}

/// Whenever a handler runs: at once, or when the call that it interrupts has left weir.
#[test]
fn handlers_run_with_their_masks_and_a_context() {
    let Some(kernel) = bench("exec-handlers", &["python3", "cc"]) else {
        return;
    };
    let source = kernel.folder.write("signals.c", SIGNALS.as_bytes());
    let program = kernel.folder.path("signals");
    kernel.run(&format!("cc -O1 -o {program} {source}"));
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    let ended = exec(&kernel, &["--stats"], &[&program, "192.0.2.1", "7"]).end();
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "ran 0\n"),
        "{ended:?}"
    );
    check_owner(&ended);
}

/// By one line, in which only the word changes. The host's counts show its mode.
#[test]
fn each_stack_carries_the_program() {
    let Some(kernel) = bench("exec-stack", &["python3"]) else {
        return;
    };
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    let script = "
import socket
stream = socket.create_connection(('192.0.2.1', 7), 10)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.settimeout(10)
datagrams.connect(('192.0.2.1', 7))
for number in range(50):
    for peer in (stream, datagrams):
        peer.send(b'ping')
        assert peer.recv(4) == b'ping'
print('done')
";
    for stack in ["sys", "mux", "opt"] {
        let options = ["--stack", stack, "--stats"];
        let ended = exec(&kernel, &options, &["python3", "-c", script]).end();
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(0), "done\n"),
            "{ended:?}"
        );
        if stack == "sys" {
            assert_eq!(ended.stderr, "", "the library is not loaded");
            continue;
        }
        check_owner(&ended);
        let (_, counts) = ended.stderr.split_once("by a header filter ").unwrap();
        let (fast, _) = counts.split_once(',').unwrap();
        let fast: u64 = fast.parse().unwrap();
        assert_eq!(fast >= 50, stack == "opt", "{stack}: {ended:?}");
        assert_eq!(fast == 0, stack == "mux", "{stack}: {ended:?}");
    }
}

#[test]
fn what_cannot_work_is_refused_at_once() {
    let Some(kernel) = bench("exec-refused", &["python3"]) else {
        return;
    };
    for (options, program, status, why) in [
        (&[][..], &["no-such-program-of-weir"][..], 2, "no program"),
        (&["--shards", "2"], &["true"], 2, "one stack"),
        (&["--stack", "fast"], &["true"], 2, "'fast'"),
        (
            &["--gateway", "198.51.100.1"],
            &["true"],
            2,
            "not in a network of this host",
        ),
        (&[], &["/etc/hostname"], 2, "neither an ELF program"),
    ] {
        let ended = exec(&kernel, options, program).end();
        assert_eq!(ended.code, Some(status), "{ended:?}");
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
    }
    let all = ["exec", "--stack", "mux", "--pcap", "--", "true"];
    let ended = kernel.weir_as_said(&all).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--link"), "{ended:?}");
    let library = kernel.folder.path(LIBRARY);
    let all = [
        "exec",
        "--library",
        &library,
        "--link",
        "tap:tap7",
        "--addr",
        "192.0.2.6/24",
        "--",
        "true",
    ];
    let ended = kernel.weir_as_said(&all).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("ip tuntap add dev tap7"), "{ended:?}");
    // A program without sockets does not take the link.
    let ended = exec(&kernel, &["--stats"], &["true"]).end();
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    // A connection by its first data would be one of the kernel's.
    let fast = "
import errno, socket
try:
    socket.socket().sendto(b'x', socket.MSG_FASTOPEN, ('192.0.2.1', 7))
except OSError as error:
    print(error.errno == errno.EOPNOTSUPP)
";
    let ended = exec(&kernel, &[], &["python3", "-c", fast]).end();
    assert_eq!(ended.stdout, "True\n", "{ended:?}");
    // A link that a program of another `weir exec` has.
    let script = "import socket; print(socket.create_server(('192.0.2.5', 4000)).accept())";
    let _first = exec(&kernel, &[], &["python3", "-c", script]);
    wait::until("the first program's address", || kernel.ping(OURS[0], 10));
    let ended = exec(&kernel, &[], &["python3", "-c", script]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("another program has it open"),
        "{ended:?}"
    );
}

/// A file has the host, and rules of which sockets stay the kernel's; options say the same file.
#[test]
fn a_file_says_which_sockets_are_weirs() {
    let Some(kernel) = bench("exec-config", &["python3"]) else {
        return;
    };
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    let library = kernel.folder.path(LIBRARY);
    let options = ["exec", "--library", &library, "--print"];
    let options: Vec<&str> = options.into_iter().chain(HOST).collect();
    let printed = kernel.weir_as_said(&options).end();
    assert_eq!(printed.code, Some(0), "{printed:?}");
    // The kernel's socket comes from the kernel's address, weir's from the host's.
    let script = "
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    peer = socket.socket(socket.AF_INET, kind)
    peer.settimeout(10)
    peer.connect(('192.0.2.1', 7))
    peer.send(b'x')
    assert peer.recv(1) == b'x'
    print(peer.getsockname()[0])
";
    let rule = "\n[[socket]]\nowner = 'kernel'\nprotocol = 'udp'\nports = '7'\n";
    for (rules, expected) in [
        ("", "192.0.2.5\n192.0.2.5\n"),
        (rule, "192.0.2.5\n192.0.2.1\n"),
    ] {
        let text = format!("{}{rules}", printed.stdout);
        let file = kernel.folder.write("exec.toml", text.as_bytes());
        let line = ["exec", "--library", &library, "--config", &file, "--"];
        let line: Vec<&str> = line.into_iter().chain(["python3", "-c", script]).collect();
        let ended = kernel.weir_as_said(&line).end();
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(0), expected),
            "{ended:?}"
        );
    }
    for (text, why) in [
        (
            printed.stdout.replace("192.0.2.5/24", "192.0.2.5/99"),
            "exec.toml:2:",
        ),
        (
            printed.stdout.replace("\"tap0\"", "\"tap9\""),
            "exec.toml: ",
        ),
    ] {
        let file = kernel.folder.write("exec.toml", text.as_bytes());
        let line = ["exec", "--library", &library, "--config", &file, "true"];
        let ended = kernel.weir_as_said(&line).end();
        assert!(ended.code == Some(1) || ended.code == Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
    }
}

/// A set-user-ID program of another user, as an ordinary user runs it.
#[test]
fn programs_with_other_rights_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(kernel) = bench("exec-setuid", &["true"]) else {
        return;
    };
    let path = kernel.folder.path("true");
    std::fs::copy("/bin/true", &path).unwrap();
    for (mode, why) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let ended = exec(&kernel, &[], &[&path]).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
}

/// Waits for a connection, and prints the error.
const AWAITS: &str = "
import socket, sys
listener = socket.create_server(('0.0.0.0', 7000))
print('listens', file=sys.stderr, flush=True)
try:
    listener.accept()
except OSError as error:
    print(error.errno)
try:
    socket.create_connection(('192.0.2.1', 7), 5)
except OSError as error:
    print(error.errno)
";

/// The application's errors say nothing of the interface that was removed.
#[test]
fn the_end_of_the_link_is_said_once() {
    let Some(kernel) = bench("exec-link-gone", &["python3"]) else {
        return;
    };
    let running = exec(&kernel, &[], &["python3", "-c", AWAITS]).until("listens");
    kernel.host.device("tap0").unwrap().delete().unwrap();
    let ended = running.end();
    let said = "weir exec: tap0 is gone: it carries nothing any more\n";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{ended:?}");
    // What waits ends with ENETDOWN; afterwards there is no route (ENETUNREACH).
    assert_eq!(ended.stdout, "100\n101\n", "{ended:?}");
}

#[test]
fn an_address_that_another_station_has_is_said() {
    let Some(kernel) = bench("exec-duplicate", &["python3", "ip"]) else {
        return;
    };
    let running = exec(&kernel, &[], &["python3", "-c", AWAITS]).until("listens");
    kernel.run("ip addr add 192.0.2.5/32 dev tap0");
    kernel.host.run(|| {
        let socket = UdpSocket::bind("192.0.2.5:0").unwrap();
        socket.send_to(b"x", "192.0.2.99:9").unwrap();
    });
    let running = running.until("weir exec: 192.0.2.5 on tap0 is ");
    let said = running.said();
    assert!(said.contains("'s too: it is not used any more"), "{said}");
    running.signal(Signal::KILL);
}

#[test]
fn a_wait_for_an_address_is_not_silent() {
    let Some(kernel) = bench("exec-waits", &["python3"]) else {
        return;
    };
    let library = kernel.folder.path(LIBRARY);
    let line = ["exec", "--library", &library, "--link", "tap0", "--addr"];
    let program = ["dhcp", "--", "python3", "-c", AWAITS];
    let running = kernel.weir_as_said(&[&line[..], &program].concat());
    let running = running.until("waits until a server or router assigns an address, up to 20 s");
    running.signal(Signal::KILL);
}
