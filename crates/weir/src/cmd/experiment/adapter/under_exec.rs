//! Runs the program under `weir exec --stack sys`, `mux` and `opt`.
//!
//! Each run has a veth pair of its own, between two network namespaces that go with this value and,
//! at the latest, with this process. Only under SYS the kernel has the addresses: under the others
//! they are those of weir's hosts. Client and server are killed when their values are dropped.

use super::Protocols;
use super::program::PORT;
use crate::signals::ShutdownSignal;
use anyhow::{Context, bail};
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_experiments::adapter::program::Found;
use weir_lab::net::{Host, Lab, Offloads, Process};

/// Time limit of one run, which takes some three seconds.
const RUN_MAX: Duration = Duration::from_secs(30);
/// Longest wait for the server, which ends behind the client.
const SERVER_END_MAX: Duration = Duration::from_secs(1);
/// How often the processes are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Round trips of a run, at most.
const TRIPS_MAX: u32 = 2000;

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PREFIX_LEN: u8 = 24;
/// The name of both ends of the veth pair.
const VETH: &str = "veth0";

/// The program's measurements.
#[derive(Debug, Default)]
pub(super) struct Ran {
    /// A run each.
    pub(super) runs: Vec<(Protocols, Found)>,
    /// Why runs are missing.
    pub(super) left_out: Option<String>,
}

/// Runs the program under each stack, in turns, until a run fails or a signal arrives.
pub(super) fn run(rounds: u32, trips: u32, stop: &ShutdownSignal) -> Ran {
    let mut ran = Ran::default();
    for _ in 0..rounds {
        for protocols in Protocols::ALL {
            match run_once(protocols, trips.min(TRIPS_MAX), stop) {
                Ok(found) => ran.runs.push((protocols, found)),
                Err(why) => {
                    ran.left_out = Some(why.to_string());
                    return ran;
                }
            }
        }
    }
    if rounds == 0 {
        ran.left_out = Some("--program-rounds is 0".to_owned());
    }
    ran
}

fn run_once(protocols: Protocols, trips: u32, stop: &ShutdownSignal) -> anyhow::Result<Found> {
    let lab = Lab::new();
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    let mut link = lab
        .link(&client, &server)
        .names(VETH, VETH)
        .offloads(Offloads::OFF);
    if protocols == Protocols::Sys {
        link = link.addresses(CLIENT, SERVER, PREFIX_LEN);
    }
    link.connect()?;
    let word = protocols.word();
    let trips = trips.to_string();
    let at = format!("{SERVER}:{PORT}");
    let mut server = start(&server, word, SERVER, &[])?;
    let mut client = start(&client, word, CLIENT, &["--to", &at, "--trips", &trips])?;
    let began = Instant::now();
    let succeeded = loop {
        if stop.is_requested() {
            bail!("stopped by a signal");
        }
        if let Some(status) = client.try_wait()? {
            break status.success();
        }
        // A server ends with success when the client asks it to.
        if server.try_wait()?.is_some_and(|status| !status.success()) {
            bail!(
                "the server under --stack {word} failed: {}",
                errors(&mut server)
            );
        }
        if began.elapsed() > RUN_MAX {
            bail!("a run under --stack {word} has not ended within {RUN_MAX:?}");
        }
        stop.wait(POLL_INTERVAL);
    };
    if !succeeded {
        bail!(
            "the client under --stack {word} failed: {}",
            errors(&mut client)
        );
    }
    server.wait(SERVER_END_MAX)?;
    let mut line = String::new();
    if let Some(out) = &mut client.child_mut().stdout {
        out.read_to_string(&mut line)?;
    }
    serde_json::from_str(&line).context("the client's output")
}

/// Starts the program with these arguments under `weir exec`, whose line is the same for each stack.
fn start(host: &Host, stack: &str, address: Ipv4Addr, arguments: &[&str]) -> io::Result<Process> {
    let this = std::env::current_exe()?;
    let mut command = Command::new(&this);
    command
        .args(["exec", "--stack", stack, "--link", &format!("port:{VETH}")])
        .args(["--addr", &format!("{address}/{PREFIX_LEN}"), "--"])
        .arg(this)
        .args(["experiment", "program"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    host.spawn(command)
}

/// The standard error of an ended process, on one line.
fn errors(process: &mut Process) -> String {
    let mut text = String::new();
    if let Some(errors) = &mut process.child_mut().stderr {
        // What could be read is shown.
        let _ = errors.read_to_string(&mut text);
    }
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_start_matches("weir: "))
        .collect();
    match lines[..] {
        [] => "it has said nothing".to_owned(),
        _ => lines.join("; "),
    }
}
