//! Processes that share sockets, by fork, exec and `SCM_RIGHTS`.

use super::*;
use std::net::Shutdown;

const WORKERS: &str = include_str!("workers.py");
const SHARED: &str = include_str!("shared.py");

/// Bytes that depend on the seed (a multiplicative generator, Numerical Recipes).
fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Starts `workers.py` in this manner.
fn workers(kernel: &Bench, manner: &str, at: &str) -> Running {
    let script = kernel.folder.write("workers.py", WORKERS.as_bytes());
    let folder = kernel.folder.path("");
    exec(kernel, &[], &["python3", &script, manner, at, &folder])
}

/// Sends this on a connection and compares the echo.
fn check_reversed(stream: TcpStream, sent: &[u8]) {
    let mut sender = stream.try_clone().unwrap();
    let copy = sent.to_vec();
    let sends = thread::spawn(move || {
        sender.write_all(&copy).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    { stream }.read_to_end(&mut got).unwrap();
    sends.join().unwrap();
    got.reverse();
    assert!(got == sent, "{} bytes instead of {}", got.len(), sent.len());
}

/// The process that serves a connection.
fn process_of(stream: &mut TcpStream) -> rustix::process::Pid {
    stream.write_all(b"pid").unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.extend(byte);
    }
    let number = String::from_utf8(line).unwrap().parse().unwrap();
    rustix::process::Pid::from_raw(number).unwrap()
}

/// Sends a signal to the first process alone, not to all of its group.
fn signal(server: &Running, signal: Signal) {
    let first = rustix::process::Pid::from_raw(server.id() as i32).unwrap();
    rustix::process::kill_process(first, signal).unwrap();
}

/// Until the server has said in its file how a connection has ended.
fn said(kernel: &Bench) -> String {
    let path = kernel.folder.path("said");
    wait::until("a file of the server", || std::fs::exists(&path).unwrap());
    let said = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    said
}

/// Ends the connection by a RST.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn processes_share_sockets_in_every_manner() {
    let Some(kernel) = bench("exec-workers", &["python3"]) else {
        return;
    };
    for manner in [
        "fork",
        "prefork",
        "multiprocessing",
        "subprocess",
        "spawned",
        "inherited",
        "passed",
    ] {
        let server = workers(&kernel, manner, OURS[0]);
        drop(connect(&kernel, 4000));
        let sizes = [0, 1, 1000, 300_000, 2_000_000];
        thread::scope(|scope| {
            // A program for each connection takes its time.
            let rounds = match manner {
                "subprocess" | "spawned" | "inherited" => 1,
                _ => 3,
            };
            for round in 0..rounds {
                for (at, size) in sizes.into_iter().enumerate() {
                    let sent = bytes(round * 100 + at as u32, size);
                    let stream = connect(&kernel, 4000);
                    scope.spawn(move || check_reversed(stream, &sent));
                }
            }
        });
        server.signal_at_once(Signal::KILL);
        let ended = server.end();
        assert_eq!(ended.stderr, "", "{manner}");
    }
}

#[test]
fn parent_and_child_use_a_connection_in_turns() {
    let Some(kernel) = bench("exec-shared", &["python3"]) else {
        return;
    };
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    let script = kernel.folder.write("shared.py", SHARED.as_bytes());
    let native = kernel.run(&format!("python3 {script} {}", KERNEL[0]));
    let native = String::from_utf8(native).unwrap();
    let ended = exec(&kernel, &[], &["python3", &script, KERNEL[0]]).end();
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    assert_eq!(ended.stdout, native);
}

/// The connection of a killed process ends for its peer; other processes go on. A peer's RST is an
/// error in the process that serves it, once.
#[test]
fn ends_are_those_of_the_kernels() {
    let Some(kernel) = bench("exec-ends", &["python3"]) else {
        return;
    };
    let server = workers(&kernel, "prefork", OURS[0]);
    let [mut first, mut second] = [0, 1].map(|_| connect(&kernel, 4000));
    let [one, other] = [&mut first, &mut second].map(process_of);
    assert_ne!(one, other);
    // A killed worker.
    rustix::process::kill_process(one, Signal::KILL).unwrap();
    let began = Instant::now();
    let mut rest = Vec::new();
    // As in the kernel, which sends a FIN if all was read, or a RST.
    let _ = first.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(10) && rest.is_empty());
    // The peer of the other ends, and is served to its end.
    second.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    second.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"dip");
    let stream = connect(&kernel, 4000);
    check_reversed(stream, &bytes(1, 100_000));
    let mut stream = connect(&kernel, 4000);
    stream.write_all(b"reset").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    reset(stream);
    assert_eq!(said(&kernel), "ConnectionResetError b''");
    // The process that owns the sockets: those of others end with an error.
    let mut stream = connect(&kernel, 4000);
    stream.write_all(b"reset").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let began = Instant::now();
    signal(&server, Signal::KILL);
    assert_eq!(said(&kernel), "ConnectionResetError b''");
    assert!(began.elapsed() < Duration::from_secs(10));
    rustix::process::kill_process(other, Signal::KILL).unwrap();
}

