//! `weir meter` at one interface, beside flow exporters at the same one.

use super::{folder, median};
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::load::{Generator, Order, Rate, Search, Trial, Udp};
use weir_lab::net::{Pair, Process, Signal};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::testenv;
use weir_ledger::{Ledger, UsageQuery};
use weir_wire::ethernet::Address;

/// Flows that softflowd has room for by default, and many.
const FLOWS: [u32; 2] = [256, 100_000];
/// The source address of the first flow.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const ROUNDS: usize = 3;
const END_TIMEOUT: Duration = Duration::from_secs(30);
const SEARCH: Search = Search {
    rate_min: 1e4,
    rate_max: 32e6,
    resolution: 0.05,
    attempts_max: 2,
    trial: Duration::from_millis(500),
    confirmation: Duration::ZERO,
};

/// Who counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    Weir,
    /// The same at a mirror port, whose frames it takes.
    Mirror,
    Softflowd,
    Pmacctd,
    Nfpcapd,
}

impl Probe {
    const WEIR: [Probe; 2] = [Probe::Weir, Probe::Mirror];
    const EXPORTERS: [Probe; 3] = [Probe::Softflowd, Probe::Pmacctd, Probe::Nfpcapd];

    fn name(self) -> &'static str {
        match self {
            Probe::Weir => "weir meter",
            Probe::Mirror => "weir meter at a mirror port",
            Probe::Softflowd => "softflowd",
            Probe::Pmacctd => "pmacctd",
            Probe::Nfpcapd => "nfpcapd",
        }
    }

    /// Its command, which counts at the interface; `None` if it is not installed.
    fn command(self, interface: &str, folder: &Path) -> Option<Command> {
        let at = |name: &str| folder.join(name);
        let mut command = match self {
            Probe::Weir | Probe::Mirror => Command::built(env!("CARGO_BIN_EXE_weir")),
            other => testenv::program(other.name())?,
        };
        match self {
            Probe::Weir | Probe::Mirror => {
                let config = at("counter.toml");
                let side = match self {
                    Probe::Mirror => "take = true\nmirror",
                    _ => "inside",
                };
                let text = format!(
                    "period = \"1h\"\nsubscribers = \"subscribers.csv\"\n[[link]]\n\
                     {side} = \"{interface}\"\n"
                );
                fs::write(&config, text).expect("a file");
                let _ = fs::remove_file(at("usage.db"));
                command.args(["meter".as_ref(), "--config".as_ref(), config.as_os_str()]);
                command.args(["--store".as_ref(), at("usage.db").as_os_str()]);
            }
            Probe::Softflowd => {
                command.args(["-d", "-i", interface, "-n", "127.0.0.1:9"]);
                command.args(["-m", "1000000"]);
                command.args(["-p".as_ref(), at("pid").as_os_str()]);
                command.args(["-c".as_ref(), at("control").as_os_str()]);
            }
            Probe::Pmacctd => {
                let config = at("pmacctd.conf");
                let text = format!(
                    "daemonize: false\npcap_interface: {interface}\nplugins: memory\n\
                     aggregate: src_host,dst_host,src_port,dst_port,proto\nimt_path: {}\n\
                     imt_buckets: 1000003\nimt_mem_pools_number: 0\nplugin_buffer_size: 102400\n\
                     plugin_pipe_size: 102400000\n",
                    at("pipe").display()
                );
                fs::write(&config, text).expect("a file");
                command.args(["-f".as_ref(), config.as_os_str()]);
            }
            Probe::Nfpcapd => {
                command
                    .args(["-i", interface, "-t", "300", "-w"])
                    .arg(folder);
            }
        }
        Some(command)
    }
}

/// A probe that runs.
struct Counting<'a> {
    probe: Probe,
    folder: &'a Path,
    process: Process,
}

impl<'a> Counting<'a> {
    fn start(probe: Probe, net: &'a Pair, folder: &'a Path) -> Option<Counting<'a>> {
        let mut command = probe.command(net.eth_b.name(), folder)?;
        let log = File::create(folder.join("log")).expect("a file");
        command.stdout(log.try_clone().expect("a file"));
        match probe {
            Probe::Weir | Probe::Mirror => command.stderr(Stdio::piped()),
            _ => command.stderr(log),
        };
        let mut process = net.b.spawn(command).expect("it starts");
        match process.child_mut().stderr.take() {
            Some(errors) => {
                let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
                assert!(lines.any(|line| line == "ready"), "it is ready");
                std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
            }
            None => std::thread::sleep(Duration::from_secs(1)),
        }
        Some(Counting {
            probe,
            folder,
            process,
        })
    }

    /// Frames that were lost of those that were sent; ends the probe.
    fn lost(mut self, sent: u64) -> u64 {
        if self.probe == Probe::Softflowd {
            let text = self.statistics();
            self.end();
            return number_after(&text, "dropped by libpcap:");
        }
        if self.probe == Probe::Pmacctd {
            self.process.signal(Signal::USR1).expect("a signal");
            let text = self.log_with("dropped_packets=");
            self.end();
            return number_after(&text, "dropped_packets=");
        }
        self.end();
        match self.probe {
            Probe::Weir | Probe::Mirror => {
                let ledger = Ledger::open(&self.folder.join("usage.db")).expect("a ledger");
                let rows = ledger.usage(&UsageQuery::default(), &jiff::tz::TimeZone::UTC);
                let rows = rows.expect("rows");
                // The host itself sends other frames.
                let counted: u64 = rows
                    .iter()
                    .filter(|row| row.subscriber.starts_with("subscriber-"))
                    .map(|row| row.packets.iter().sum::<u64>())
                    .sum();
                sent - counted
            }
            _ => number_after(&self.log_with("OS/Buffer:"), "OS/Buffer:"),
        }
    }

    fn statistics(&self) -> String {
        let mut command = testenv::program("softflowctl").expect("it comes with softflowd");
        command.args(["-c".as_ref(), self.folder.join("control").as_os_str()]);
        let output = command.arg("statistics").output();
        String::from_utf8_lossy(&output.expect("it answers").stdout).into_owned()
    }

    fn log_with(&self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            if log.contains(text) {
                return log;
            }
            assert!(began.elapsed() < END_TIMEOUT, "{text} in {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) {
        self.process.signal(Signal::TERM).expect("a signal");
        let ended = self
            .process
            .wait(END_TIMEOUT)
            .expect("it can be waited for");
        assert!(ended.is_some(), "{} ends", self.probe.name());
    }
}

