//! Passive open: initial sequence numbers (RFC 6528), listeners with bounded backlogs, SYN
//! cookies (RFC 4987 §3.6).

use crate::iface::Interface;
use crate::tcp::input::{Arrived, PEER_MSS_MIN, peer_mss};
use crate::tcp::pcb::{Pcb, State, Timestamps};
use crate::tcp::seq::Seq;
use crate::tcp::{CONNECTIONS_MAX, FastOpenServer, TcpConfig, TcpId, TcpOptions};
use siphasher::sip::SipHasher13;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use weir_wire::tcp::{Flags, Options};

/// Limit on half-open connections of one listener; further ones are opened by SYN cookies.
pub const SYN_QUEUE_MAX: usize = 1024;
/// Limit on half-open connections of all listeners of a stack: half of the connections, so that
/// a flood of many listeners leaves the other half to open connections.
pub const SYN_QUEUE_ALL_MAX: usize = CONNECTIONS_MAX / 2;

/// Duration of one step of the time in a cookie, in nanoseconds.
const COOKIE_STEP_NS: u64 = 64_000_000_000;
/// Segment sizes, in bytes, that a cookie can encode.
const COOKIE_MSS: [u16; 8] = [PEER_MSS_MIN, 256, 536, 1220, 1360, 1400, 1440, 1460];
/// Bits of a cookie's timestamp that encode options: window scale, SACK, ECN.
const COOKIE_BITS: u32 = 0x3f;
const NO_SCALE: u32 = 15;

/// The secret of sequence numbers and cookies, which peers must not know.
pub(in crate::tcp) struct Secret(pub(in crate::tcp) u128);

/// A listening socket.
pub(in crate::tcp) struct Listener {
    pub(in crate::tcp) local: SocketAddr,
    /// See [`Listen`](crate::tcp::Listen).
    pub(in crate::tcp) both: bool,
    pub(in crate::tcp) reuse_port: bool,
    pub(in crate::tcp) options: TcpOptions,
    /// Limit on connections that wait to be accepted.
    pub(in crate::tcp) backlog: usize,
    pub(in crate::tcp) half_open: usize,
    pub(in crate::tcp) fast_open: Option<FastOpenServer>,
    /// Connections begun with data in the SYN whose handshake is incomplete.
    pub(in crate::tcp) tfo_pending: usize,
    pub(in crate::tcp) accept_queue: VecDeque<TcpId>,
    /// When the last cookie was sent; long after, no cookie is accepted.
    pub(in crate::tcp) cookie_ns: Option<u64>,
    pub(in crate::tcp) in_notify_queue: bool,
}

/// The options of a SYN that its cookie encodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) struct CookieOptions {
    pub(in crate::tcp) mss: u16,
    pub(in crate::tcp) scale: Option<u8>,
    pub(in crate::tcp) sack: bool,
    pub(in crate::tcp) ecn: bool,
}

