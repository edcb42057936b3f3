//! Processes that ask the one that has the link for sockets, and UDP sockets that processes share.

use super::*;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::net::TcpListener;

const GUESTS: &str = include_str!("guests.py");
const INHERITS: &str = include_str!("inherits.c");

/// Starts `guests.py` in this manner, with the kernel's echo as its peer.
fn guests(kernel: &Bench, manner: &str, more: &[&str]) -> Running {
    let script = kernel.folder.write("guests.py", GUESTS.as_bytes());
    let line = ["python3", &script, manner, KERNEL[0]];
    let line: Vec<&str> = line.into_iter().chain(more.iter().copied()).collect();
    exec(kernel, &[], &line)
}

fn echo(kernel: &Bench) -> Running {
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    kernel.server(&format!("python3 {peer}"), 7)
}

fn check(ended: &Ended, expected: &str) {
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), expected),
        "{ended:?}"
    );
}

/// What the script of [`calls_return_what_the_kernels_return`] prints in the child of a process
/// that has the link.
#[test]
fn calls_of_a_guest_return_what_the_kernels_return() {
    /// Lines that may differ. A connection's failure shows in two steps, and a RST as an end; the
    /// relay gathers no bytes, and looks at no address of a second bind; the peer keeps its name.
    const DIFFER: [&str; 6] = [
        "it fails: ",
        "reset: ",
        "get TCP_CORK: ",
        "bind again to a foreign address: ",
        "to a foreign address: ",
        "peer of a connection that is over: ",
    ];
    let Some(kernel) = bench("exec-guest-observe", &["python3"]) else {
        return;
    };
    let observe = kernel.folder.write("observe.py", OBSERVE.as_bytes());
    let _peer = echo(&kernel);
    let parent = "
import socket, subprocess, sys
listener = socket.create_server(('192.0.2.5', 4999))
sys.exit(subprocess.run(sys.argv[1:]).returncode)
";
    for (ours, at) in OURS.into_iter().zip(KERNEL) {
        let native = kernel.run(&format!("python3 {observe} {at} {at} relayed"));
        let native = String::from_utf8(native).unwrap();
        let program = [
            "python3", "-c", parent, "python3", &observe, ours, at, "relayed",
        ];
        let ended = exec(&kernel, &["--stats"], &program).end();
        assert_eq!(ended.code, Some(0), "{ended:?}\nnative:\n{native}");
        let pairs = native.lines().zip(ended.stdout.lines());
        let may = |line: &str| DIFFER.iter().any(|start| line.starts_with(start));
        let differ: Vec<_> = pairs
            .filter(|(native, weirs)| native != weirs && !may(native))
            .collect();
        assert!(differ.is_empty(), "(kernel, guest) at {at}: {differ:#?}");
        assert_eq!(native.lines().count(), ended.stdout.lines().count());
        check_owner(&ended);
    }
}

