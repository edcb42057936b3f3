//! The test bed: a tester with two ends, and the device under test between
//! them.

use super::frame::{Direction, NETWORK_LEN};
use super::{Error, SinkKind, failed};
use crate::affinity;
use crate::net::{Device, Host, Lab, Offloads};
use std::net::Ipv4Addr;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How the device under test is connected, and how it forwards frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// A bridge: frames are unchanged.
    Bridge,
    /// A router: frames are sent to its MAC addresses, and arrive from another
    /// MAC address with a lower TTL.
    Router,
    /// A router that each packet passes twice, with a program in between.
    Relay,
    /// No device: the tester's ends are connected to each other, which shows
    /// the tester's own limits.
    Cable,
}

impl Layout {
    /// Whether frames are sent to the device's own MAC addresses.
    pub(super) fn routes(self) -> bool {
        matches!(self, Layout::Router | Layout::Relay)
    }
}

/// The two CPUs of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cpus {
    /// The CPU of the sender.
    pub tester: usize,
    /// The CPU of the tested program, if there is one.
    pub dut: usize,
}

impl Cpus {
    /// The first two CPUs that this process may use; the same one twice if
    /// there is only one.
    ///
    /// # Errors
    /// The system's error.
    pub fn first_two() -> std::io::Result<Cpus> {
        let allowed = affinity::allowed()?;
        let tester = allowed.first().copied().unwrap_or_default();
        let dut = allowed.get(1).copied().unwrap_or(tester);
        Ok(Cpus { tester, dut })
    }
}

/// Settings of a test bed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The hook that receives frames.
    pub sink: SinkKind,
    /// The CPUs.
    pub cpus: Cpus,
    /// Whether frames are sent in both directions, one each way in turn.
    pub both_ways: bool,
    /// Time to wait for further frames after the last one: a trial with losses
    /// takes that much longer.
    pub settle: Duration,
    /// The seed of the frames' contents.
    pub seed: u64,
    /// Number of destination addresses, at most [`DESTINATIONS_MAX`], in
    /// pseudorandom order, each in a /24 network that the router has a route
    /// to. 0: one address, in the router's own network.
    pub destinations: u32,
}

/// Largest number of destinations in one direction.
pub const DESTINATIONS_MAX: u32 = 1 << 20;

/// Addresses of the tester's ends, and of the router before them: from the
/// networks reserved by RFC 2544 C.2.2.
const TESTER: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 19, 0, 2)];
const ROUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1)];
const PREFIX_LEN: u8 = 24;
/// The first of many destinations behind each end.
const FAR: [Ipv4Addr; 2] = [Ipv4Addr::new(48, 0, 0, 2), Ipv4Addr::new(16, 0, 0, 2)];

/// A tester, and a host for the device under test, in namespaces of this
/// process.
#[derive(Debug)]
pub struct Testbed {
    setup: Setup,
    layout: Layout,
    ends: [Device; 2],
    /// The host of the device under test, and its interfaces.
    dut: Host,
    ports: Option<[Device; 2]>,
    _lab: Lab,
}

impl Testbed {
    /// Creates a test bed.
    ///
    /// # Errors
    /// Without privilege.
    pub fn new(layout: Layout, setup: &Setup) -> Result<Testbed, Error> {
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let lab = Lab::new();
        let (tester, dut) = (lab.host("tester")?, lab.host("dut")?);
        // What the tested program pins goes with the test bed.
        dut.own_pins()
            .map_err(failed("mounting BPF file systems"))?;
        let (ends, ports) = if layout == Layout::Cable {
            let (first, second) = lab.link(&tester, &tester).connect()?;
            ([first, second], None)
        } else {
            let number = BUILT.fetch_add(1, Ordering::Relaxed) % 1000;
            let (mut ends, mut ports) = (Vec::new(), Vec::new());
            for (end, side) in ["a", "b"].into_iter().enumerate() {
                let name = format!("{side}{}n{number}", process::id());
                let mut link = lab.link(&tester, &dut).names(&format!("t{end}"), &name);
                if layout.routes() {
                    link = link
                        .addresses(TESTER[end], ROUTER[end], PREFIX_LEN)
                        .neighbours();
                }
                let (end, port) = link.connect()?;
                ends.push(end);
                ports.push(port);
            }
            let two = "two of each were made";
            let ends = <[Device; 2]>::try_from(ends).expect(two);
            (ends, Some(<[Device; 2]>::try_from(ports).expect(two)))
        };
        // Otherwise a veth does not accept redirected frames.
        for device in ends.iter().chain(ports.iter().flatten()) {
            device.set_offloads(Offloads {
                generic_receive: true,
                ..Offloads::OFF
            })?;
        }
        let destinations = setup.destinations.min(DESTINATIONS_MAX);
        if let Some(ports) = ports
            .as_ref()
            .filter(|_| layout.routes() && destinations > 0)
        {
            let sides = if setup.both_ways { 0..2 } else { 1..2 };
            for to in sides {
                let networks = FAR[to].to_bits() >> (32 - NETWORK_LEN);
                let networks = (networks..networks + destinations)
                    .map(|network| Ipv4Addr::from_bits(network << (32 - NETWORK_LEN)));
                ports[to].route_networks(networks, NETWORK_LEN, TESTER[to])?;
            }
        }
        Ok(Testbed {
            setup: *setup,
            layout,
            ends,
            dut,
            ports,
            _lab: lab,
        })
    }

    /// The host of the device under test.
    pub fn dut(&self) -> &Host {
        &self.dut
    }

    /// The two interfaces of the device under test; `None` for a direct link.
    pub fn ports(&self) -> Option<&[Device; 2]> {
        self.ports.as_ref()
    }

    /// The settings.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// How the device under test is connected.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The tester's ends: frames sent on the first arrive at the second.
    pub fn ends(&self) -> &[Device; 2] {
        &self.ends
    }

    /// The direction that starts at that end.
    pub(super) fn direction(&self, from: usize) -> Direction {
        let to = 1 - from;
        let many = self.setup.destinations.min(DESTINATIONS_MAX);
        let [src_mac, dst_mac] = [from, to].map(|end| self.ends[end].mac());
        let way = Direction {
            src_mac,
            dst_mac,
            arriving_macs: (dst_mac, src_mac),
            src: TESTER[from],
            dst: if many > 0 { FAR[to] } else { TESTER[to] },
            destinations: many.max(1),
            hops: 0,
        };
        match (&self.ports, self.layout) {
            (Some(ports), Layout::Router | Layout::Relay) => Direction {
                dst_mac: ports[from].mac(),
                arriving_macs: (dst_mac, ports[to].mac()),
                hops: if self.layout == Layout::Relay { 2 } else { 1 },
                ..way
            },
            _ => way,
        }
    }
}