impl Secret {
    /// SipHash of both ends and `more`, different for each purpose.
    #[inline]
    fn hash(&self, purpose: u8, local: SocketAddr, remote: SocketAddr, more: u64) -> u64 {
        let ports = u64::from(local.port()) << 16 | u64::from(remote.port());
        let head = u64::from(purpose) << 32 | ports;
        // The number of hashed words distinguishes the IP versions.
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let both = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
                self.hash_words([head, more, both])
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let [local, remote] = [local.to_bits(), remote.to_bits()];
                let halves = [local >> 64, local, remote >> 64, remote];
                let [a, b, c, d] = halves.map(|half| half as u64);
                self.hash_words([head, more, a, b, c, d])
            }
            _ => unreachable!("both ends are of one version"),
        }
    }

    fn hash_words<const N: usize>(&self, words: [u64; N]) -> u64 {
        let bytes = words.map(u64::to_ne_bytes);
        let keyed = SipHasher13::new_with_keys((self.0 >> 64) as u64, self.0 as u64);
        keyed.hash(bytes.as_flattened())
    }

    /// The initial sequence number of a connection: a clock of 4 µs with an offset for each
    /// pair of ends (RFC 6528 §3); and the offset of its timestamp clock (RFC 7323 §5.4).
    pub(in crate::tcp) fn isn(
        &self,
        now_ns: u64,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> (Seq, u32) {
        let hash = self.hash(0, local, remote, 0);
        let isn = ((now_ns / 4000) as u32).wrapping_add(hash as u32);
        (Seq(isn), (hash >> 32) as u32)
    }

    /// The hash that chooses between listeners that share an address and port.
    pub(in crate::tcp) fn reuseport_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.hash(3, local, remote, 0) as u32
    }

    /// An initial sequence number that encodes the SYN which it answers:
    ///
    /// ```text
    ///  time 5 bits │ segment size 3 bits │ authenticator 24 bits
    /// ```
    pub(in crate::tcp) fn cookie(
        &self,
        now_ns: u64,
        local: SocketAddr,
        remote: SocketAddr,
        irs: Seq,
        mss: u16,
    ) -> Seq {
        let index = COOKIE_MSS
            .iter()
            .rposition(|known| *known <= mss)
            .unwrap_or(0);
        self.cookie_at(now_ns / COOKIE_STEP_NS, local, remote, irs, index as u32)
    }

    fn cookie_at(
        &self,
        step: u64,
        local: SocketAddr,
        remote: SocketAddr,
        irs: Seq,
        index: u32,
    ) -> Seq {
        let seen = step << 35 | u64::from(index) << 32 | u64::from(irs.0);
        let authenticator = self.hash(2, local, remote, seen) as u32 & 0xff_ffff;
        Seq((step as u32 & 0x1f) << 27 | index << 24 | authenticator)
    }

    /// The segment size that a cookie encodes; `None` unless the cookie is this host's and at most
    /// two steps old.
    pub(in crate::tcp) fn check_cookie(
        &self,
        now_ns: u64,
        local: SocketAddr,
        remote: SocketAddr,
        irs: Seq,
        cookie: Seq,
    ) -> Option<u16> {
        let index = cookie.0 >> 24 & 7;
        let now = now_ns / COOKIE_STEP_NS;
        let mut steps = [Some(now), now.checked_sub(1)].into_iter().flatten();
        let ours = steps.any(|step| self.cookie_at(step, local, remote, irs, index) == cookie);
        ours.then(|| COOKIE_MSS[index as usize])
    }
}

impl CookieOptions {
    /// The options of a SYN that a cookie encodes.
    pub(in crate::tcp) fn of(syn: &Arrived<'_>, config: &TcpConfig) -> CookieOptions {
        let options = &syn.repr.options;
        CookieOptions {
            mss: peer_mss(options),
            scale: options.window_scale.map(|scale| scale.min(14)),
            sack: options.sack_permitted && config.sack,
            ecn: config.ecn && syn.has(Flags::ECE | Flags::CWR),
        }
    }

    /// A timestamp, at most `clock`, that encodes the options.
    pub(in crate::tcp) fn timestamp(&self, clock: u32) -> u32 {
        let scale = self.scale.map_or(NO_SCALE, u32::from);
        let bits = scale << 2 | u32::from(self.sack) << 1 | u32::from(self.ecn);
        let value = clock & !COOKIE_BITS | bits;
        if value > clock {
            value.wrapping_sub(COOKIE_BITS + 1)
        } else {
            value
        }
    }

    /// Decodes the options from an echoed timestamp; none without timestamps.
    pub(in crate::tcp) fn from_echo(
        mss: u16,
        echo: Option<u32>,
        config: &TcpConfig,
    ) -> CookieOptions {
        let bits = echo.map_or(NO_SCALE << 2, |echo| echo & COOKIE_BITS);
        let scale = bits >> 2;
        CookieOptions {
            mss,
            scale: (scale <= 14).then_some(scale as u8),
            sack: bits & 2 != 0 && config.sack,
            ecn: bits & 1 != 0 && config.ecn,
        }
    }

    /// The options as in the SYN.
    pub(in crate::tcp) fn options(&self, timestamps: Option<(u32, u32)>) -> Options {
        Options {
            mss: Some(self.mss),
            window_scale: self.scale,
            sack_permitted: self.sack,
            timestamps,
            ..Options::default()
        }
    }
}

impl Pcb {
    /// Makes the PCB of an active open.
    pub(in crate::tcp) fn connecting(
        kept: Option<Box<Pcb>>,
        config: &TcpConfig,
        secret: &Secret,
        host: &Interface,
        now_ns: u64,
        ends: &(SocketAddr, SocketAddr),
    ) -> Box<Pcb> {
        let (iss, offset) = secret.isn(now_ns, ends.0, ends.1);
        let mut pcb = Pcb::new(kept, config, host, ends, iss, now_ns);
        pcb.negotiated.timestamps = config
            .timestamps
            .then(|| Timestamps::new(offset, 0, now_ns));
        pcb
    }

