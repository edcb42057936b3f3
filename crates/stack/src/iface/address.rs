//! Addresses of the host: their origin, state and lifetime.

use super::Prefix;

/// The origin of an address or route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The configuration.
    Configured,
    /// The link-local address of every IPv6 host (RFC 4291 §2.8).
    LinkLocal,
    /// A router advertisement (RFC 4861, RFC 4862).
    Advertised,
    /// A DHCP lease (RFC 2131).
    Leased,
    /// A redirect (RFC 4861 §8).
    Redirected,
}

/// The state of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddrState {
    /// Not used until duplicate address detection has succeeded (RFC 4862).
    Tentative,
    /// Used during duplicate address detection (RFC 4429).
    Optimistic,
    /// Used without restriction.
    Assigned,
}

/// Lifetimes, as end times of the stack's clock; unlimited by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetimes {
    /// Until then it is used for new connections.
    pub(crate) preferred_until_ns: u64,
    /// Until then it belongs to the host.
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

/// Duplicate address detection: probes and announcements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    /// Number of frames sent.
    pub(crate) sent: u8,
    pub(crate) next_ns: u64,
}

/// An address of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LocalAddress {
    pub(crate) prefix: Prefix,
    pub(crate) origin: Origin,
    pub(crate) state: AddrState,
    pub(crate) lifetimes: Lifetimes,
    /// Used by existing connections only.
    pub(crate) deprecated: bool,
    /// Number of times that another address was formed because of a conflict
    /// (RFC 7217 §6).
    pub(crate) tries: u8,
    pub(crate) probe: Option<Probe>,
    /// Time of the last defence (RFC 5227 §2.4).
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

    /// Whether packets to the address are accepted.
    pub(crate) fn is_ours(&self) -> bool {
        self.state != AddrState::Tentative
    }

    /// When a timer of the address is due.
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

/// The time `seconds` after `now_ns`; unlimited for `u32::MAX`.
pub(super) fn after(now_ns: u64, seconds: u32) -> u64 {
    match seconds {
        u32::MAX => u64::MAX,
        seconds => now_ns.saturating_add(u64::from(seconds) * 1_000_000_000),
    }
}
