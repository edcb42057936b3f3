//! nginx with two workers, whose master process gets a new configuration again and again under load.
//!
//! A connection has one request: a reload closes connections that stay open, which wrk counts as
//! errors, whosever the sockets are.

use crate::Bench;
use crate::programs::{self, NGINX_PORT};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use weir_lab::command::{Command, Resource};
use weir_lab::results::{Bar, Unit};
use weir_lab::wait::WAIT_MAX;

/// The argument that makes this program the idle connections; their address follows.
pub(crate) const IDLE: &str = "be-idle";
const IDLE_CONNECTIONS: usize = 10_000;
const TIME_S: u64 = 60;
const RELOAD_EACH: Duration = Duration::from_secs(2);
const NAME: &str = "reload";

/// Keeps connections open on which nothing is sent until this process is killed; prints their number.
pub(crate) fn idle(at: &str) {
    let at: SocketAddr = at.parse().expect("an address");
    let connect = |_| TcpStream::connect_timeout(&at, WAIT_MAX).ok();
    let streams: Vec<TcpStream> = (0..IDLE_CONNECTIONS).filter_map(connect).collect();
    println!("{}", streams.len());
    loop {
        thread::sleep(WAIT_MAX);
    }
}

pub(crate) fn soak(bench: &Bench) {
    let world = &bench.world;
    let server = world.on_weir(NGINX_PORT, &|_| programs::nginx_words(world, NAME, 2));
    let mut command = Command::itself();
    command
        .limit(Resource::Nofile, 2 * IDLE_CONNECTIONS as u64)
        .args(["--bench", IDLE, &server.at.to_string()])
        .stdout(Stdio::piped());
    let mut idle = world.generator.spawn(command).expect("it starts again");
    let output = idle.child_mut().stdout.take().expect("piped");
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line);
    read.expect("a line");
    let idle_count: usize = line.trim().parse().expect("a number");
    let pid_file = world.folder.join(format!("{NAME}.pid"));
    let master = || {
        let text = fs::read_to_string(&pid_file);
        let number = text.expect("a file of nginx").trim().parse();
        Pid::from_raw(number.expect("a process")).expect("a process")
    };
    let is_over = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        let reloads = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Relaxed) {
                thread::sleep(RELOAD_EACH);
                kill_process(master(), Signal::HUP).expect("nginx runs");
                count += 1;
            }
            count
        });
        let said = programs::wrk_says(world, &server, TIME_S, programs::CLOSING);
        is_over.store(true, Relaxed);
        let reloads = reloads.join().expect("the reloads");
        println!("{idle_count} idle connections, {reloads} reloads within {TIME_S} s");
        said
    });
    let errors = programs::errors(&said);
    let requests = programs::requests(&said);
    println!("{requests} requests, {errors} errors");
    let _ = std::io::stdout().flush();
    let name = "exec: nginx, two workers, reloads, requests that fail";
    let (errors, lost) = (errors as f64, Unit::Losses);
    bench.results.record(name, errors, lost, Bar::AtMost(0.0));
    let missing = (IDLE_CONNECTIONS - idle_count) as f64;
    let name = "exec: nginx, two workers, idle connections that are refused";
    bench.results.record(name, missing, lost, Bar::AtMost(0.0));
}