    /// Turns the connection into a passive open by a peer's SYN.
    pub(in crate::tcp) fn answer(&mut self, now_ns: u64, syn: &Arrived<'_>) {
        self.state = State::SynReceived;
        self.ecn.enabled &= syn.has(Flags::ECE | Flags::CWR);
        self.negotiate(now_ns, syn);
    }

    /// Turns the connection into one whose SYN-ACK was a cookie.
    pub(in crate::tcp) fn answer_cookie(
        &mut self,
        now_ns: u64,
        syn: &Arrived<'_>,
        cookie: Seq,
        config: &TcpConfig,
    ) {
        self.send = config.send(cookie);
        self.answer(now_ns, syn);
        self.send.nxt = cookie.plus(1);
        self.scoreboard.push(cookie, self.send.nxt, now_ns);
        // The round trip was not measured.
        self.scoreboard.on_retransmit(cookie, now_ns);
        self.receive.advertise_on_syn();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (SocketAddr, SocketAddr) {
        (
            "192.0.2.1:80".parse().unwrap(),
            "192.0.2.2:4000".parse().unwrap(),
        )
    }

    #[test]
    fn cookies_are_ours_for_two_steps_and_these_ends() {
        let (local, remote) = ends();
        let secret = Secret(7);
        let now_ns = 1000 * COOKIE_STEP_NS;
        for (mss, kept) in [(1460, 1460), (9000, 1460), (1459, 1440), (100, 48)] {
            let cookie = secret.cookie(now_ns, local, remote, Seq(5), mss);
            let open = |now_ns, irs| secret.check_cookie(now_ns, local, remote, irs, cookie);
            assert_eq!(open(now_ns + COOKIE_STEP_NS, Seq(5)), Some(kept));
            assert_eq!(open(now_ns + 2 * COOKIE_STEP_NS, Seq(5)), None);
            assert_eq!(open(now_ns, Seq(6)), None);
            assert_eq!(
                open(now_ns + 32 * COOKIE_STEP_NS, Seq(5)),
                None,
                "the count's bits wrap"
            );
            assert_eq!(
                secret.check_cookie(now_ns, remote, local, Seq(5), cookie),
                None
            );
            assert_eq!(
                Secret(8).check_cookie(now_ns, local, remote, Seq(5), cookie),
                None
            );
        }
    }

    #[test]
    fn guessed_cookies_are_not_taken() {
        let (local, remote) = ends();
        let taken = (0..200_000).filter(|guess| {
            let cookie = Seq(guess * 21_001);
            Secret(7)
                .check_cookie(0, local, remote, Seq(5), cookie)
                .is_some()
        });
        assert!(taken.count() <= 1);
    }

    #[test]
    fn timestamps_remember_the_options() {
        let config = TcpConfig::default();
        for clock in [0, 1, 63, 64, 1000, u32::MAX] {
            for scale in [None, Some(0), Some(14)] {
                for (sack, ecn) in [(false, false), (true, false), (true, true)] {
                    let remembered = CookieOptions {
                        mss: 1460,
                        scale,
                        sack,
                        ecn,
                    };
                    let value = remembered.timestamp(clock);
                    assert!(Seq(value).at_most(Seq(clock)), "{clock}");
                    let config = TcpConfig {
                        ecn: true,
                        ..config.clone()
                    };
                    assert_eq!(
                        CookieOptions::from_echo(1460, Some(value), &config),
                        remembered
                    );
                }
            }
        }
        let plain = CookieOptions::from_echo(536, None, &config);
        assert_eq!(
            plain,
            CookieOptions {
                mss: 536,
                scale: None,
                sack: false,
                ecn: false
            }
        );
    }

    #[test]
    fn first_numbers_move_with_time_and_differ_between_ends() {
        let (local, remote) = ends();
        let secret = Secret(7);
        let (isn, offset) = secret.isn(0, local, remote);
        let (later, same) = secret.isn(4_000_000, local, remote);
        assert_eq!((later.since(isn), same), (1000, offset));
        for (other, other_offset) in [
            secret.isn(0, remote, local),
            Secret(8).isn(0, local, remote),
        ] {
            assert!(other != isn && other_offset != offset);
        }
    }
}