/// The owner of sockets that its children serve stays until they have closed them.
#[test]
fn children_serve_on_when_their_parent_exits() {
    let Some(kernel) = bench("exec-orphans", &["python3"]) else {
        return;
    };
    let server = workers(&kernel, "orphans", OURS[1]);
    let began = Instant::now();
    let connect6 = || loop {
        match kernel.host.run(|| TcpStream::connect((OURS[1], 4000))) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < live::WAIT_MAX, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    let [mut first, mut second] = [0, 1].map(|_| connect6());
    let pids = [&mut first, &mut second].map(process_of);
    drop((first, second));
    thread::sleep(Duration::from_millis(2500));
    for seed in 0..5 {
        check_reversed(connect6(), &bytes(seed, 500_000));
    }
    for pid in pids {
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("other processes use"),
        "it says why it waits: {ended:?}"
    );
}

/// Of this user's programs, and of all users' for root.
#[test]
fn sockets_are_listed_with_their_processes() {
    let Some(kernel) = bench("exec-sockets", &["python3"]) else {
        return;
    };
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    let ready = kernel.folder.path("ready");
    let script = format!(
        "
import os, select, socket
listener = socket.create_server(('192.0.2.5', 4000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('192.0.2.5', 5353))
client = socket.create_connection(('192.0.2.1', 7), 10)
client.sendall(b'unread')
while not client.recv(6, socket.MSG_PEEK) == b'unread':
    pass
if os.fork() == 0:
    listener.settimeout(60)
    select.select([listener], [], [], 0)
    with open('{ready}.new', 'w') as file:
        file.write(str(os.getpid()))
    os.rename('{ready}.new', '{ready}')
    listener.accept()
    os._exit(0)
os.wait()
"
    );
    let program = exec(&kernel, &[], &["python3", "-c", &script]);
    wait::until("the program's file", || std::fs::exists(&ready).unwrap());
    let pid = u64::from(program.id());
    // Another name of the process's socket, by which it would be listed twice.
    let link = ["/run/user/65534/weir-exec", "/tmp/weir-exec-65534"]
        .into_iter()
        .find_map(|folder| {
            let link = format!("{folder}/{}", pid + 5_000_000);
            std::fs::hard_link(format!("{folder}/{pid}"), &link)
                .ok()
                .map(|()| link)
        });
    let as_root = Running::start(&kernel.host, common::weir([]), &["sockets", "--json"]);
    for list in [kernel.weir_as_said(&["sockets", "--json"]), as_root] {
        let all = list.end().json();
        let rows = all.as_array().unwrap().iter();
        let rows: Vec<_> = rows.filter(|row| row["pid"] == pid).collect();
        let row = |local: &str| {
            let found = rows.iter().find(|row| row["local"] == local);
            *found.unwrap_or_else(|| panic!("{local}: {rows:?}"))
        };
        let listener = row("192.0.2.5:4000");
        assert_eq!(
            (&listener["state"], &listener["shared"]),
            (&"listen".into(), &true.into())
        );
        let child: u64 = std::fs::read_to_string(&ready).unwrap().parse().unwrap();
        assert_eq!(listener["processes"], serde_json::json!([pid, child]));
        assert_eq!(row("192.0.2.5:5353")["protocol"], "udp");
        let client = rows.iter().find(|row| row["peer"] == "192.0.2.1:7");
        let client = client.unwrap();
        assert_eq!(client["state"], "established");
        assert_eq!(client["receive_queue"], 6);
        assert_eq!(client["shared"], false);
        assert_eq!(client["processes"], serde_json::json!([pid]));
        assert_eq!((rows.len(), &client["uid"]), (3, &65_534.into()));
    }
    std::fs::remove_file(link.expect("a folder of user nobody")).unwrap();
    let table = kernel.weir_as_said(&["sockets"]).end();
    assert!(table.stdout.contains("192.0.2.5:4000"), "{table:?}");
    assert!(
        table.stdout.contains(&format!("shared by {pid}, ")),
        "{table:?}"
    );
    drop(connect(&kernel, 4000));
    assert_eq!(program.end().code, Some(0));
    let after = kernel.weir_as_said(&["sockets", "--json"]).end().json();
    let mut rows = after.as_array().unwrap().iter();
    assert!(rows.all(|row| row["pid"] != pid), "{after}");
}

/// One that is stopped keeps the others from nothing, and is listed as what it is, after a limited time.
#[test]
fn a_process_that_does_not_answer_is_listed_so() {
    let Some(kernel) = bench("exec-silent", &["python3"]) else {
        return;
    };
    let library = kernel.folder.path(LIBRARY);
    let link = format!("shm:silent-{}", std::process::id());
    let script = "
import socket, sys
listener = socket.create_server((sys.argv[1], 4000))
print('listens', file=sys.stderr, flush=True)
listener.accept()
";
    let listens = |at: &str| {
        let address = format!("{at}/24");
        let options = [
            "exec",
            "--library",
            &library,
            "--link",
            &link,
            "--addr",
            &address,
        ];
        let program = ["--", "python3", "-c", script, at];
        kernel
            .weir_as_said(&[&options[..], &program].concat())
            .until("listens")
    };
    let (stopped, other) = (listens("192.0.2.1"), listens("192.0.2.2"));
    stopped.signal_at_once(Signal::STOP);
    let began = Instant::now();
    let list = kernel.weir_as_said(&["sockets", "--json"]).end();
    assert!(began.elapsed() < Duration::from_secs(30), "{list:?}");
    let pid = stopped.id();
    let said = format!("weir: process {pid} of user 65534 gave no answer: no answer within 2 s");
    assert_eq!(list.code, Some(0), "{list:?}");
    assert!(list.stderr.contains(&said), "{list:?}");
    let all = list.json();
    let of = |pid: u32| {
        let mut rows = all.as_array().unwrap().iter();
        rows.find(|row| row["pid"] == pid)
            .unwrap_or_else(|| panic!("{pid}: {all}"))
    };
    let silent = serde_json::json!({
        "pid": pid, "uid": 65_534, "command": "python3", "error": "no answer within 2 s"
    });
    assert_eq!(of(pid), &silent);
    assert_eq!(of(other.id())["local"], "192.0.2.2:4000");
    let table = kernel.weir_as_said(&["sockets"]).end();
    let mut lines = table.stdout.lines();
    let line = lines
        .find(|line| line.contains(&format!(" {pid} ")))
        .unwrap();
    assert!(line.ends_with("no answer"), "{table:?}");
    for program in [stopped, other] {
        program.signal_at_once(Signal::KILL);
        program.end();
    }
}

#[test]
fn nginx_serves_from_workers_and_reloads() {
    nginx_reloads("exec-nginx-workers", "");
}

/// Each worker has a listener of its own.
#[test]
fn nginx_shares_a_port_among_its_workers() {
    nginx_reloads("exec-nginx-reuseport", " reuseport");
}

fn nginx_reloads(name: &str, how: &str) {
    let Some(kernel) = bench(name, &["nginx", "curl"]) else {
        return;
    };
    let dir = kernel.folder.path("");
    let body = bytes(7, 1_500_000);
    kernel.folder.write("file", &body);
    let config = format!(
        "daemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/errors;
         events {{ worker_connections 512; }}
         http {{ access_log off; sendfile on; tcp_nopush on;
           client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
           uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
           server {{ listen 192.0.2.5:8080{how}; root {dir}; }} }}"
    );
    let config = kernel.folder.write("nginx.conf", config.as_bytes());
    let errors = kernel.folder.path("errors");
    let server = exec(&kernel, &[], &["nginx", "-e", &errors, "-c", &config]);
    drop(connect(&kernel, 8080));
    let fetch = |name: &str| {
        let out = kernel.folder.path(name);
        kernel.run(&format!(
            "curl -sSf -o {out} http://192.0.2.5:8080/file -o {out} http://192.0.2.5:8080/file"
        ));
        assert!(std::fs::read(&out).unwrap() == body);
    };
    let fetch = &fetch;
    thread::scope(|scope| {
        for name in ["one", "two"] {
            scope.spawn(move || (0..15).for_each(|_| fetch(name)));
        }
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(400));
            signal(&server, Signal::HUP);
        }
    });
    fetch("after");
    signal(&server, Signal::QUIT);
    let ended = server.end();
    let errors = std::fs::read_to_string(&errors).unwrap_or_default();
    assert_eq!(ended.code, Some(0), "{ended:?} {errors}");
    assert!(
        !errors.contains("[alert]") && !errors.contains("[emerg]"),
        "{errors}"
    );
}

