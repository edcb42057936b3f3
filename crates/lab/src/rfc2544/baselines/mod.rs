//! Baselines: other bridges and routers for comparison.

mod pcap;
mod redirect;
mod testpmd;
mod thread_dut;
mod tun;

use super::Error;
use super::dut::{Dut, Running};
use super::testbed::{Layout, Testbed};
use crate::net::Device;
use std::fmt;
use std::str::FromStr;

/// A baseline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Baseline {
    /// A direct link: the tester's own limits.
    Cable,
    /// The Linux bridge.
    LinuxBridge,
    /// IPv4 routing by the Linux kernel.
    LinuxRouting,
    /// An XDP program that looks up the station in a hash table and redirects
    /// the frame, and nothing else: the limit of forwarding in the kernel.
    XdpRedirect,
    /// A bridge on libpcap, part of this crate: two handles in immediate mode,
    /// polled without pause, `pcap_dispatch` and `pcap_inject`.
    LibpcapBridge,
    /// A program on a TUN interface through which the kernel routes all
    /// packets: the present form of a divert socket.
    TunRelay,
    /// DPDK's testpmd on `AF_XDP` sockets.
    TestpmdAfXdp,
    /// DPDK's testpmd on packet sockets.
    TestpmdAfPacket,
}

impl Baseline {
    /// All baselines.
    pub const ALL: [Baseline; 8] = [
        Baseline::Cable,
        Baseline::LinuxBridge,
        Baseline::LinuxRouting,
        Baseline::XdpRedirect,
        Baseline::LibpcapBridge,
        Baseline::TunRelay,
        Baseline::TestpmdAfXdp,
        Baseline::TestpmdAfPacket,
    ];

    /// The name in command lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Baseline::Cable => "cable",
            Baseline::LinuxBridge => "linux-bridge",
            Baseline::LinuxRouting => "linux-routing",
            Baseline::XdpRedirect => "xdp-redirect",
            Baseline::LibpcapBridge => "libpcap-bridge",
            Baseline::TunRelay => "tun-relay",
            Baseline::TestpmdAfXdp => "testpmd-af_xdp",
            Baseline::TestpmdAfPacket => "testpmd-af_packet",
        }
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No baseline has that name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no peer is called `{name}`: give one of {}", Baseline::ALL.map(Baseline::as_str).join(", "))]
pub struct NoSuchBaseline {
    /// The name.
    pub name: String,
}

impl FromStr for Baseline {
    type Err = NoSuchBaseline;

    fn from_str(name: &str) -> Result<Baseline, NoSuchBaseline> {
        let mut all = Baseline::ALL.into_iter();
        all.find(|peer| peer.as_str() == name)
            .ok_or_else(|| NoSuchBaseline {
                name: name.to_owned(),
            })
    }
}

impl Dut for Baseline {
    fn name(&self) -> &str {
        self.as_str()
    }

    fn layout(&self) -> Layout {
        match self {
            Baseline::Cable => Layout::Cable,
            Baseline::LinuxRouting => Layout::Router,
            Baseline::TunRelay => Layout::Relay,
            Baseline::LinuxBridge
            | Baseline::XdpRedirect
            | Baseline::LibpcapBridge
            | Baseline::TestpmdAfXdp
            | Baseline::TestpmdAfPacket => Layout::Bridge,
        }
    }

    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error> {
        let Some(ports) = bench.ports() else {
            return Ok(Box::new(Kernel(())));
        };
        match self {
            Baseline::Cable => Ok(Box::new(Kernel(()))),
            Baseline::LinuxBridge => linux_bridge(bench, ports),
            Baseline::LinuxRouting => linux_routing(bench),
            Baseline::XdpRedirect => Ok(Box::new(Kernel(redirect::attach(bench, ports)?))),
            Baseline::LibpcapBridge => Ok(Box::new(pcap::start(bench, ports)?)),
            Baseline::TunRelay => Ok(Box::new(tun::start(bench, ports)?)),
            Baseline::TestpmdAfXdp => testpmd::start(bench, "net_af_xdp"),
            Baseline::TestpmdAfPacket => testpmd::start(bench, "net_af_packet"),
        }
    }
}

/// sysctls by which the Linux bridge passes frames to the IP firewall, as on
/// machines with containers: the firewall takes more than half of the bridge's
/// time.
const BRIDGE_FIREWALL: [&str; 3] = [
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.bridge.bridge-nf-call-arptables",
];

fn linux_bridge(bench: &Testbed, ports: &[Device; 2]) -> Result<Box<dyn Running>, Error> {
    for name in BRIDGE_FIREWALL {
        // Without the module these sysctls do not exist.
        if bench.dut().sysctl(name).is_ok() {
            bench.dut().set_sysctl(name, "0")?;
        }
    }
    let bridge = bench.dut().bridge("br0")?;
    for port in ports {
        port.attach_to(&bridge)?;
    }
    Ok(Box::new(Kernel(())))
}

fn linux_routing(bench: &Testbed) -> Result<Box<dyn Running>, Error> {
    bench.dut().set_sysctl("net.ipv4.ip_forward", "1")?;
    Ok(Box::new(Kernel(())))
}

/// A baseline in the kernel, which ends with the objects that hold it or with
/// its host.
struct Kernel<T>(T);

impl<T> Running for Kernel<T> {
    fn check(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}
