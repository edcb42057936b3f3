//! `--all`: programs that load no library.

use super::*;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;

const STATIC: &str = include_str!("static.c");
const GO: &str = include_str!("program.go");

/// A bench with the statically linked program, and its path.
fn with_static(name: &str) -> Option<(Bench, String)> {
    let kernel = bench(name, &["cc", "python3"])?;
    let source = kernel.folder.write("static.c", STATIC.as_bytes());
    let program = kernel.folder.path("static");
    kernel.run(&format!("cc -static -pthread -O1 -w -o {program} {source}"));
    Some((kernel, program))
}

fn echo(kernel: &Bench) -> Running {
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    kernel.server(&format!("python3 {peer}"), 7)
}

fn all(kernel: &Bench, program: &[&str]) -> Running {
    exec(kernel, &["--all", "--stats"], program)
}

fn check(ended: &Ended, expected: &str) {
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), expected),
        "{ended:?}"
    );
}

/// Sends bytes to an echo and compares.
fn check_echo(mut stream: TcpStream, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| ((at * 13) >> 5) as u8).collect();
    let mut sender = stream.try_clone().unwrap();
    let sent = bytes.clone();
    let sends = thread::spawn(move || {
        sender.write_all(&sent).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    sends.join().unwrap();
    assert!(got == bytes, "{} bytes instead of {len}", got.len());
}

#[test]
fn a_static_client_has_weirs_sockets() {
    let Some((kernel, program)) = with_static("exec-all-client") else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = all(&kernel, &[&program, "client", KERNEL[0]]).end();
    check(
        &ended,
        "peer 192.0.2.1 16\nown 192.0.2.5 16\ntype 1 domain 2 protocol 6\n67108864 bytes\n",
    );
    check_owner(&ended);
    let ended = all(&kernel, &[&program, "early", KERNEL[0]]).end();
    check(
        &ended,
        "open\npeer 192.0.2.1 16\nflags 1 1 0\nearly\nECONNREFUSED\n",
    );
    check_owner(&ended);
    let ended = all(&kernel, &[&program, "refused", KERNEL[0]]).end();
    check(&ended, "ECONNREFUSED\n0\n");
    let ended = all(&kernel, &[&program, "passed", KERNEL[0]]).end();
    check(&ended, "peer 192.0.2.1 16\n100000 bytes\n");
    check_owner(&ended);
    let ended = all(&kernel, &[&program, "udp", KERNEL[0], OURS[0]]).end();
    check(
        &ended,
        "peer 192.0.2.1 16\ndatagram\n0 4\nno address EFAULT\npeer 192.0.2.1 16\n-1 EADDRNOTAVAIL\n",
    );
    assert!(
        ended
            .stderr
            .contains("a UDP socket is weir's from connect on"),
        "{ended:?}"
    );
}

/// Also by a thread that has outlived the first one, whose sockets are in epoll sets.
#[test]
fn a_call_that_fails_leaves_the_socket_usable() {
    let Some((kernel, program)) = with_static("exec-all-again") else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = all(
        &kernel,
        &[&program, "again", KERNEL[0], OURS[0], "192.0.2.77"],
    )
    .end();
    check(
        &ended,
        "interrupted EINTR\nconnected done\npeer 192.0.2.1 16\nno address EISCONN\n1000 bytes\n\
         refused ECONNREFUSED\nno address EFAULT\nconnected done\nown 192.0.2.5 16\n\
         accept EAGAIN\nconnect EINPROGRESS\nconnect EALREADY\n",
    );
    let ended = all(&kernel, &[&program, "outlives", KERNEL[0]]).end();
    check(&ended, "same 1 events 0\npeer 192.0.2.1 16\n1000 bytes\n");
    check_owner(&ended);
}

#[test]
fn a_static_server_serves_from_children_and_threads() {
    let Some((kernel, program)) = with_static("exec-all-server") else {
        return;
    };
    for manner in ["server", "epoll-server"] {
        let server = all(&kernel, &[&program, manner, OURS[0]]);
        for size in [1, 300_000, 3_000_000] {
            check_echo(connect(&kernel, 4000), size);
        }
        let ended = server.end();
        assert_eq!(ended.code, Some(0), "{manner}: {ended:?}");
        let start = match manner {
            "server" => "own 192.0.2.5 16\nlistens 1\n".to_owned(),
            _ => "peer 192.0.2.1 16\n".repeat(3),
        };
        assert_eq!(ended.stdout, start + "served\n", "{ended:?}");
        check_owner(&ended);
    }
}

/// A thread that waits in `accept` keeps no other one waiting; a signal interrupts it.
#[test]
fn threads_wait_in_trapped_calls_at_once() {
    let Some((kernel, program)) = with_static("exec-all-threads") else {
        return;
    };
    let _peer = echo(&kernel);
    let ended = all(&kernel, &[&program, "threads", KERNEL[0], OURS[0]]).end();
    check(&ended, "80 clients\n-1 EINTR\n");
    check_owner(&ended);
}

#[test]
fn the_kernel_keeps_its_addresses() {
    let Some((kernel, program)) = with_static("exec-all-kernel") else {
        return;
    };
    let ended = all(&kernel, &[&program, "kernel", KERNEL[0]]).end();
    check(&ended, "abc 2\n");
    assert!(
        ended.stderr.contains("sockets of weir 0, of the kernel"),
        "{ended:?}"
    );
}

/// Also of a dynamically linked program that starts the static one.
#[test]
fn exit_status_and_signals_are_the_programs_own() {
    let Some((kernel, program)) = with_static("exec-all-status") else {
        return;
    };
    let ended = all(&kernel, &[&program, "exit", ""]).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(7), ""));
    let ended = all(&kernel, &[&program, "signal", ""]).end();
    assert_eq!(ended.code, None, "{ended:?}");
    let _peer = echo(&kernel);
    let line = format!("{program} early {} | head -1; exit 3", KERNEL[0]);
    let ended = all(&kernel, &["sh", "-c", &line]).end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), "open\n"));
    check_owner(&ended);
    let mut sleeper = all(&kernel, &[&program, "sleep", ""]);
    assert_eq!(sleeper.line(), "ready\n");
    let first = rustix::process::Pid::from_raw(sleeper.id() as i32).unwrap();
    rustix::process::kill_process(first, Signal::TERM).unwrap();
    assert_eq!(sleeper.end().code, None);
}

