//! `weir balance`: connections through it, and a server that goes away.

use super::{Net, live, weir};
use live::Running;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Signal};
use weir_lab::testenv;

/// Time for a connection that may fail.
const SHORT: Duration = Duration::from_secs(1);
const SERVICE: &str = "198.51.100.2:80";

/// A server that sends the last byte of its address on each connection.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(host: &Host, address: Ipv4Addr) -> Server {
        let at = SocketAddr::new(address.into(), 8080);
        let listener = host.run(move || TcpListener::bind(at).unwrap());
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, _)) => _ = stream.write_all(&address.octets()[3..]),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Server { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// The server that a new connection reaches within a time.
fn reached(net: &Net, time: Duration) -> Option<u8> {
    let service: SocketAddr = SERVICE.parse().unwrap();
    let connect = move || TcpStream::connect_timeout(&service, time);
    let mut stream = net.b.run(connect).ok()?;
    stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let mut name = [0];
    stream.read_exact(&mut name).ok()?;
    Some(name[0])
}

#[test]
fn connections_are_shared_and_a_dead_server_is_left_out() {
    let Some(net) = Net::new("balance") else {
        return;
    };
    let second: IpAddr = "10.0.0.10".parse().unwrap();
    super::ip(
        &net.a,
        &["address", "add", &format!("{second}/24"), "dev", "eth0"],
    );
    let [one, two] = [9, 10].map(|last| Server::start(&net.a, Ipv4Addr::new(10, 0, 0, last)));
    let arguments = [
        "balance",
        "eth1",
        "eth0",
        "--service",
        SERVICE,
        "--to",
        "10.0.0.9:8080,10.0.0.10:8080",
        "--hang-ms",
        "2000",
    ];
    let running = Running::start(&net.r, weir([]), &arguments).until("ready");
    let mut seen = [0; 2];
    for _ in 0..40 {
        match reached(&net, live::WAIT_MAX) {
            Some(9) => seen[0] += 1,
            Some(10) => seen[1] += 1,
            other => panic!("{other:?} answered"),
        }
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
    two.end();
    // Probes each second, three in a row.
    let began = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 30 {
        match reached(&net, SHORT) {
            Some(9) => in_a_row += 1,
            _ => in_a_row = 0,
        }
        assert!(
            began.elapsed() < live::WAIT_MAX,
            "the dead server is still chosen"
        );
    }
    let two = Server::start(&net.a, Ipv4Addr::new(10, 0, 0, 10));
    let began = Instant::now();
    while reached(&net, SHORT) != Some(10) {
        assert!(
            began.elapsed() < live::WAIT_MAX,
            "the server does not come back"
        );
    }
    running.signal(Signal::INT);
    let ended = running.end();
    let said = "frames at eth0, eth1 are dropped until";
    assert!(ended.stderr.contains(said), "{ended:?}");
    // The links alone are enough to open them again, once.
    let clean = || Running::start(&net.r, weir([]), &["balance", "eth1", "eth0", "--clean"]).end();
    let (first, second) = (clean(), clean());
    assert_eq!((first.code, &*first.stderr), (Some(0), ""), "{first:?}");
    assert!(second.stderr.contains("nothing is left at"), "{second:?}");
    one.end();
    two.end();
}

/// A server of HTTP that answers each request of a connection: `/health` with its status, others
/// with the last byte of its address.
struct HttpServer {
    status: Arc<AtomicU16>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    fn start(host: &Host, last: u8) -> HttpServer {
        let at = SocketAddr::from(([10, 0, 0, last], 8080));
        let listener = host.run(move || TcpListener::bind(at).unwrap());
        listener.set_nonblocking(true).unwrap();
        let status = Arc::new(AtomicU16::new(200));
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, answered) = (Arc::clone(&stop), Arc::clone(&status));
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let status = Arc::clone(&answered);
                // It ends with its connection, which the test's end closes at the latest.
                std::thread::spawn(move || serve(stream, last, &status));
            }
        });
        HttpServer {
            status,
            stop,
            thread,
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn serve(mut stream: TcpStream, last: u8, status: &AtomicU16) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let mut seen = Vec::new();
    let mut bytes = [0; 1000];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        seen.extend_from_slice(&bytes[..len]);
        if !seen.ends_with(b"\r\n\r\n") {
            continue;
        }
        let is_check = seen.starts_with(b"GET /health HTTP/1.1\r\nHost: www.example.com\r\n");
        let status = if is_check {
            status.load(Ordering::Relaxed)
        } else {
            200
        };
        seen.clear();
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 3\r\n\r\n{last:03}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The server that answers a request by this connection.
fn asked(stream: &mut TcpStream) -> Option<u8> {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").ok()?;
    let mut answer = [0; 40];
    stream.read_exact(&mut answer).ok()?;
    std::str::from_utf8(&answer[37..]).ok()?.parse().ok()
}

fn connected(net: &Net) -> Option<TcpStream> {
    let service: SocketAddr = SERVICE.parse().unwrap();
    net.b
        .run(move || TcpStream::connect_timeout(&service, SHORT))
        .ok()
}

/// Connects until `count` new connections in a row are answered by the expected servers alone;
/// returns when another server answered last.
fn until_only(net: &Net, expected: &[u8], count: usize) -> Option<Instant> {
    let began = Instant::now();
    let (mut in_a_row, mut last_other) = (0, None);
    let mut seen: Vec<u8> = Vec::new();
    while in_a_row < count || !expected.iter().all(|one| seen.contains(one)) {
        match connected(net).and_then(|mut stream| asked(&mut stream)) {
            Some(last) if expected.contains(&last) => {
                seen.push(last);
                in_a_row += 1;
            }
            other => {
                seen.clear();
                in_a_row = 0;
                last_other = other.map(|_| Instant::now()).or(last_other);
            }
        }
        assert!(began.elapsed() < live::WAIT_MAX, "not only {expected:?}");
    }
    last_other
}

#[test]
fn checks_by_http_and_servers_that_change_while_it_runs() {
    let Some(net) = Net::new("balance-http") else {
        return;
    };
    for last in [10, 11] {
        let address = format!("10.0.0.{last}/24");
        super::ip(&net.a, &["address", "add", &address, "dev", "eth0"]);
    }
    let [one, two, three] = [9, 10, 11].map(|last| HttpServer::start(&net.a, last));
    let config = |servers: &str| {
        let text = format!(
            "outside = \"eth1\"\n[kernel]\nroutes = true\n[[link]]\nname = \"eth0\"\n\
             [[link]]\nname = \"eth1\"\n[[stage]]\nkind = \"balance\"\nservice = \"{SERVICE}\"\n\
             probe = \"200ms\"\nfall = 2\nrise = 1\n\
             [stage.http]\npath = \"/health\"\nhost = \"www.example.com\"\nstatus = 200\n{servers}"
        );
        net.folder.write("box.toml", text.as_bytes())
    };
    let server =
        |last: u8, more: &str| format!("[[stage.server]]\nto = \"10.0.0.{last}:8080\"\n{more}");
    let path = config(&[server(9, ""), server(10, "")].concat());
    let arguments = ["run", &path, "--hang-ms", "2000"];
    let running = Running::start(&net.r, weir([]), &arguments).until("ready");
    until_only(&net, &[9, 10], 20);
    // A server that says it is unwell: two probes and one time-out, and time for a busy machine.
    two.status.store(503, Ordering::Relaxed);
    let began = Instant::now();
    let last_other = until_only(&net, &[9], 30).unwrap_or(began);
    let noticed = last_other.saturating_duration_since(began);
    assert!(noticed < Duration::from_millis(600 + 1500), "{noticed:?}");
    two.status.store(200, Ordering::Relaxed);
    until_only(&net, &[9, 10], 20);
    // An established session, whose server is to drain.
    let began = Instant::now();
    let mut kept = loop {
        let stream = connected(&net);
        if let Some(mut stream) = stream
            && asked(&mut stream) == Some(10)
        {
            break stream;
        }
        assert!(began.elapsed() < live::WAIT_MAX);
    };
    config(
        &[
            server(9, "weight = 2\n"),
            server(10, "draining = true\n"),
            server(11, ""),
        ]
        .concat(),
    );
    running.signal_at_once(Signal::HUP);
    let running = running.until("read again, servers: 3");
    until_only(&net, &[9, 11], 40);
    assert_eq!(asked(&mut kept), Some(10), "an established session stays");
    // What is wrong, or more than servers, changes nothing.
    let mut running = running;
    for (servers, why) in [
        (server(9, "weight = 101\n"), "weight of 101: write 1 to 100"),
        ([server(9, ""), server(9, "")].concat(), "it is there twice"),
        (
            format!("{}[[stage]]\nkind = \"drop\"\n", server(9, "")),
            "more than [[stage.server]]",
        ),
    ] {
        config(&servers);
        running.signal_at_once(Signal::HUP);
        running = running.until(why);
    }
    until_only(&net, &[9, 11], 40);
    assert_eq!(asked(&mut kept), Some(10));
    config(&[server(9, ""), server(11, "")].concat());
    running.signal_at_once(Signal::HUP);
    running = running.until("read again, servers: 2");
    until_only(&net, &[9, 11], 40);
    // The balancer takes the servers a moment after the message.
    let began = Instant::now();
    while asked(&mut kept) == Some(10) {
        assert!(began.elapsed() < live::WAIT_MAX, "its session goes on");
    }
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for server in [one, two, three] {
        server.end();
    }
}

/// nginx twice behind the service, and wrk before it: no request fails, and both serve.
#[test]
fn wrk_sees_no_error_of_two_nginx() {
    if !testenv::programs(&["nginx", "wrk"]) {
        return;
    }
    let Some(net) = Net::new("balance-nginx") else {
        return;
    };
    net.take_redirected();
    super::ip(&net.a, &["address", "add", "10.0.0.10/24", "dev", "eth0"]);
    let dir = net.folder.path("");
    net.folder.write("page", &[b'x'; 4000]);
    let servers = [9, 10].map(|last| {
        let config = format!(
            "daemon off; master_process off; pid {dir}/pid{last};
             events {{ worker_connections 512; }}
             http {{ access_log {dir}/access{last};
               client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
               uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
               server {{ listen 10.0.0.{last}:8080; root {dir}; }} }}"
        );
        let config = net.folder.write(&format!("nginx{last}"), config.as_bytes());
        let errors = net.folder.path(&format!("errors{last}"));
        let nginx = testenv::program("nginx").expect("looked for");
        Running::start(&net.a, nginx, &["-e", &errors, "-c", &config])
    });
    let arguments = [
        "balance",
        "eth1",
        "eth0",
        "--service",
        SERVICE,
        "--to",
        "10.0.0.9:8080,10.0.0.10:8080",
        "--hang-ms",
        "2000",
        "--metrics",
        "127.0.0.1:0",
    ];
    let running = Running::start(&net.r, weir([]), &arguments).until("ready");
    let began = Instant::now();
    while connected(&net).is_none() {
        assert!(began.elapsed() < live::WAIT_MAX, "no server answers");
    }
    let url = format!("http://{SERVICE}/page");
    let once = ["-t1", "-c20", "-d2s", "--timeout", "20s", &url];
    // A connection for each request, too.
    let each = [
        "-t1",
        "-c20",
        "-d2s",
        "--timeout",
        "20s",
        "-H",
        "Connection: close",
        &url,
    ];
    let mut requests = 0;
    for options in [&once[..], &each] {
        let said = live::run(&net.b, "wrk", options).expect("looked for");
        assert!(
            !said.contains("Socket errors") && !said.contains("Non-2xx"),
            "{said}"
        );
        let line = said.lines().find(|line| line.contains(" requests in "));
        let count = line.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok());
        requests += count.unwrap_or_else(|| panic!("{said}"));
    }
    assert!(requests > 100, "{requests} requests");
    let served = [9, 10].map(|last| {
        let log = std::fs::read_to_string(net.folder.path(&format!("access{last}"))).unwrap();
        assert!(log.lines().all(|line| line.contains("\" 200 ")), "{log}");
        log.lines().count()
    });
    // nginx writes a line for what wrk has left at its end, too.
    assert!(served.iter().sum::<usize>() >= requests, "{served:?}");
    assert!(served.iter().all(|count| *count > 20), "{served:?}");
    let metrics = running.metrics(&net.r);
    let fast = super::metric(&metrics, "weir_run_fast_frames_total");
    assert!(fast > Some(100), "{metrics}");
    running.stop();
    for server in servers {
        server.signal_at_once(Signal::TERM);
        assert_eq!(server.end().code, Some(0));
    }
}
