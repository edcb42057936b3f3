//! Other processes on a tap: this test's own binary, as one of them.

use crate::config;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;
use weir_lab::command::Command;
use weir_lab::net::{Host, Process, Signal};
use weir_lab::wait::Limited;
use weir_tap::{Bypass, Config, Pull, Tap, TapError};

/// What it is to do: `found`, `between`, `impatient` (the same, with a short
/// limit for hangs) or `join`.
const ROLE: &str = "WEIR_SHARE_ROLE";
const PATH: &str = "WEIR_SHARE_PATH";

/// Waits for frames up to a time limit, and forwards them; returns their number.
pub(crate) fn forward(tap: &mut Tap, time: Duration) -> Result<u64, TapError> {
    tap.pull(Pull::Frame(time))?;
    let links: Vec<_> = tap.links().collect();
    let mut count = 0;
    for (from, to) in [(links[0], links[1]), (links[1], links[0])] {
        for _ in 0..64 {
            let Some(frame) = tap.take(from)? else { break };
            count += 1;
            tap.give(to, frame)?;
        }
    }
    tap.push()?;
    Ok(count)
}

/// Another process on the tap; killed when it is dropped.
pub(crate) struct Other {
    process: Process,
    asks: ChildStdin,
    says: BufReader<Limited<ChildStdout>>,
}

impl Other {
    pub(crate) fn found(host: &Host, path: &Path) -> Other {
        Other::start(host, "found", path)
    }

    /// As [`found`](Self::found), with the links joined for the bypass.
    pub(crate) fn between(host: &Host, path: &Path) -> Other {
        Other::start(host, "between", path)
    }

    pub(crate) fn join(host: &Host, path: &Path) -> Other {
        Other::start(host, "join", path)
    }

    fn start(host: &Host, role: &str, path: &Path) -> Other {
        Other::begin(host, role, path).ready()
    }

    /// Waits until it is.
    pub(crate) fn ready(mut self) -> Other {
        self.hear("ready");
        self
    }

    /// As the others, but does not wait until it is ready.
    pub(crate) fn begin(host: &Host, role: &str, path: &Path) -> Other {
        let mut command = Command::itself();
        command
            .args(["processes::one_of_several", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = host.spawn(command).unwrap();
        let child = process.child_mut();
        Other {
            asks: child.stdin.take().unwrap(),
            says: BufReader::new(Limited::new(
                child.stdout.take().unwrap(),
                format!("a line of the process that is to `{role}`"),
            )),
            process,
        }
    }

    /// The rest of the line that has this word; the test's own name may stand
    /// before it.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.says.read_line(&mut line).unwrap();
            assert!(count > 0, "it ended");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str) -> u64 {
        self.asks.write_all(what.as_bytes()).unwrap();
        self.hear("taken ").parse().unwrap()
    }

    /// How many frames it has taken.
    pub(crate) fn taken(&mut self) -> u64 {
        self.ask("taken\n")
    }

    /// Makes it leave; returns the number of frames that it has taken.
    pub(crate) fn end(mut self) -> u64 {
        let taken = self.ask("end\n");
        let ended = self.process.wait(Duration::from_secs(10)).unwrap();
        assert!(ended.is_some_and(|status| status.success()));
        taken
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// Kills it.
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
    }
}

/// What runs in another process; nothing in this one.
#[test]
fn one_of_several() {
    let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(PATH)) else {
        return;
    };
    let path = Path::new(&path);
    let mut tap = match role.as_str() {
        "join" => Tap::join(path, config()).unwrap(),
        "between" | "impatient" => {
            let config = Config {
                bypass: Bypass::Wire,
                hang_max: match role.as_str() {
                    "impatient" => Some(Duration::from_millis(10)),
                    _ => config().hang_max,
                },
                ..config()
            };
            let mut tap = Tap::between(config, "left", "right").unwrap();
            tap.share(path).unwrap();
            tap
        }
        _ => crate::shared(path),
    };
    tap.ready().unwrap();
    let (asked, asks) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            asked.send(line.unwrap()).unwrap();
        }
    });
    println!("ready");
    let mut taken = 0;
    loop {
        taken += forward(&mut tap, Duration::from_millis(20)).unwrap();
        match asks.try_recv().as_deref() {
            Ok("end") => break,
            Ok(_) => println!("taken {taken}"),
            Err(_) => {}
        }
    }
    tap.unmap().unwrap();
    println!("taken {taken}");
}