/// Sockets of processes that outlive a killed supervisor end, and new ones fail.
#[test]
fn a_killed_supervisor_ends_the_sockets() {
    let Some((kernel, program)) = with_static("exec-all-killed") else {
        return;
    };
    let _peer = echo(&kernel);
    let [out, ready] = ["out", "ready"].map(|name| kernel.folder.path(name));
    let line = [&program, "orphan", KERNEL[0], &out, &ready];
    let running = all(&kernel, &line);
    wait::until("the program's file", || std::fs::exists(&ready).unwrap());
    let first = rustix::process::Pid::from_raw(running.id() as i32).unwrap();
    rustix::process::kill_process(first, Signal::KILL).unwrap();
    wait::until("the end of a read", || {
        std::fs::read_to_string(&out).unwrap_or_default() == "1 ENOSYS\n"
    });
    assert_eq!(running.end().code, None);
}

#[test]
fn what_cannot_work_is_refused_at_once() {
    let Some((kernel, program)) = with_static("exec-all-refused") else {
        return;
    };
    let ended = exec(&kernel, &[], &[&program, "exit", ""]).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("give --all"), "{ended:?}");
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).unwrap();
    let ended = all(&kernel, &[&program, "exit", ""]).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("is set-user-ID"), "{ended:?}");
    let ended = exec(&kernel, &["--all", "--dns", KERNEL[0]], &["true"]).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let plain = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, plain).unwrap();
    let mut first = all(&kernel, &[&program, "sleep", ""]);
    assert_eq!(first.line(), "ready\n");
    let ended = all(&kernel, &[&program, "exit", ""]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("another program has it open"),
        "{ended:?}"
    );
    first.signal_at_once(Signal::TERM);
    assert_eq!(first.end().code, None);
}

/// Go's runtime makes its system calls itself.
#[test]
#[ignore = "needs go, which is too large for the check"]
fn a_go_program_has_weirs_sockets() {
    let Some(kernel) = bench("exec-all-go", &["python3", "go", "curl"]) else {
        return;
    };
    let folder = kernel.folder.path("");
    let source = kernel.folder.write("program.go", GO.as_bytes());
    let program = kernel.folder.path("go-program");
    kernel.run(&format!(
        "env CGO_ENABLED=0 GOFLAGS=-mod=mod GOTOOLCHAIN=local GOCACHE={folder}/cache go build -o {program} \
         {source}"
    ));
    let _peer = echo(&kernel);
    let (at, closed) = (format!("{}:7", KERNEL[0]), format!("{}:10", KERNEL[0]));
    let ended = all(&kernel, &[&program, "client", &at, &closed]).end();
    check(&ended, &format!("datagram {at}\ntrue\n"));
    check_owner(&ended);
    let server = all(&kernel, &[&program, "server", "192.0.2.5:8080"]);
    drop(connect(&kernel, 8080));
    let body: Vec<u8> = (0..700_000_u32).map(|at| ((at * 13) >> 5) as u8).collect();
    let file = kernel.folder.write("body", &body);
    let out = kernel.folder.path("answer");
    for _ in 0..5 {
        kernel.run(&format!(
            "curl -sSf --data-binary @{file} -o {out} http://192.0.2.5:8080/"
        ));
        assert!(std::fs::read(&out).unwrap() == body);
    }
    server.signal_at_once(Signal::TERM);
    assert_eq!(server.end().code, None);
}