/// Clients work on while the child writes, and what it writes is whole.
#[test]
fn redis_saves_in_the_background() {
    let Some(kernel) = bench(
        "exec-redis-save",
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
        // The child takes a while.
        "--rdb-key-save-delay",
        "200",
    ];
    let server = exec(&kernel, &["--stats"], &program);
    drop(connect(&kernel, 6379));
    let cli = |line: &str| {
        let said = kernel.run(&format!("redis-cli -h 192.0.2.5 {line}"));
        String::from_utf8(said).unwrap()
    };
    cli("debug populate 5000");
    cli("set key value");
    let mut stream = connect(&kernel, 6379);
    let mut ask = |line: &str| {
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = [0; 64];
        let count = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    assert_eq!(ask("PING\r\n"), "+PONG\r\n");
    // On a busy machine one may be over before the question.
    wait::until("a BGSAVE that is under way", || {
        let said = cli("bgsave");
        assert!(
            said.contains("started") || said.contains("in progress"),
            "{said}"
        );
        cli("info persistence").contains("rdb_bgsave_in_progress:1")
    });
    assert_eq!(ask("GET key\r\n"), "$5\r\nvalue\r\n");
    let bench = kernel.run("redis-benchmark -h 192.0.2.5 -t set,get -n 3000 -c 20 -q");
    let bench = String::from_utf8(bench).unwrap();
    assert!(
        bench.contains("GET:") && !bench.contains("Error"),
        "{bench}"
    );
    wait::until("the end of BGSAVE", || {
        cli("info persistence").contains("rdb_bgsave_in_progress:0")
    });
    assert!(cli("info persistence").contains("rdb_last_bgsave_status:ok"));
    assert_eq!(ask("PING\r\n"), "+PONG\r\n");
    kernel.output("redis-cli -h 192.0.2.5 shutdown nosave");
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    check_owner(&ended);
    // Another server reads what the child has written.
    let server = exec(&kernel, &[], &program);
    drop(connect(&kernel, 6379));
    assert_eq!(cli("get key"), "value\n");
    kernel.output("redis-cli -h 192.0.2.5 shutdown nosave");
    assert_eq!(server.end().code, Some(0));
}

/// Of threads together, of a forked child its own, and of a program that another one replaces.
#[test]
fn counts_are_of_each_process() {
    let Some(kernel) = bench("exec-counts", &["python3"]) else {
        return;
    };
    let script = "
import os, socket, sys, threading
def opens(count):
    for _ in range(count):
        socket.create_connection(listener.getsockname()[:2]).close()
listener = socket.create_server(('127.0.0.1', 0), backlog=100)
threads = [threading.Thread(target=opens, args=(5,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for count in (3, 2):
    child = os.fork()
    if child == 0:
        opens(count)
        if count == 2:
            os.execv('/bin/true', ['true'])
        os._exit(0)
    print(child, count)
    os.waitpid(child, 0)
print(os.getpid(), 21)
";
    let ended = exec(
        &kernel,
        &["--stats", "--loopback"],
        &["python3", "-c", script],
    )
    .end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 3);
    for line in ended.stdout.lines() {
        let (process, count) = line.split_once(' ').unwrap();
        let said = format!("process {process}: sockets of weir {count}, of the kernel 0\n");
        assert_eq!(ended.stderr.matches(&said).count(), 1, "{said}{ended:?}");
    }
}

/// An inner command's counts are not for the outer one's file.
#[test]
fn an_inner_command_has_its_own_place_for_counts() {
    let Some(kernel) = bench("exec-inner", &["python3"]) else {
        return;
    };
    let counts = kernel.folder.path("counts");
    let library = kernel.folder.path(LIBRARY);
    let link = format!("shm:inner-{}", std::process::id());
    let script = "import socket; socket.create_server(('198.51.100.5', 4000))";
    let inner = [
        env!("CARGO_BIN_EXE_weir"),
        "exec",
        "--library",
        &library,
        "--stats",
        "--link",
        &link,
        "--addr",
        "198.51.100.5/24",
        "--",
        "python3",
        "-c",
        script,
    ];
    let ended = exec(&kernel, &["--stats-file", &counts], &inner).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = "sockets of weir 1, of the kernel 0";
    assert!(ended.stderr.contains(said), "{ended:?}");
    let outer = std::fs::read_to_string(&counts).unwrap_or_default();
    assert!(!outer.contains(said), "{outer}");
}
