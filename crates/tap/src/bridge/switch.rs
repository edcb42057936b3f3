//! What a learning bridge does with a frame (IEEE 802.1D, 802.1Q), for any
//! number of ports. No I/O, no clock.

use crate::bridge::fdb::{Fdb, Learned};
use weir_wire::ethernet::Address;

/// Most ports.
pub const PORTS_MAX: usize = 256;

/// Bytes of an Ethernet header.
const HEADER: usize = 14;

/// Which frames pass a port, by their VLAN (IEEE 802.1Q).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vlans {
    /// A bit for each number, 0 for frames without a tag.
    allowed: Box<[u64; 64]>,
}

impl Vlans {
    /// All frames.
    pub fn all() -> Vlans {
        Vlans {
            allowed: Box::new([u64::MAX; 64]),
        }
    }

    /// No frame.
    pub fn none() -> Vlans {
        Vlans {
            allowed: Box::new([0; 64]),
        }
    }

    /// Lets the frames of one VLAN pass; 0 is for those without a tag, or
    /// with a priority alone.
    pub fn allow(&mut self, vlan: u16) {
        let vlan = usize::from(vlan & 0xfff);
        self.allowed[vlan / 64] |= 1 << (vlan % 64);
    }

    /// Whether the frames of a VLAN pass.
    #[inline]
    pub fn allows(&self, vlan: u16) -> bool {
        let vlan = usize::from(vlan & 0xfff);
        self.allowed[vlan / 64] & 1 << (vlan % 64) != 0
    }
}

/// A list of VLANs that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is no list of VLANs: numbers from 1 to 4094, ranges such as 10-20, and `untagged`, with commas between"
)]
pub struct NotVlans(pub String);

impl std::str::FromStr for Vlans {
    type Err = NotVlans;

    /// Reads `10,20-30,untagged`.
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

/// How a bridge is set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Which VLANs pass each port.
    pub vlans: Vec<Vlans>,
    /// Frames of the spanning tree protocol pass.
    pub stp: bool,
    /// Frames to the other addresses that bridges keep for themselves
    /// (01:80:c2:00:00:02 to 0f: LACP, 802.1X, LLDP …) pass.
    pub reserved: bool,
    /// Stations that can be known.
    pub stations: usize,
    /// Seconds until a silent one is forgotten.
    pub age_max: u32,
}

impl Settings {
    /// As a wire: everything passes, 300 seconds, 16,384 stations.
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

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// Out at one port.
    Port(u16),
    /// Out at all ports but the one it came in at, as far as
    /// [`Switch::passes`].
    Flood {
        /// Its VLAN.
        vlan: u16,
    },
    /// Nowhere.
    Drop(Reason),
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Its station is behind the port it came from.
    Local,
    /// Its VLAN does not pass the port.
    Vlan,
    /// The spanning tree protocol's, or another of those that bridges keep
    /// for themselves.
    Reserved,
    /// No Ethernet header, or a group or nobody as its sender.
    Malformed,
}

/// What has become of a port's frames, by where they came in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SwitchCounts {
    /// Sent out at one port.
    pub forwarded: u64,
    /// Sent out at all others.
    pub flooded: u64,
    /// Dropped as [`Reason::Local`].
    pub local: u64,
    /// Dropped as [`Reason::Vlan`].
    pub vlan: u64,
    /// Dropped as [`Reason::Reserved`].
    pub reserved: u64,
    /// Dropped as [`Reason::Malformed`].
    pub malformed: u64,
    /// Stations learned.
    pub learned: u64,
    /// Stations that came from another port.
    pub moved: u64,
    /// Stations forgotten early for want of room.
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
    /// A bridge with as many ports as the settings have.
    pub fn new(settings: Settings, seed: u64) -> Switch {
        Switch {
            fdb: Fdb::new(settings.stations, settings.age_max, seed),
            counts: vec![SwitchCounts::default(); settings.vlans.len()],
            moved: None,
            settings,
        }
    }

    /// Where a frame goes that came in at a port, at that second.
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

    /// Pause frames (802.3x) never pass a bridge.
    fn reserved_passes(&self, last: u8) -> bool {
        match last {
            0 => self.settings.stp,
            1 => false,
            _ => self.settings.reserved,
        }
    }

    /// Whether frames of a VLAN go out at a port.
    #[inline]
    pub fn passes(&self, port: usize, vlan: u16) -> bool {
        let vlans = self.settings.vlans.get(port);
        vlans.is_some_and(|vlans| vlans.allows(vlan))
    }

    /// The station, and its VLAN, that the last frame showed behind another
    /// port than before; once.
    #[inline]
    pub fn take_moved(&mut self) -> Option<(u16, Address)> {
        self.moved.take()
    }

    /// Notes that frames which somebody else forwarded came from a station
    /// behind that port; `false` if it is not known there.
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

    /// Behind which port a station of a VLAN is, as far as is known at that
    /// second.
    pub fn port(&self, vlan: u16, station: Address, now: u32) -> Option<u16> {
        self.fdb.port(vlan, station, now)
    }

    /// Forgets the stations behind a port: its link is down.
    pub fn forget(&mut self, port: u16) {
        self.fdb.forget(port);
    }

    /// What has become of the frames of a port.
    pub fn counts(&self, port: usize) -> SwitchCounts {
        self.counts.get(port).copied().unwrap_or_default()
    }

    /// How many stations are known at that second.
    pub fn stations(&self, now: u32) -> usize {
        self.fdb.stations(now)
    }
}

/// The VLAN of a frame; 0 without a tag.
#[inline]
fn vlan(frame: &[u8]) -> u16 {
    match frame.get(HEADER - 2..HEADER + 2) {
        Some([0x81, 0x00, high, low]) => u16::from_be_bytes([*high, *low]) & 0xfff,
        _ => 0,
    }
}
