//! The C example of `include/weir_socket.h`, built by the system's compiler, and a program that uses both
//! names of calls; the kernel is the peer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use weir_lab::c;
use weir_lab::command::Command;
use weir_lab::net::{Host, Lab, Process, Signal};
use weir_lab::testenv;
use weir_lab::wait::Limited;

const WAIT_MAX: Option<Duration> = Some(Duration::from_secs(20));

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("weir-csocket-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A compiled program; `None` (after `skip`) without a compiler.
fn compiled(folder: &Folder, source: &str) -> Option<PathBuf> {
    let library = c::folder_of("libweir_exec.so");
    let library = library.to_str().unwrap();
    // Cargo's own search path must not come first.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{library}");
    let found = [&format!("-L{library}"), "-lweir_exec", &rpath];
    c::compiled(&folder.0, source, &found)
}

/// A host whose kernel has a TAP interface; `None` without root, or the driver.
fn kernel() -> Option<(Lab, Host)> {
    if !testenv::root() || !testenv::tun() {
        return None;
    }
    let lab = Lab::new();
    let host = lab.host("kernel").unwrap();
    let tap = host.tap("tap0", 0).unwrap();
    tap.up().unwrap();
    tap.add_address([192, 0, 2, 1], 24).unwrap();
    tap.add_address([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 64)
        .unwrap();
    Some((lab, host))
}

/// Starts a program and waits for its `ready`.
fn start(host: &Host, program: &Path, arguments: &[&str]) -> Process {
    let mut command = Command::built(program);
    command.args(arguments);
    command.stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut process = host.spawn(command).unwrap();
    let says = process.child_mut().stderr.take().unwrap();
    let mut line = String::new();
    let says = Limited::new(says, "`ready` of the program");
    BufReader::new(says).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    process
}

const OURS: [&str; 2] = ["192.0.2.5", "2001:db8::5"];
const ADDRESSES: &str = "192.0.2.5/24 2001:db8::5/64";

#[test]
fn the_example_echoes_over_tcp_and_udp() {
    let Some((_lab, host)) = kernel() else {
        return;
    };
    let folder = Folder::new("echo");
    let Some(program) = compiled(&folder, "examples/socket_echo.c") else {
        return;
    };
    let server = start(&host, &program, &["tap0", ADDRESSES, "7"]);
    let whole: Vec<u8> = (0..500_000_u32).map(|at| (at * 7 / 3) as u8).collect();
    for at in OURS {
        let at = SocketAddr::new(at.parse::<IpAddr>().unwrap(), 7);
        // Several at a time.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut stream = host.run(|| TcpStream::connect(at)).unwrap();
                    stream.set_read_timeout(WAIT_MAX).unwrap();
                    stream.set_write_timeout(WAIT_MAX).unwrap();
                    let mut back = vec![0; whole.len()];
                    let mut writer = stream.try_clone().unwrap();
                    std::thread::scope(|scope| {
                        scope.spawn(|| writer.write_all(&whole).unwrap());
                        stream.read_exact(&mut back).unwrap();
                    });
                    assert!(back == whole);
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.read(&mut back).unwrap(), 0);
                });
            }
        });
        let any: SocketAddr = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }
            .parse()
            .unwrap();
        let socket = host.run(|| UdpSocket::bind(any)).unwrap();
        socket.set_read_timeout(WAIT_MAX).unwrap();
        for text in [&b"datagram"[..], b"", &whole[..5000]] {
            socket.send_to(text, at).unwrap();
            let mut back = [0; 6000];
            let (count, from) = socket.recv_from(&mut back).unwrap();
            assert_eq!((&back[..count], from), (text, at));
        }
    }
    server.signal(Signal::KILL).unwrap();
}

#[test]
fn own_names_are_weirs_and_the_others_the_kernels() {
    let Some((_lab, host)) = kernel() else {
        return;
    };
    let folder = Folder::new("calls");
    let Some(program) = compiled(&folder, "crates/exec/tests/calls.c") else {
        return;
    };
    host.device("lo").unwrap().up().unwrap();
    let mut command = Command::built(&program);
    command.arg(ADDRESSES);
    let output = host.output(command).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said, "");
}

#[test]
fn what_fails_says_why() {
    let folder = Folder::new("fails");
    let Some(program) = compiled(&folder, "examples/socket_echo.c") else {
        return;
    };
    for (link, addresses, why) in [
        ("", "192.0.2.5/24", "name one interface"),
        ("tap0", "", "tap0 has no address"),
        ("tap0", "192.0.2.5", "192.0.2.5 is not an address"),
    ] {
        let mut command = Command::built(&program);
        command.args([link, addresses, "7"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("weir_open: "), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let usage = Command::built(&program).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

/// The header declares exactly the library's functions with own names.
#[test]
fn the_header_and_the_library_name_the_same_functions() {
    let source = include_str!("../src/own.rs");
    let mut defined = c::defined(source);
    defined.retain(|name| name.starts_with("weir_"));
    let lines = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("fn weir_"));
    let more = lines.filter_map(|line| Some(format!("weir_{}", line.split_once(" = ")?.0)));
    defined.extend(more);
    defined.sort();
    assert_eq!(defined, c::declared("weir_socket.h"));
    assert!(defined.len() > 20, "{defined:?}");
}
