//! The requirements on bridge and router, and the recording of results.

use super::candidate::Candidate;
use super::{Args, Report, Sink, SizeResult};
use crate::report::format::grouped;
use weir_lab::results::{Bar, RecordError, Recorder, Unit};
use weir_lab::rfc2544::Baseline;

/// The frame size that requirements apply to, FCS included.
const SIZE: usize = 64;

/// The kind of a weir command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// `weir bridge` or `weir route` without flow cache: its code processes
    /// each frame.
    User(Path),
    /// The same with the flow cache enabled.
    Fast(Path),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    Bridge,
    Router,
}

impl Kind {
    /// The kind of a tested command; `None` unless it is one of weir's.
    fn of(command: &str) -> Option<Kind> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let path = match words[..] {
            ["weir", "bridge", ..] => Path::Bridge,
            ["weir", "route", ..] => Path::Router,
            _ => return None,
        };
        // `--fast-path` is the flag's former name.
        let is_fast = ["--flow-cache", "--fast-path"].iter().any(|flag| {
            words.windows(2).any(|two| two == [*flag, "on"])
                || words.contains(&format!("{flag}=on").as_str())
        });
        Some(if is_fast {
            Kind::Fast(path)
        } else {
            Kind::User(path)
        })
    }

    /// The required throughput, as a ratio to a peer's.
    fn rate(self, peer: Baseline, sink: Sink) -> Bar {
        let least = match (self, peer, sink) {
            (Kind::User(Path::Bridge), Baseline::LinuxBridge, _) => 0.8,
            (Kind::User(Path::Router), Baseline::LinuxRouting, _) => 0.8,
            (Kind::User(_), Baseline::LibpcapBridge, _) => 1.3,
            (Kind::User(_), Baseline::TestpmdAfXdp | Baseline::TestpmdAfPacket, _) => 1.0,
            (Kind::Fast(Path::Bridge), Baseline::LinuxBridge, Sink::Tc) => 1.3,
            (Kind::Fast(Path::Bridge), Baseline::LinuxBridge, Sink::Xdp) => 2.5,
            (Kind::Fast(_), Baseline::XdpRedirect, _) => 0.85,
            _ => return Bar::None,
        };
        Bar::AtLeast(least)
    }

    /// The required median latency, as a ratio to a peer's.
    fn latency(self, peer: Baseline) -> Bar {
        match (self, peer) {
            (Kind::User(Path::Bridge), Baseline::LinuxBridge) => Bar::AtMost(1.5),
            _ => Bar::None,
        }
    }

    /// The required ratio of the cost with a million destinations to that with
    /// ten.
    fn destinations(self, few: u32, many: u32) -> Bar {
        match (self, few, many) {
            (Kind::User(Path::Router), 10, 1_000_000) => Bar::AtMost(1.2),
            _ => Bar::None,
        }
    }
}

/// Records the results of all candidates, and the ratios of weir's commands to
/// each peer. A throughput that was not reached is recorded as 0.
pub(super) fn record(
    results: &Recorder,
    args: &Args,
    contestants: &[Candidate],
    report: &Report,
) -> Result<(), RecordError> {
    if !results.is_on() {
        return Ok(());
    }
    for found in &report.results {
        let entry = Entry::new(args, contestants, found);
        if found.has_throughput() {
            let rate = found.rate().unwrap_or_default();
            let name = entry.named("frames without loss");
            results.try_record(&name, rate, Unit::PerSecond("frames"), Bar::None)?;
        }
        if let Some(ns) = found.median_ns() {
            let name = entry.named(&entry.latency());
            results.try_record(&name, ns as f64, Unit::Nanoseconds, Bar::None)?;
        }
        for other in report
            .results
            .iter()
            .filter(|other| other.size == found.size)
        {
            entry.beside(results, &Entry::new(args, contestants, other))?;
        }
    }
    Ok(())
}

/// The results of one candidate, with its properties from the command line.
struct Entry<'a> {
    args: &'a Args,
    candidate: &'a Candidate,
    result: &'a SizeResult,
    kind: Option<Kind>,
}

