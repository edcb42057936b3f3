//! Two hosts with a bridge between: `a ── left │ right ── b`.

use std::ops::Deref;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_lab::load::Generator;
use weir_lab::net::{Linear, Offloads};
use weir_link::net::Interface;
use weir_link::xdp::{Bypass, Gate};
use weir_tap::{
    Bridge, ChunkCounts, Context, Counts, FlowCacheStats, Frame, LinkCounts, StopToken, TapError,
    Verdict,
};

pub(crate) struct Net {
    line: Linear,
    /// Keep programs at the ends.
    passing: Vec<mpsc::Sender<()>>,
}

impl Deref for Net {
    type Target = Linear;

    fn deref(&self) -> &Linear {
        &self.line
    }
}

/// What a bridge was when it ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) counts: [LinkCounts; 2],
    pub(crate) tap: Counts,
    pub(crate) census: ChunkCounts,
    pub(crate) fast: FlowCacheStats,
}

impl Report {
    /// Frames that the bridge knows to have lost.
    pub(crate) fn lost(&self) -> u64 {
        let of = |c: &LinkCounts| c.tx_ring_full + c.stale + c.rx_full + c.rx_dropped + c.invalid;
        self.counts.iter().map(of).sum()
    }
}

impl Net {
    /// Frames as a wire would carry them.
    pub(crate) fn new() -> Net {
        Net::with(Offloads::OFF)
    }

    pub(crate) fn with(offloads: Offloads) -> Net {
        Net {
            line: Linear::new(offloads).unwrap(),
            passing: Vec::new(),
        }
    }

    /// As [`Net::new`], and both ends take frames that a program redirects to
    /// them, since they have a program at XDP; it hands all to the host.
    pub(crate) fn redirecting() -> Net {
        let mut net = Net::new();
        for device in [net.eth_a.clone(), net.eth_b.clone()] {
            let (host, index) = (device.host().clone(), device.index());
            let (is_there, there) = mpsc::channel();
            let (ends, ended) = mpsc::channel::<()>();
            std::thread::spawn(move || {
                host.enter().unwrap();
                let interface = Interface::numbered(index).unwrap();
                let gate = Gate::attach(&[&interface], Bypass::Kernel, false).unwrap();
                is_there.send(()).unwrap();
                let _ = ended.recv();
                drop(gate);
            });
            there.recv().unwrap();
            net.passing.push(ends);
        }
        net
    }

    /// Gives both hosts addresses; then their kernels send frames of their
    /// own.
    pub(crate) fn with_addresses(self) -> Net {
        for (device, v6) in [(&self.eth_a, "fd09::1"), (&self.eth_b, "fd09::2")] {
            let v6: std::net::Ipv6Addr = v6.parse().unwrap();
            device.add_address(v6, 64).unwrap();
        }
        Net {
            line: self.line.with_addresses().unwrap(),
            ..self
        }
    }

    /// Frames from `a` to `b`.
    pub(crate) fn generator(&self) -> Generator {
        self.line.generator().unwrap()
    }

    /// Runs a bridge in the middle, on a thread.
    pub(crate) fn bridge<E>(
        &self,
        set: impl FnOnce(Bridge) -> Bridge + Send + 'static,
        each: impl FnOnce() -> E + Send + 'static,
    ) -> Running
    where
        E: FnMut(&mut Frame, &mut Context<'_>) -> Verdict,
    {
        let host = self.middle.clone();
        let stop = StopToken::default();
        let asked = stop.clone();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            host.enter().unwrap();
            // Other tests keep the cores busy: a test of hangs sets its limit.
            let patient = Bridge::between("left", "right")?.hang_max(Duration::from_secs(10));
            let bridge = set(patient).until(&asked);
            let mut report = None;
            let ran = bridge.run_with(each(), |tap| {
                let links: Vec<LinkCounts> = tap.links().map(|l| tap.link_counts(l)).collect();
                report = Some(Report {
                    counts: links.try_into().unwrap(),
                    tap: tap.counts(),
                    census: tap.census(),
                    fast: tap
                        .flow_cache_stats()
                        .map(|fast| fast.counts())
                        .unwrap_or_default(),
                });
                let _ = ready.send(());
            });
            let census = ran?;
            let report = report.expect("it is looked at when it is ready");
            Ok(Report { census, ..report })
        });
        match is_ready.recv() {
            Ok(()) => Running { stop, thread },
            Err(_) => panic!("no bridge: {:?}", thread.join()),
        }
    }

    /// Waits until it is so, or a while.
    pub(crate) fn settle(&self, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(2);
        while !is_so() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) struct Running {
    stop: StopToken,
    thread: JoinHandle<Result<Report, TapError>>,
}

impl Running {
    /// Ends it, and says what it was.
    pub(crate) fn end(self) -> Report {
        self.stop.stop();
        self.thread.join().unwrap().unwrap()
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(self) -> Result<Report, TapError> {
        self.thread.join().unwrap()
    }
}
