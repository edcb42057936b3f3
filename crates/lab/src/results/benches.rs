//! The list of benches: command, needs, and duration of each.

use super::recorder::quoted;
use crate::{libpcap, testenv};
use std::fmt;
use std::time::Duration;

/// A bench that `weir lab results run` runs.
#[derive(Debug)]
pub struct Listed {
    /// The name for `--only`.
    pub name: &'static str,
    /// The command.
    pub runs: Runs,
    /// The needs without which it measures nothing.
    pub needs: &'static [Needs],
    /// Approximate duration in seconds on two cores, after building.
    pub about_s: u64,
}

/// The command of a bench. Arguments are separated by blanks.
#[derive(Clone, Copy, Debug)]
pub enum Runs {
    /// A bench of Cargo: package, name and arguments.
    Bench(&'static str, &'static str, &'static str),
    /// `weir lab rfc2544`: the tested command, its role, and further arguments.
    Rfc2544(&'static str, Tested, &'static str),
}

/// The role of the command that `weir lab rfc2544` tests.
#[derive(Clone, Copy, Debug)]
pub enum Tested {
    /// A bridge: `--dut`.
    Bridge,
    /// A router: `--router`.
    Router,
}

/// A need that a machine may not meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// The privilege to create network namespaces.
    Root,
    /// `/dev/net/tun`.
    Tun,
    /// libpcap's run-time library.
    Libpcap,
    /// A program in `PATH`.
    Program(&'static str),
}

use Needs::{Libpcap, Program, Root, Tun};
use Runs::{Bench, Rfc2544};
use Tested::{Bridge, Router};

const SERVE: &[Needs] = &[Root, Tun, Program("ip"), Program("nginx"), Program("wrk")];

const TCPDUMP: &[Needs] = &[Root, Libpcap, Program("tcpdump")];

/// Every bench. A bench with an optional peer, such as `dpdk-test-acl`, runs
/// without it and records less; `needs` lists only what a bench cannot measure
/// anything without.
#[rustfmt::skip]
pub const BENCHES: &[Listed] = &[
    row("filter/native", Bench("weir-filter", "native", "table"), &[], 30),
    row("demux/plan", Bench("weir-demux", "plan", ""), &[], 120),
    row("demux/acl", Bench("weir-demux", "acl", ""), &[], 120),
    row("weir/small_plans", Bench("weir", "small_plans", ""), &[], 30),
    row("weir/radius", Bench("weir", "radius", ""), &[Root], 40),
    row(
        "weir/functions",
        Bench("weir", "functions", ""),
        &[Root, Program("nft"), Program("sysctl"), Program("tc")],
        560,
    ),
    row("weir/metering", Bench("weir", "metering", ""), &[Root], 560),
    row("weir/demux_file", Bench("weir", "demux_file", ""), &[], 180),
    row("weir/doors tcpdump", Bench("weir", "doors", "tcpdump"), TCPDUMP, 120),
    row("weir/doors readers", Bench("weir", "doors", "readers"), TCPDUMP, 180),
    row("weir/doors top", Bench("weir", "doors", "top"), &[Root, Program("script")], 90),
    row("weir/doors start", Bench("weir", "doors", "start"), &[Root, Program("script"), Program("tcpdump")], 30),
    row("weir/exec", Bench("weir", "exec", ""), &[Root, Tun], 260),
    row("weir/exec reload", Bench("weir", "exec", "reload"), &[Root, Tun, Program("nginx"), Program("wrk")], 90),
    row("link/pcap", Bench("weir-link", "pcap", ""), &[], 60),
    row("link/bpf", Bench("weir-link", "bpf", ""), &[Root], 30),
    row("link/plan_kernel runs", Bench("weir-link", "plan_kernel", "runs"), &[Root], 60),
    row("link/plan_kernel few", Bench("weir-link", "plan_kernel", "few"), &[Root], 90),
    row("link/plan_kernel fanout", Bench("weir-link", "plan_kernel", "fanout"), &[Root], 30),
    row("link/plan_kernel acl", Bench("weir-link", "plan_kernel", "acl"), &[Root], 60),
    row("link/plan_kernel mixed", Bench("weir-link", "plan_kernel", "mixed"), &[Root], 30),
    row("link/plan_kernel changes", Bench("weir-link", "plan_kernel", "changes"), &[Root], 15),
    row("link/plan_kernel sockets", Bench("weir-link", "plan_kernel", "sockets"), &[Root], 60),
    row("link/plan_kernel evenly", Bench("weir-link", "plan_kernel", "evenly"), &[Root], 90),
    row("link/plan_kernel costs", Bench("weir-link", "plan_kernel", "costs"), &[Root], 120),
    row("link/plan_kernel lossless", Bench("weir-link", "plan_kernel", "lossless"), &[Root], 600),
    row("link/plan_kernel arriving", Bench("weir-link", "plan_kernel", "arriving"), &[Root], 600),
    row("link/plan_kernel host", Bench("weir-link", "plan_kernel", "host"), &[Root], 60),
    row("link/meter_kernel tables", Bench("weir-link", "meter_kernel", "tables"), &[Root], 30),
    row("link/meter_kernel stage", Bench("weir-link", "meter_kernel", "stage"), &[Root], 60),
    row("link/meter_kernel policing", Bench("weir-link", "meter_kernel", "policing"), &[Root], 60),
    row("esp/esp", Bench("weir-esp", "esp", ""), &[], 15),
    row("sched/classes", Bench("weir-sched", "classes", ""), &[], 15),
    row("broker/ports", Bench("weir-broker", "ports", ""), &[Root], 30),
    row("stack/pcb", Bench("weir-stack", "pcb", "10000000"), &[], 300),
    row("stack/goodput", Bench("weir-stack", "goodput", ""), &[], 30),
    row("stack/rates", Bench("weir-stack", "rates", ""), &[], 60),
    row("stack/rates idle", Bench("weir-stack", "rates", "1000000"), &[], 60),
    row("experiments/paper_tables", Bench("weir-experiments", "paper_tables", ""), &[], 5),
    row("socket/tap", Bench("weir-socket", "tap", ""), &[Root, Tun], 45),
    row("socket/shards", Bench("weir-socket", "shards", ""), &[Root, Tun], 60),
    row("socket/loss", Bench("weir-socket", "loss", ""), &[Root, Tun], 420),
    row("tap/tap", Bench("weir-tap", "tap", ""), &[Root], 30),
    row("apps/fib", Bench("weir-apps", "fib", ""), &[], 120),
    row("ledger/postgres", Bench("weir-ledger", "postgres", ""), &[Program("psql")], 60),
    row("weir/serve", Bench("weir", "serve", ""), SERVE, 240),
    row("weir/serve slow", Bench("weir", "serve", "slow"), SERVE, 90),
    row(
        "rfc2544/bridge tc",
        Rfc2544("weir bridge {a} {b}", Bridge, "--peer linux-bridge --sizes 64 --sink tc \
            --tests throughput --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root], 90,
    ),
    row(
        "rfc2544/bridge xdp",
        Rfc2544("weir bridge {a} {b}", Bridge, "--peer linux-bridge --sizes 64 --sink xdp \
            --tests throughput --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root], 90,
    ),
    row(
        "rfc2544/bridge latency",
        Rfc2544("weir bridge {a} {b} --spin-us 1000 --hang-ms 1000", Bridge,
            "--peer linux-bridge --sizes 64 --sink tc --tests latency --latency-rate 300000 \
            --confirm 0.4 --repeat 5"),
        &[Root], 60,
    ),
    row(
        "rfc2544/bridge libpcap",
        Rfc2544("weir bridge {a} {b}", Bridge, "--peer libpcap-bridge --sizes 64 --sink tc \
            --tests throughput --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root, Libpcap], 90,
    ),
    row(
        "rfc2544/bridge testpmd",
        Rfc2544("weir bridge {a} {b}", Bridge, "--peer testpmd-af_xdp --peer testpmd-af_packet \
            --sizes 64 --sink tc --tests throughput --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root, Program("dpdk-testpmd")], 120,
    ),
    row(
        "rfc2544/router tc",
        Rfc2544("weir route {a} {b}", Router, "--peer linux-routing --sizes 64 --sink tc \
            --tests throughput --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root], 90,
    ),
    row(
        "rfc2544/router xdp",
        Rfc2544("weir route {a} {b}", Router, "--peer linux-routing --sizes 64 --sink xdp \
            --tests throughput --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root], 90,
    ),
    row(
        "rfc2544/router destinations",
        Rfc2544("weir route {a} {b} --kernel-routes", Router, "--destinations 10,1000000 \
            --sizes 64 --sink tc --tests throughput --duration 0.2 --confirm 0"),
        &[Root], 180,
    ),
    row(
        "rfc2544/flow cache xdp",
        Rfc2544("weir bridge {a} {b} --flow-cache on", Bridge, "--peer linux-bridge \
            --peer xdp-redirect --sizes 64 --sink xdp --tests throughput \
            --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root], 120,
    ),
    row(
        "rfc2544/flow cache tc",
        Rfc2544("weir bridge {a} {b} --flow-cache on", Bridge, "--peer linux-bridge \
            --peer xdp-redirect --sizes 64 --sink tc --tests throughput \
            --duration 0.2 --confirm 0.4 --repeat 3"),
        &[Root], 120,
    ),
];

const fn row(name: &'static str, runs: Runs, needs: &'static [Needs], about_s: u64) -> Listed {
    Listed {
        name,
        runs,
        needs,
        about_s,
    }
}

impl Runs {
    /// The arguments after the bench's name, or after `weir`.
    pub fn arguments(self) -> Vec<&'static str> {
        match self {
            Bench(_, _, arguments) => arguments.split_whitespace().collect(),
            Rfc2544(command, tested, arguments) => {
                let option = match tested {
                    Bridge => "--dut",
                    Router => "--router",
                };
                let first = ["lab", "rfc2544", option, command];
                first
                    .into_iter()
                    .chain(arguments.split_whitespace())
                    .collect()
            }
        }
    }
}

impl Listed {
    /// Time limit: several times the duration, for a loaded machine.
    pub fn limit(&self) -> Duration {
        Duration::from_secs((5 * self.about_s).max(300))
    }

    /// Why it cannot run here; `None` if it can.
    pub fn lacks(&self) -> Option<String> {
        self.needs.iter().find_map(|need| need.lacks())
    }
}

impl Needs {
    /// Why this machine or user lacks it; `None` if it does not.
    fn lacks(self) -> Option<String> {
        let found = match self {
            Root => testenv::has_root(),
            Tun => testenv::has_tun(),
            Libpcap => libpcap::open()
                .map(drop)
                .map_err(|_| format!("no libpcap ({})", libpcap::REMEDY)),
            Program(name) => testenv::has_programs(&[name]),
        };
        found.err()
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Root => "root",
            Tun => "/dev/net/tun",
            Libpcap => "libpcap",
            Program(name) => name,
        })
    }
}

impl fmt::Display for Runs {
    /// The command line in shell syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments = self.arguments();
        match self {
            Bench(package, bench, _) => {
                let dashes = if arguments.is_empty() { "" } else { " --" };
                write!(f, "cargo bench -p {package} --bench {bench}{dashes}")?;
            }
            Rfc2544(..) => f.write_str("weir")?,
        }
        let mut arguments = arguments.iter();
        arguments.try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};
    use std::fs;
    use std::path::Path;

    #[test]
    fn names_are_unique_and_benches_are_there() {
        let names: HashSet<_> = BENCHES.iter().map(|listed| listed.name).collect();
        assert_eq!(names.len(), BENCHES.len());
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let listed = BENCHES.iter().filter_map(|one| match one.runs {
            Bench(package, bench, _) => {
                let folder = package.strip_prefix("weir-").unwrap_or(package);
                Some(format!("{folder}/{bench}"))
            }
            Rfc2544(..) => None,
        });
        let listed: BTreeSet<String> = listed.collect();
        let mut there = BTreeSet::new();
        for krate in fs::read_dir(crates).unwrap() {
            let krate = krate.unwrap();
            for bench in fs::read_dir(krate.path().join("benches"))
                .into_iter()
                .flatten()
            {
                let path = bench.unwrap().path();
                let is_file = path.extension().is_some_and(|end| end == "rs");
                if is_file || path.join("main.rs").is_file() {
                    let (krate, bench) = (krate.file_name(), path.file_stem().unwrap());
                    there.insert(format!("{}/{}", krate.display(), bench.display()));
                }
            }
        }
        assert_eq!(listed, there, "rows of BENCHES, and benches of crates");
        for one in BENCHES {
            assert!(one.about_s > 0 && one.limit() >= Duration::from_secs(2 * one.about_s));
        }
    }

    #[test]
    fn commands_are_those_that_measurements_name() {
        let of = |name: &str| {
            let listed = BENCHES.iter().find(|listed| listed.name == name).unwrap();
            listed.runs.to_string()
        };
        assert_eq!(of("demux/acl"), "cargo bench -p weir-demux --bench acl");
        assert_eq!(
            of("stack/pcb"),
            "cargo bench -p weir-stack --bench pcb -- 10000000"
        );
        let bridge = of("rfc2544/bridge tc");
        assert!(
            bridge.starts_with("weir lab rfc2544 --dut 'weir bridge {a} {b}' --peer"),
            "{bridge}"
        );
    }
}
