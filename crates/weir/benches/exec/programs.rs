//! iperf3, redis and nginx, each with the generator that belongs to it.

use crate::Bench;
use crate::world::{Server, World};
use std::fs;
use std::net::IpAddr;
use weir_lab::command::Command;
use weir_lab::testenv;

const CONNECTIONS: &str = "50";

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn program(line: &str) -> Command {
    let words = words(line);
    let mut command = testenv::program(&words[0]).expect("it was asked for");
    command.args(&words[1..]);
    command
}

pub(crate) fn iperf3(bench: &Bench) {
    const PORT: u16 = 5201;
    let world = &bench.world;
    let server = |_: IpAddr| words("iperf3 -s");
    let servers = [world.on_kernel(PORT, &server), world.on_weir(PORT, &server)];
    for (what, way) in [("iperf3, receives", ""), ("iperf3, sends", "-R")] {
        bench.compare_kernel(what, servers.each_ref(), 0.8, |server, seconds| {
            let line = format!("iperf3 -J -c {} -t {seconds} {way}", server.at.ip());
            let report = world.generate(program(&line));
            let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
            let bytes = report["end"]["sum_received"]["bytes"].as_f64();
            bytes.unwrap_or_else(|| panic!("iperf3 said {report}"))
        });
    }
}

pub(crate) fn redis(bench: &Bench) {
    const PORT: u16 = 6379;
    /// Requests for each second that a round shall last, without and with pipelining.
    const COUNTS: [u64; 2] = [60_000, 400_000];
    let world = &bench.world;
    let dir = world.folder.display().to_string();
    let server = |ip: IpAddr| {
        let mut all = words(&format!(
            "redis-server --bind {ip} --port {PORT} --protected-mode no --appendonly no --dir {dir} --save"
        ));
        all.push(String::new());
        all
    };
    let servers = [world.on_kernel(PORT, &server), world.on_weir(PORT, &server)];
    let benchmark = |server: &Server, rest: &str| {
        let ip = server.at.ip();
        let said = world.generate(program(&format!(
            "redis-benchmark -h {ip} -p {PORT} -q {rest}"
        )));
        assert!(
            said.contains("requests per second"),
            "redis-benchmark said {said}"
        );
    };
    for server in &servers {
        benchmark(server, "-t set -n 1 -c 1");
    }
    for (what, bar, count, pipelined) in [
        ("redis, GET, 50 clients", 0.9, COUNTS[0], ""),
        (
            "redis, GET, 50 clients, 16 pipelined",
            1.0,
            COUNTS[1],
            "-P 16",
        ),
    ] {
        bench.compare_kernel(what, servers.each_ref(), bar, |server, seconds| {
            let count = count * seconds;
            let rest = format!("-t get -c {CONNECTIONS} -n {count} {pipelined}");
            benchmark(server, &rest);
            count as f64
        });
    }
}

pub(crate) const NGINX_PORT: u16 = 80;
const FILE_LEN: usize = 1_024;

/// nginx' command with a configuration of this name: no worker process, or this many.
pub(crate) fn nginx_words(world: &World, name: &str, workers: usize) -> Vec<String> {
    let folder = world.folder.display();
    fs::write(world.folder.join("file"), [b'x'; FILE_LEN]).expect("the file can be written");
    let processes = if workers == 0 {
        "master_process off;".to_owned()
    } else {
        format!("user root; worker_processes {workers};")
    };
    let conf = format!(
        "daemon off; {processes} pid {folder}/{name}.pid; error_log /dev/null;\n\
         events {{ worker_connections 20000; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; client_header_timeout 600s;\n\
         server {{ listen {NGINX_PORT} backlog=4096; root {folder}; }} }}\n"
    );
    let path = world.folder.join(format!("{name}.conf"));
    fs::write(&path, conf).expect("the file can be written");
    words(&format!("nginx -c {}", path.display()))
}

/// Arguments of wrk for a connection a request.
pub(crate) const CLOSING: &[&str] = &["-H", "Connection: close"];

/// What wrk says after these seconds.
pub(crate) fn wrk_says(world: &World, server: &Server, seconds: u64, rest: &[&str]) -> String {
    let line = format!("wrk -t1 -c{CONNECTIONS} -d{seconds}s --timeout 20s");
    let mut command = program(&line);
    command.args(rest);
    command.arg(format!("http://{}/file", server.at));
    world.generate(command)
}

/// The number of requests that wrk has made.
pub(crate) fn requests(said: &str) -> u64 {
    let mut lines = said.lines().map(str::trim);
    let count = lines.find_map(|line| line.split_once(" requests in ")?.0.parse().ok());
    count.unwrap_or_else(|| panic!("wrk said {said}"))
}

/// The number of requests that failed: `Socket errors: connect 0, read 1, write 0, timeout 0`, and
/// `Non-2xx or 3xx responses: 1`.
pub(crate) fn errors(said: &str) -> u64 {
    let is_of_errors = |line: &&str| line.contains("Socket errors:") || line.contains("Non-2xx");
    let lines = said.lines().filter(is_of_errors);
    let words = lines.flat_map(|line| line.split([' ', ',']));
    words.filter_map(|word| word.parse::<u64>().ok()).sum()
}

/// The requests that wrk has made within these seconds, none of which failed.
fn wrk(world: &World, server: &Server, seconds: u64, rest: &[&str]) -> f64 {
    let said = wrk_says(world, server, seconds, rest);
    assert_eq!(errors(&said), 0, "wrk said {said}");
    requests(&said) as f64
}

pub(crate) fn nginx(bench: &Bench) {
    let world = &bench.world;
    let kernel = world.on_kernel(NGINX_PORT, &|_| nginx_words(world, "kernel", 0));
    let weir = world.on_weir(NGINX_PORT, &|_| nginx_words(world, "weir", 0));
    for (what, bar, rest) in [
        ("nginx, 50 connections", 0.9, &[][..]),
        ("nginx, a connection a request", 1.0, CLOSING),
    ] {
        bench.compare_kernel(what, [&kernel, &weir], bar, |server, seconds| {
            wrk(world, server, seconds, rest)
        });
    }
}

pub(crate) fn workers(bench: &Bench) {
    let world = &bench.world;
    let names = ["in one process", "one worker", "two workers"];
    let servers = [0, 1, 2].map(|workers| {
        let name = format!("workers-{workers}");
        world.on_weir(NGINX_PORT, &|_| nginx_words(world, &name, workers))
    });
    let all: Vec<_> = names.into_iter().zip(&servers).collect();
    let ratios = bench.compare("nginx, 50 connections", &all, |server, seconds| {
        wrk(world, server, seconds, &[])
    });
    let what = "nginx, relayed descriptors, 50 connections";
    bench.record(what, ratios[0], "in-process descriptors", 0.5);
    // The rate for the time of two workers, each of which has a core.
    let what = "nginx, two workers' time, 50 connections";
    bench.record(what, 2.0 * ratios[1] / ratios[0], "one worker", 1.6);
}
