//! The forwarding decision of a learning bridge (IEEE 802.1D, 802.1Q) with any
//! number of ports. No I/O, no clock.

use crate::bridge::fdb::{Fdb, Learned};
use weir_wire::ethernet::{self, Address};

/// Largest number of ports.
pub const PORTS_MAX: usize = 256;

/// Length of an Ethernet header, in bytes.
const HEADER: usize = ethernet::Repr::LEN;

/// The VLANs that a port carries (IEEE 802.1Q).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vlans {
    /// A bit for each VLAN number; 0 stands for untagged frames.
    allowed: Box<[u64; 64]>,
}

impl Vlans {
    /// All VLANs.
    pub fn all() -> Vlans {
        Vlans {
            allowed: Box::new([u64::MAX; 64]),
        }
    }

    /// No VLAN.
    pub fn none() -> Vlans {
        Vlans {
            allowed: Box::new([0; 64]),
        }
    }

    /// Permits a VLAN; 0 stands for untagged and priority-tagged frames.
    pub fn allow(&mut self, vlan: u16) {
        let vlan = usize::from(vlan & 0xfff);
        self.allowed[vlan / 64] |= 1 << (vlan % 64);
    }

    /// Whether the VLAN is permitted.
    #[inline]
    pub fn allows(&self, vlan: u16) -> bool {
        let vlan = usize::from(vlan & 0xfff);
        self.allowed[vlan / 64] & 1 << (vlan % 64) != 0
    }
}

/// The error for a text that is not a list of VLANs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not a list of VLANs: numbers from 1 to 4094, ranges such as 10-20, and `untagged`, with commas between"
)]
pub struct NotVlans(pub String);

impl std::str::FromStr for Vlans {
    type Err = NotVlans;

    /// Parses a list such as `10,20-30,untagged`.
    fn from_str(text: &str) -> Result<Vlans, NotVlans> {
        let refuse = || NotVlans(text.chars().take(80).collect());
        let number = |text: &str| {
            let number: u16 = text.trim().parse().map_err(|_| refuse())?;
            match number {
                1..=4094 => Ok(number),
                _ => Err(refuse()),
            }
        };
        let mut vlans = Vlans::none();
        for part in text.split(',') {
            match (part.trim(), part.split_once('-')) {
                ("untagged", _) => vlans.allow(0),
                (_, Some((first, last))) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(refuse());
                    }
                    (first..=last).for_each(|vlan| vlans.allow(vlan));
                }
                (one, None) => vlans.allow(number(one)?),
            }
        }
        Ok(vlans)
    }
}

/// The settings of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The VLANs that each port carries.
    pub vlans: Vec<Vlans>,
    /// Whether frames of the spanning tree protocol pass.
    pub stp: bool,
    /// Whether frames to the other reserved bridge addresses (01:80:c2:00:00:02
    /// to 0f: LACP, 802.1X, LLDP …) pass.
    pub reserved: bool,
    /// Largest number of stations.
    pub stations: usize,
    /// Ageing time of a silent station, in seconds.
    pub age_max: u32,
}

impl Settings {
    /// Settings that forward everything, as a wire does: 300 seconds, 16,384
    /// stations.
    pub fn wire(ports: usize) -> Settings {
        Settings {
            vlans: vec![Vlans::all(); ports.min(PORTS_MAX)],
            stp: true,
            reserved: true,
            stations: 1 << 14,
            age_max: 300,
        }
    }
}

/// The decision on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// Forward to one port.
    Port(u16),
    /// Flood to all ports except the ingress port, as far as [`Switch::passes`]
    /// permits.
    Flood {
        /// The frame's VLAN.
        vlan: u16,
    },
    /// Drop.
    Drop(Reason),
}

/// The reason why a frame is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The destination is behind the ingress port.
    Local,
    /// A port does not carry the frame's VLAN.
    Vlan,
    /// The destination is a reserved bridge address, such as that of the
    /// spanning tree protocol.
    Reserved,
    /// There is no Ethernet header, or the source is a group or zero address.
    Malformed,
}

/// The counters of the frames that arrived on a port.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SwitchCounts {
    /// Number of frames forwarded to one port.
    pub forwarded: u64,
    /// Number of frames flooded.
    pub flooded: u64,
    /// Number of frames dropped for [`Reason::Local`].
    pub local: u64,
    /// Number of frames dropped for [`Reason::Vlan`].
    pub vlan: u64,
    /// Number of frames dropped for [`Reason::Reserved`].
    pub reserved: u64,
    /// Number of frames dropped for [`Reason::Malformed`].
    pub malformed: u64,
    /// Number of stations learned.
    pub learned: u64,
    /// Number of stations that moved from another port.
    pub moved: u64,
    /// Number of stations evicted for lack of room.
    pub evicted: u64,
}

/// A learning bridge.
#[derive(Clone, Debug)]
pub struct Switch {
    fdb: Fdb,
    settings: Settings,
    counts: Vec<SwitchCounts>,
    moved: Option<(u16, Address)>,
}

