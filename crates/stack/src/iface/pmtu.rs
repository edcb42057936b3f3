//! Path MTU discovery: paths with a smaller MTU than the link (RFC 1191, RFC 8201).

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Limit on destinations with a known path MTU; a further one displaces the one learnt first.
pub const PATHS_MAX: usize = 1024;
/// Time for which a path MTU is valid, in nanoseconds (RFC 8201 §4: 10 minutes).
pub const PMTU_AGE_NS: u64 = 600_000_000_000;
/// Least path MTU, in bytes, that is believed for IPv4: a forged report must not make the host
/// send tiny packets. IPv6 has its own least MTU.
pub(super) const MTU_V4_MIN: usize = 552;
pub(super) const MTU_V6_MIN: usize = 1280;

/// Path MTUs by destination.
#[derive(Default)]
pub(super) struct PmtuCache {
    entries: BTreeMap<IpAddr, (usize, u64)>,
}

impl PmtuCache {
    /// The MTU of the path to an address, on a link of `link_mtu`.
    pub(super) fn mtu(&self, now_ns: u64, to: IpAddr, link_mtu: usize) -> usize {
        if self.entries.is_empty() {
            return link_mtu;
        }
        match self.entries.get(&to) {
            Some(&(mtu, until_ns)) if until_ns > now_ns => mtu.min(link_mtu),
            _ => link_mtu,
        }
    }

    /// Handles a reported MTU; returns the MTU to use if it lowers the path's.
    pub(super) fn update(
        &mut self,
        now_ns: u64,
        to: IpAddr,
        mtu: usize,
        link_mtu: usize,
    ) -> Option<usize> {
        let mtu = mtu.max(match to {
            IpAddr::V4(_) => MTU_V4_MIN,
            IpAddr::V6(_) => MTU_V6_MIN,
        });
        if mtu >= self.mtu(now_ns, to, link_mtu) {
            return None;
        }
        if self.entries.len() == PATHS_MAX && !self.entries.contains_key(&to) {
            let first = self
                .entries
                .iter()
                .min_by_key(|(_, (_, until_ns))| *until_ns);
            if let Some((&first, _)) = first {
                self.entries.remove(&first);
            }
        }
        self.entries
            .insert(to, (mtu, now_ns.saturating_add(PMTU_AGE_NS)));
        Some(mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_narrow_and_widen_again() {
        let (v4, v6): (IpAddr, IpAddr) =
            ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let mut paths = PmtuCache::default();
        assert_eq!(paths.update(0, v4, 1400, 1500), Some(1400));
        assert_eq!(paths.update(0, v4, 1450, 1500), None);
        assert_eq!(paths.update(0, v4, 0, 1500), Some(552));
        assert_eq!(paths.update(0, v6, 8, 1500), Some(1280));
        assert_eq!(
            (paths.mtu(1, v4, 1500), paths.mtu(1, v6, 1500)),
            (552, 1280)
        );
        assert_eq!(paths.mtu(PMTU_AGE_NS, v4, 1500), 1500);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut paths = PmtuCache::default();
        for number in 0..2000_u32 {
            paths.update(
                number.into(),
                std::net::Ipv4Addr::from_bits(number).into(),
                600,
                1500,
            );
        }
        assert_eq!(paths.entries.len(), PATHS_MAX);
    }
}