/// With 1,000 connections one after the other, and attempts that are refused or abandoned, the owner
/// keeps no descriptor.
#[test]
fn a_child_opens_many_connections() {
    let Some(kernel) = bench("exec-guest-many", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = guests(&kernel, "many", &[]).end();
    check(&ended, "0\nleft: 0\n0\n0\nleft: 0\n");
}

#[test]
fn a_greedy_child_leaves_the_owner_its_part() {
    let Some(kernel) = bench("exec-guest-limit", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = guests(&kernel, "limit", &[]).end();
    check(&ended, "ENFILE True\nthe owner goes on\n0\n");
}

#[test]
fn a_process_outlives_the_owner_of_its_sockets() {
    let Some(kernel) = bench("exec-guest-killed", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = guests(&kernel, "killed", &[]).end();
    check(&ended, "ECONNRESET\nENETDOWN\nagain, soon: True\n");
}

/// The peer sees the options, and the reset that `SO_LINGER` asks for.
#[test]
fn options_of_a_child_reach_its_connection() {
    let Some(kernel) = bench("exec-guest-options", &["python3"]) else {
        return;
    };
    let listener = kernel.host.run(|| TcpListener::bind((KERNEL[0], 4001)));
    let listener = listener.unwrap();
    let program = guests(&kernel, "options", &[]);
    let (mut stream, _) = listener.accept().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut got = [0; 7];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"the end");
    stream.write_all(b"!").unwrap();
    let error = stream.read(&mut got).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    check(&program.end(), "state 1 smss True\n1\n33\n17\n40\n0\n");
}

#[test]
fn processes_share_udp_sockets_and_open_their_own() {
    let Some(kernel) = bench("exec-guest-udp", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = guests(&kernel, "udp", &[]).end();
    check(&ended, "0\nrefused\nEADDRINUSE\n0\n0\n");
}

#[test]
fn a_wait_goes_on_when_another_process_moves_the_socket() {
    let Some(kernel) = bench("exec-guest-waits", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = guests(&kernel, "waits", &[]).end();
    check(&ended, "b'echo'\nb'echo'\n");
}

/// A process for each datagram, as Python's library does it.
#[test]
fn a_forking_udp_server_answers() {
    let Some(kernel) = bench("exec-forking-udp", &["python3"]) else {
        return;
    };
    let script = "
import os, socketserver
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        sock.sendto(data[::-1] + b' by %d' % (os.getpid() != parent), self.client_address)
parent = os.getpid()
socketserver.ForkingUDPServer(('192.0.2.5', 4000), Handler).serve_forever()
";
    let server = exec(&kernel, &[], &["python3", "-c", script]);
    let socket = kernel
        .host
        .run(|| std::net::UdpSocket::bind((KERNEL[0], 0)));
    let socket = socket.unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    socket.connect((OURS[0], 4000)).unwrap();
    let mut got = [0; 100];
    let ask = |word: &[u8], got: &mut [u8]| {
        // Until it is there a port is closed, or the answer is late.
        let began = Instant::now();
        loop {
            let _ = socket.send(word);
            if let Ok(count) = socket.recv(got) {
                return got[..count].to_vec();
            }
            assert!(began.elapsed() < live::WAIT_MAX, "no answer");
            thread::sleep(Duration::from_millis(20));
        }
    };
    ask(b"first", &mut got);
    // Late answers to the first word.
    while socket.recv(&mut got).is_ok() {}
    for number in 0..20 {
        let word = format!("word {number}");
        let mut expected: String = word.chars().rev().collect();
        expected += " by 1";
        assert_eq!(ask(word.as_bytes(), &mut got), expected.as_bytes());
    }
    server.signal_at_once(Signal::KILL);
    assert_eq!(server.end().stderr, "");
}

#[test]
fn a_new_program_inherits_sockets_however_it_is_started() {
    let Some(kernel) = bench("exec-inherits", &["python3", "cc"]) else {
        return;
    };
    let source = kernel.folder.write("inherits.c", INHERITS.as_bytes());
    let program = kernel.folder.path("inherits");
    kernel.run(&format!("cc -O1 -w -o {program} {source}"));
    let _peer = echo(&kernel);
    let ended = exec(&kernel, &[], &[&program, KERNEL[0]]).end();
    let (_, ways) = INHERITS.split_once("ways[] = {").unwrap();
    let (ways, _) = ways.split_once('}').unwrap();
    let twice = |way: &str| {
        let way = way.trim_matches('"');
        format!("{way}\n{way}\n")
    };
    let mut expected: String = ways.split(", ").map(twice).collect();
    expected += "replaced\n";
    check(&ended, &expected);
    let said = ended.stderr.lines().count();
    assert_eq!(said, 1, "{ended:?}");
    assert!(
        ended.stderr.contains("runs another program in its place"),
        "{ended:?}"
    );
}

/// Neither of them is the other's parent.
#[test]
fn programs_of_one_shell_share_the_link() {
    let Some(kernel) = bench("exec-siblings", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let client = "
import socket
for _ in range(20):
    stream = socket.create_connection(('192.0.2.1', 7), 20)
    stream.sendall(b'x' * 1000)
    got = b''
    while len(got) < 1000:
        got += stream.recv(1000)
    stream.close()
print('done')
";
    let client = kernel.folder.write("client.py", client.as_bytes());
    let line = format!("for at in 1 2 3 4; do python3 {client} & done; wait");
    let ended = exec(&kernel, &[], &["sh", "-c", &line]).end();
    check(&ended, &"done\n".repeat(4));
}

/// Another user's process does not get in, though it knows the secret; what is not a request ends
/// the connection and nothing else.
#[test]
fn strangers_do_not_harm_the_owner() {
    let Some(kernel) = bench("exec-guest-hostile", &["python3"]) else {
        return;
    };
    let _peer = echo(&kernel);
    let file = kernel.folder.path("pass");
    let program = guests(&kernel, "hostile", &[&file]);
    wait::until("the program's file", || std::fs::exists(&file).unwrap());
    let pass = std::fs::read_to_string(&file).unwrap();
    let byte = |at: usize| u8::from_str_radix(&pass[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..32).map(byte).collect();
    // Root is not the owner's user.
    let mut name = b"weir-door".to_vec();
    name.extend(&bytes[..16]);
    let answer = kernel.host.run(|| {
        let kind = SocketType::SEQPACKET;
        let door = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
        let at = SocketAddrUnix::new_abstract_name(&name).unwrap();
        rustix::net::connect(&door, &at).unwrap();
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&door, &bytes[16..], flags);
        let mut room = [0; 4];
        rustix::net::recv(&door, &mut room, rustix::net::RecvFlags::empty())
    });
    let is_refused = matches!(answer, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET));
    assert!(is_refused, "{answer:?}");
    std::fs::remove_file(&file).unwrap();
    let expected =
        "wrong True True\n2\n2\n2\n0\nit is closed\nthe oldest True\nENOBUFS 1024\n0\nleft: 0\n0\n";
    let ended = program.end();
    check(&ended, expected);
}

/// Workers open connections to another server while others take their place.
#[test]
fn nginx_proxies_from_workers_and_reloads() {
    let Some(kernel) = bench("exec-nginx-proxy", &["nginx", "curl", "python3"]) else {
        return;
    };
    let dir = kernel.folder.path("");
    let body: Vec<u8> = (0..700_000_u32).map(|at| ((at * 13) >> 5) as u8).collect();
    kernel.folder.write("file", &body);
    let line = format!("python3 -m http.server 8000 --bind 192.0.2.1 --directory {dir}");
    let _upstream = kernel.server(&line, 8000);
    let config = format!(
        "daemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/errors;
         events {{ worker_connections 512; }}
         http {{ access_log off; proxy_buffering off;
           client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
           uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
           server {{ listen 192.0.2.5:8080;
             location / {{ proxy_pass http://192.0.2.1:8000; }} }} }}"
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
    let first = rustix::process::Pid::from_raw(server.id() as i32).unwrap();
    let tell = |signal| rustix::process::kill_process(first, signal).unwrap();
    thread::scope(|scope| {
        for name in ["one", "two"] {
            scope.spawn(move || (0..10).for_each(|_| fetch(name)));
        }
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(500));
            tell(Signal::HUP);
        }
    });
    fetch("after");
    tell(Signal::QUIT);
    let ended = server.end();
    let errors = std::fs::read_to_string(&errors).unwrap_or_default();
    assert_eq!(ended.code, Some(0), "{ended:?} {errors}");
    let wrong = ["[alert]", "[emerg]", "[crit]", "[error]"];
    assert!(!wrong.iter().any(|word| errors.contains(word)), "{errors}");
}