impl<'a> Entry<'a> {
    fn new(args: &'a Args, contestants: &'a [Candidate], found: &'a SizeResult) -> Entry<'a> {
        let who = &contestants[found.index];
        let kind = who.command().and_then(Kind::of);
        Entry {
            args,
            candidate: who,
            result: found,
            kind,
        }
    }

    /// The name of a measurement, with everything that affects its value.
    fn named(&self, what: &str) -> String {
        let sink = match self.args.sink {
            Sink::Xdp => "XDP",
            Sink::Tc => "tc",
        };
        let mut name = format!(
            "rfc2544: {}, {} B, sink {sink}",
            self.result.name, self.result.size
        );
        for (is_so, more) in [
            (self.args.both_ways, ", both ways"),
            (self.args.realtime, ", real-time"),
        ] {
            name += if is_so { more } else { "" };
        }
        format!("{name}: {what}")
    }

    fn latency(&self) -> String {
        match self.args.latency_rate {
            Some(rate) => format!("median latency at {} frames/s", grouped(rate as u64)),
            None => format!(
                "median latency at {} % of the throughput",
                self.args.latency_at
            ),
        }
    }

    /// Records this candidate, if it is weir's, as a ratio to `other`: a peer
    /// with as many destinations, or itself with fewer.
    fn beside(&self, results: &Recorder, other: &Entry<'_>) -> Result<(), RecordError> {
        let Some(kind) = self.kind else {
            return Ok(());
        };
        let required = |bar| {
            if self.result.size == SIZE {
                bar
            } else {
                Bar::None
            }
        };
        let (own, others) = (self.result, other.result);
        let (many, few) = (self.candidate.destinations, other.candidate.destinations);
        match other.candidate.peer() {
            Some(peer) if few == many => {
                let name = peer.to_string();
                if let Some(rate) = others.rate() {
                    let ratio = own.rate().unwrap_or_default() / rate;
                    let bar = required(kind.rate(peer, self.args.sink));
                    let what = self.named(&format!("frames without loss : {name}"));
                    results.try_record(&what, ratio, Unit::RateOf(&name), bar)?;
                }
                if let Some((own, other)) = own.median_ns().zip(others.median_ns()) {
                    let ratio = own as f64 / (other as f64).max(1.0);
                    let bar = required(kind.latency(peer));
                    let what = self.named(&format!("{} : {name}", self.latency()));
                    results.try_record(&what, ratio, Unit::CostOf(&name), bar)?;
                }
            }
            None if few < many && self.candidate.command() == other.candidate.command() => {
                if let Some((own, other)) = own.rate().zip(others.rate()) {
                    let name = format!("{} destinations", grouped(few.into()));
                    let bar = required(kind.destinations(few, many));
                    let what = self.named(&format!("cost of a frame : {name}"));
                    results.try_record(&what, other / own, Unit::CostOf(&name), bar)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_follow_the_command_the_peer_and_the_sink() {
        let bridge = Kind::of("weir bridge {a} {b} --hang-ms 1000").unwrap();
        assert_eq!(
            bridge.rate(Baseline::LinuxBridge, Sink::Tc),
            Bar::AtLeast(0.8)
        );
        assert_eq!(
            bridge.rate(Baseline::LibpcapBridge, Sink::Xdp),
            Bar::AtLeast(1.3)
        );
        assert_eq!(
            bridge.rate(Baseline::TestpmdAfXdp, Sink::Tc),
            Bar::AtLeast(1.0)
        );
        assert_eq!(bridge.rate(Baseline::XdpRedirect, Sink::Tc), Bar::None);
        assert_eq!(bridge.latency(Baseline::LinuxBridge), Bar::AtMost(1.5));
        for line in ["--flow-cache on", "--flow-cache=on", "--fast-path on"] {
            let fast = Kind::of(&format!("weir bridge {{a}} {{b}} {line}")).unwrap();
            assert_eq!(
                fast.rate(Baseline::LinuxBridge, Sink::Tc),
                Bar::AtLeast(1.3)
            );
            assert_eq!(
                fast.rate(Baseline::LinuxBridge, Sink::Xdp),
                Bar::AtLeast(2.5)
            );
            assert_eq!(
                fast.rate(Baseline::XdpRedirect, Sink::Xdp),
                Bar::AtLeast(0.85)
            );
            assert_eq!(fast.latency(Baseline::LinuxBridge), Bar::None);
        }
        let router = Kind::of("weir route {a} {b} --flow-cache off").unwrap();
        assert_eq!(
            router.rate(Baseline::LinuxRouting, Sink::Xdp),
            Bar::AtLeast(0.8)
        );
        assert_eq!(router.destinations(10, 1_000_000), Bar::AtMost(1.2));
        assert_eq!(router.destinations(10, 1000), Bar::None);
        assert_eq!(Kind::of("testpmd weir bridge"), None);
    }
}