impl Switch {
    /// A bridge with as many ports as the settings state.
    pub fn new(settings: Settings, seed: u64) -> Switch {
        Switch {
            fdb: Fdb::new(settings.stations, settings.age_max, seed),
            counts: vec![SwitchCounts::default(); settings.vlans.len()],
            moved: None,
            settings,
        }
    }

    /// The decision on a frame that arrived on a port at second `now`.
    #[inline]
    pub fn decide(&mut self, from: usize, frame: &[u8], now: u32) -> Decision {
        let decision = self.lookup(from, frame, now);
        if let Some(counts) = self.counts.get_mut(from) {
            *match decision {
                Decision::Port(_) => &mut counts.forwarded,
                Decision::Flood { .. } => &mut counts.flooded,
                Decision::Drop(Reason::Local) => &mut counts.local,
                Decision::Drop(Reason::Vlan) => &mut counts.vlan,
                Decision::Drop(Reason::Reserved) => &mut counts.reserved,
                Decision::Drop(Reason::Malformed) => &mut counts.malformed,
            } += 1;
        }
        decision
    }

    #[inline]
    fn lookup(&mut self, from: usize, frame: &[u8], now: u32) -> Decision {
        let (Some(header), Some(vlans)) =
            (frame.first_chunk::<HEADER>(), self.settings.vlans.get(from))
        else {
            return Decision::Drop(Reason::Malformed);
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *header;
        let (dst, src) = (
            Address([d0, d1, d2, d3, d4, d5]),
            Address([s0, s1, s2, s3, s4, s5]),
        );
        if src.is_multicast() || src == Address::default() {
            return Decision::Drop(Reason::Malformed);
        }
        let vlan = vlan(frame);
        if !vlans.allows(vlan) {
            return Decision::Drop(Reason::Vlan);
        }
        if let [0x01, 0x80, 0xc2, 0, 0, last @ 0..=0x0f] = dst.0
            && !self.reserved_passes(last)
        {
            return Decision::Drop(Reason::Reserved);
        }
        let counts = &mut self.counts[from];
        match self.fdb.learn(vlan, src, from as u16, now) {
            Learned::Known => {}
            Learned::New => counts.learned += 1,
            Learned::Moved => {
                counts.moved += 1;
                self.moved = Some((vlan, src));
            }
            Learned::Evicted => {
                counts.learned += 1;
                counts.evicted += 1;
            }
        }
        if dst.is_multicast() {
            return Decision::Flood { vlan };
        }
        match self.fdb.port(vlan, dst, now) {
            None => Decision::Flood { vlan },
            Some(port) if usize::from(port) == from => Decision::Drop(Reason::Local),
            Some(port) if !self.passes(port.into(), vlan) => Decision::Drop(Reason::Vlan),
            Some(port) => Decision::Port(port),
        }
    }

    /// Whether a frame to a reserved address passes. Pause frames (802.3x)
    /// never do.
    fn reserved_passes(&self, last: u8) -> bool {
        match last {
            0 => self.settings.stp,
            1 => false,
            _ => self.settings.reserved,
        }
    }

    /// Whether a port carries the frames of a VLAN.
    #[inline]
    pub fn passes(&self, port: usize, vlan: u16) -> bool {
        let vlans = self.settings.vlans.get(port);
        vlans.is_some_and(|vlans| vlans.allows(vlan))
    }

    /// The VLAN and address of a station that the last frame showed to have
    /// moved to another port; returned once, else `None`.
    #[inline]
    pub fn take_moved(&mut self) -> Option<(u16, Address)> {
        self.moved.take()
    }

    /// Refreshes a station behind a port whose frames the kernel forwarded;
    /// returns `false` if it is not known there.
    pub fn note_forwarded_by_kernel(
        &mut self,
        port: u16,
        vlan: u16,
        station: Address,
        now: u32,
    ) -> bool {
        let known = self.fdb.port(vlan, station, now) == Some(port);
        if known {
            self.fdb.learn(vlan, station, port, now);
        }
        known
    }

    /// The port of a station of a VLAN at second `now`; `None` if unknown.
    pub fn port(&self, vlan: u16, station: Address, now: u32) -> Option<u16> {
        self.fdb.port(vlan, station, now)
    }

    /// Forgets the stations behind a port, whose link is down.
    pub fn forget(&mut self, port: u16) {
        self.fdb.forget(port);
    }

    /// The counters of a port.
    pub fn counts(&self, port: usize) -> SwitchCounts {
        self.counts.get(port).copied().unwrap_or_default()
    }

    /// Number of stations known at second `now`.
    pub fn stations(&self, now: u32) -> usize {
        self.fdb.stations(now)
    }
}

/// The VLAN of a frame; 0 if it is untagged.
#[inline]
fn vlan(frame: &[u8]) -> u16 {
    match frame.get(HEADER - 2..HEADER + 2) {
        Some([0x81, 0x00, high, low]) => u16::from_be_bytes([*high, *low]) & 0xfff,
        _ => 0,
    }
}