/// A list with a subscriber for each flow.
fn subscribers(flows: u32) -> String {
    let line = |number| {
        let address = Ipv4Addr::from_bits(FIRST.to_bits() + number);
        format!("subscriber-{number},{address}\n")
    };
    let lines: String = (0..flows).map(line).collect();
    format!("subscriber,key\n{lines}")
}

/// The number that follows this text last.
fn number_after(text: &str, before: &str) -> u64 {
    let rest = text.rsplit(before).next().unwrap_or_default().trim_start();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("no number after `{before}` in {text}"))
}

/// The highest rate without loss, and whether it is the sender's; `None` if the probe is not installed.
fn rate(probe: Probe, net: &Pair, frames: &Udp, folder: &Path) -> Option<(f64, bool)> {
    let trial = |rate: f64, time: Duration| {
        let counting = Counting::start(probe, net, folder).ok_or("it is not installed")?;
        // Behind the driver, in batches: so little is the sender's that the probes show.
        let generator = Generator::arriving(&net.eth_b, frames)?;
        let count = (rate * time.as_secs_f64()) as u64;
        let sent = generator.on_cpu(0).send(count, Rate::PerSecond(rate))?;
        std::thread::sleep(Duration::from_millis(300));
        let lost = counting.lost(sent.frames);
        Ok::<_, Box<dyn Error>>(Trial {
            sent: sent.frames,
            received: sent.frames.saturating_sub(lost),
            elapsed: sent.elapsed,
        })
    };
    match SEARCH.run(trial) {
        Ok(found) => Some((found.rate.unwrap_or_default(), found.limited_by_sender)),
        Err(error) => {
            println!("{}: {error}", probe.name());
            None
        }
    }
}

pub(crate) fn rates(results: &Recorder) {
    for flows in FLOWS {
        rates_of(flows, results);
    }
}

fn rates_of(flows: u32, results: &Recorder) {
    let folder = folder("beside");
    let net = Pair::new().expect("a network");
    net.b.own_pins().expect("file systems");
    // To another station: the host's own stack drops them at once.
    let frames = Udp {
        src_addresses: flows,
        order: Order::Scattered,
        ..Udp::new(
            net.eth_a.mac(),
            Address([2, 9, 9, 9, 9, 9]),
            FIRST,
            Ipv4Addr::new(10, 8, 0, 1),
        )
    };
    fs::write(folder.join("subscribers.csv"), subscribers(flows)).expect("a file");
    let all = Probe::WEIR.into_iter().chain(Probe::EXPORTERS);
    let mut found: Vec<(Probe, Vec<f64>)> = all.map(|probe| (probe, Vec::new())).collect();
    for _ in 0..ROUNDS {
        for (probe, rates) in &mut found {
            if let Some((rate, by_sender)) = rate(*probe, &net, &frames, &folder) {
                let limit = if by_sender {
                    ", the sender's limit"
                } else {
                    ""
                };
                let name = probe.name();
                println!("{flows} flows, {name}: {:.3} M frames/s{limit}", rate / 1e6);
                rates.push(rate);
            }
        }
    }
    let found: Vec<(Probe, f64)> = found
        .into_iter()
        .map(|(probe, rates)| (probe, median(rates)))
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    let (weir, exporters) = found.split_at(Probe::WEIR.len());
    for ((ours, weir), place) in weir.iter().zip(["beside the host", "at a mirror port"]) {
        for (probe, rate) in exporters {
            let (ours, name) = (ours.name(), probe.name());
            println!("{flows} flows, {ours} : {name}: {:.2}", weir / rate);
            results.record(
                &format!("metering: {place}, {flows} flows : {name}"),
                weir / rate,
                Unit::RateOf(name),
                Bar::AtLeast(3.0),
            );
        }
    }
    let _ = fs::remove_dir_all(folder);
}
