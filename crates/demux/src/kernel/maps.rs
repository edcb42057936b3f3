//! The maps that a lowered plan needs, and the kinds of its programs.

use super::image::Memory;
use weir_filter::backend::ebpf::Insn;

/// Where a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hook {
    /// XDP; load with fragments (`BPF_F_XDP_HAS_FRAGS`).
    Xdp,
    /// tc or tcx, frames that come in.
    TcIngress,
    /// tc or tcx, frames that go out. They are always sent: a port that takes them takes them from
    /// ports of lower priority, not from the network.
    TcEgress,
}

impl Hook {
    /// The array that its second half stands in.
    pub fn delivery_role(self) -> MapRole {
        match self {
            Hook::Xdp => MapRole::XdpDelivery,
            Hook::TcIngress | Hook::TcEgress => MapRole::TcDelivery,
        }
    }

    /// The place in the array.
    pub fn place(self) -> u32 {
        match self {
            Hook::Xdp | Hook::TcIngress => 0,
            Hook::TcEgress => 1,
        }
    }
}

/// A plan's program is two: what is one is verified as one, and a new subtable
/// changes only the first half.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Half {
    /// Which entries a frame may have: made anew with the subtables. It goes on
    /// in the other, if there is anything.
    Subtables,
    /// Look-up and delivery: made anew with index and store.
    Delivery,
}

/// A map's part in the lowering.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapRole {
    /// Array of one value for each CPU: the program's own memory.
    Scratch,
    /// Array of one value, to be mapped: see [`Memory::Index`].
    Index,
    /// Array of one value, to be mapped: see [`Memory::Store`].
    Store,
    /// Array by slot, of ring buffers: the ports' queues. Not
    /// written by the lowering.
    Rings,
    /// Array by slot, to be mapped: [`PortSettings`].
    Ports,
    /// Array by slot, a value for each CPU: [`Counters`].
    Counters,
    /// Programs of the type XDP: the [second half](Half::Delivery) at
    /// [`Hook::Xdp`], in the place [`Hook::place`].
    XdpDelivery,
    /// Programs of tc, likewise.
    TcDelivery,
}

/// A map as it must be made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MapSpec {
    /// The map's role, which determines its kind.
    pub role: MapRole,
    /// A map with the same part and edition is the same map: keep it. With
    /// another edition it is a new one, to be filled from
    /// [`KernelPlan::contents`](super::KernelPlan::contents).
    pub edition: u32,
    /// Bytes of a value; 4 (a map or a program) for [`MapRole::Rings`] and the
    /// parts of programs.
    pub value_bytes: u32,
    /// Entries.
    pub entries_max: u32,
}

impl MapSpec {
    /// The memory it holds, if it is one to fill.
    pub fn memory(&self) -> Option<Memory> {
        match self.role {
            MapRole::Index => Some(Memory::Index),
            MapRole::Store => Some(Memory::Store),
            _ => None,
        }
    }
}

/// A program for one hook, ready to load.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// Its instructions; wide loads name maps by their place in `maps`.
    pub insns: Vec<Insn>,
    /// The maps it uses, by place.
    pub maps: Vec<MapSpec>,
    /// How many subtables it looks up.
    pub subtables: usize,
    /// How many opaque filters are part of it.
    pub opaque: usize,
}

/// Which clock a port's timestamps come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Clock {
    /// None: it costs some 20 ns a frame.
    #[default]
    None,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// `CLOCK_BOOTTIME`.
    Boot,
    /// `CLOCK_TAI` (Linux 6.1).
    Tai,
}

/// When the kernel wakes a port's reader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Wake {
    /// When the reader has read all there was: the ring's own rule.
    #[default]
    Adaptive,
    /// Never: the reader polls.
    Never,
    /// At each frame.
    Always,
}

/// A port's settings for the programs: a value of [`MapRole::Ports`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PortSettings {
    /// Limit on the bytes of each frame; 0: no limit.
    pub snap_len: u32,
    /// Timestamps.
    pub clock: Clock,
    /// Wake-ups.
    pub wake: Wake,
}

impl PortSettings {
    /// Bytes of a value of the map.
    pub const BYTES: usize = 16;
    /// The word of 64 bits, of the value's two, that holds the settings. The
    /// other counts losses for the next record; set it to 0 for a new port.
    pub const WORD: usize = 1;

    /// The word, in the host's order.
    pub fn to_word(self) -> u64 {
        let clock = match self.clock {
            Clock::None => 0,
            Clock::Monotonic => 1,
            Clock::Boot => 2,
            Clock::Tai => 3,
        };
        // `BPF_RB_NO_WAKEUP`, `BPF_RB_FORCE_WAKEUP`.
        let wake = match self.wake {
            Wake::Adaptive => 0,
            Wake::Never => 1,
            Wake::Always => 2,
        };
        let flags: u32 = clock | wake << 8;
        let low: u32 = if self.snap_len == 0 {
            0
        } else {
            !self.snap_len
        };
        let [a, b] = [low.to_ne_bytes(), flags.to_ne_bytes()];
        u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
    }
}

/// A port's counts in the programs: the sum over all CPUs of the values of [`MapRole::Counters`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counters {
    /// Frames put into the ring.
    pub delivered: u64,
    /// Their lengths on the wire.
    pub bytes: u64,
    /// Frames for which there was no room, or no ring.
    pub lost: u64,
}

impl Counters {
    /// Bytes of a value of the map, for one CPU.
    pub const BYTES: usize = 24;

    /// Adds one CPU's value, in the host's order; what is too short counts
    /// nothing.
    pub fn add(&mut self, value: &[u8]) {
        let word = |at: usize| {
            let bytes = value.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        self.delivered += word(0);
        self.bytes += word(8);
        self.lost += word(16);
    }
}
