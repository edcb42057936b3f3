//! An address of our own: whence it is, whether it may be used, and how long.

use super::Prefix;

/// Whence an address or a route is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The configuration has it.
    Configured,
    /// Every IPv6 host has one (RFC 4291 §2.8).
    LinkLocal,
    /// A router advertised it (RFC 4861, RFC 4862).
    Advertised,
    /// A DHCP server gave it (RFC 2131).
    Leased,
    /// A router redirected to it (RFC 4861 §8).
    Redirected,
}

/// How far an address is from being ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddrState {
    /// It is not used before it is known that nobody else has it.
    Tentative,
    /// It is used while others are asked (RFC 4429).
    Optimistic,
    /// It is ours.
    Assigned,
}

/// How long something holds: until then, by our clock; for ever by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetimes {
    /// Until then it is used for what is new.
    pub(crate) preferred_until_ns: u64,
    /// Until then it is ours.
    pub(crate) valid_until_ns: u64,
}

impl Default for Lifetimes {
    fn default() -> Lifetimes {
        Lifetimes {
            preferred_until_ns: u64::MAX,
            valid_until_ns: u64::MAX,
        }
    }
}

/// Asking others whether they have an address, and telling them that we do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    /// Frames sent so far.
    pub(crate) sent: u8,
    pub(crate) next_ns: u64,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LocalAddress {
    pub(crate) prefix: Prefix,
    pub(crate) origin: Origin,
    pub(crate) state: AddrState,
    pub(crate) lifetimes: Lifetimes,
    /// It is used by what uses it, and by nothing new.
    pub(crate) deprecated: bool,
    /// How often another was made because somebody had it (RFC 7217 §6).
    pub(crate) tries: u8,
    pub(crate) probe: Option<Probe>,
    /// When it was defended last (RFC 5227 §2.4).
    pub(crate) defended_ns: Option<u64>,
}

impl LocalAddress {
    pub(crate) fn new(prefix: Prefix, origin: Origin) -> LocalAddress {
        LocalAddress {
            prefix,
            origin,
            state: AddrState::Assigned,
            lifetimes: Lifetimes::default(),
            deprecated: false,
            tries: 0,
            probe: None,
            defended_ns: None,
        }
    }

    /// Whether packets to it are for us.
    pub(crate) fn is_ours(&self) -> bool {
        self.state != AddrState::Tentative
    }

    /// When something about it is due.
    pub(crate) fn due_ns(&self) -> u64 {
        let probe_ns = self.probe.map_or(u64::MAX, |probe| probe.next_ns);
        let preferred_ns = if self.deprecated {
            u64::MAX
        } else {
            self.lifetimes.preferred_until_ns
        };
        probe_ns
            .min(preferred_ns)
            .min(self.lifetimes.valid_until_ns)
    }
}

/// A time after `now_ns`, for ever if the seconds say so.
pub(super) fn after(now_ns: u64, seconds: u32) -> u64 {
    match seconds {
        u32::MAX => u64::MAX,
        seconds => now_ns.saturating_add(u64::from(seconds) * 1_000_000_000),
    }
}
