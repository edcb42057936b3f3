//! The configuration of a tap.

use crate::error::TapError;
use crate::flow_cache::FlowCacheConfig;
use std::time::Duration;
use weir_link::xdp::{Bypass, CopyMode};
use weir_ring::umem::CHUNKS_MAX;

/// The way frames get into the memory (AF_XDP zero-copy or copy mode).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Zero-copy if the drivers of all links support it, else copy mode.
    #[default]
    Auto,
    /// Exactly this mode; an error if a driver does not support it.
    Only(CopyMode),
}

/// The default limit for hangs: time that a frame may wait for a process before
/// the bypass takes over.
pub const HANG_MAX_DEFAULT: Duration = Duration::from_millis(10);

/// The configuration of a tap: sizes, and the behaviour when its program fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Number of chunks of memory, for all links together; at most 2^18.
    pub chunks: u32,
    /// Size of a chunk, 2048 or 4096 bytes, of which the kernel uses 256.
    /// Longer frames occupy several chunks.
    pub chunk_bytes: u32,
    /// Number of chunks reserved for the application, which are never lent to
    /// the kernel to receive.
    pub reserved: u32,
    /// Number of chunks of frames that the application may hold for a while: a queue's. They
    /// are not counted on to receive.
    pub held: u32,
    /// Number of frames in each ring, a power of two up to 2^16.
    pub ring: u32,
    /// How frames get to the memory.
    pub mode: Mode,
    /// Longest time to poll for frames before sleeping: polling occupies the
    /// core and keeps latency low. If frames come at greater intervals, the tap
    /// soon sleeps without polling.
    pub spin: Duration,
    /// Time for which the tap's calls poll the device (busy polling), if its
    /// driver supports that; `None` for none.
    pub busy_poll: Option<Duration>,
    /// In copy mode, send bursts of 32 or more waiting frames without a socket
    /// buffer for each, where possible: on a veth with one queue and without
    /// segmentation (`ethtool -K … tso off`), whose other end has GRO (`gro
    /// on`) or an XDP program; Linux 6.3. While frames stay in a receiver's
    /// queues, the kernel keeps the page pool of each such call, so at most 256
    /// of these exist at a time; see
    /// `docs/explanation/bypass-and-flow-cache.md`.
    pub tx_burst: bool,
    /// Complete TCP and UDP checksums that were left to the device, as on a
    /// wire. `None`: if the driver is veth, whose frames have never been on a
    /// wire.
    pub complete_checksums: Option<bool>,
    /// A [`Bridge`](crate::Bridge) makes a system call before it takes each
    /// frame and after it gives it, instead of one for many: to measure that
    /// cost (NetTap §7).
    pub syscall_per_frame: bool,
    /// The treatment of frames when the application fails.
    pub bypass: Bypass,
    /// Time that a frame may wait for an idle application before that counts as
    /// hung; `None` for no limit. At least 1 ms.
    pub hang_max: Option<Duration>,
    /// Settings of the verdicts cached in the kernel, see
    /// [`FlowCache`](crate::FlowCache); `None`: every frame comes to the
    /// application.
    pub flow_cache: Option<FlowCacheConfig>,
}

/// Number of links that the default rings are sized for: those of a bump in the
/// wire.
const LINKS: usize = 2;

impl Default for Config {
    /// The ring sizes of `weir bridge`, [long](Config::ring_for) enough to lose
    /// no frame while another program has the processor for some milliseconds,
    /// in 96 MiB. For more links, or less memory, see [`Config::with_rings`].
    fn default() -> Config {
        let least = Config {
            chunks: 0,
            chunk_bytes: 2048,
            reserved: 64,
            held: 0,
            ring: 0,
            mode: Mode::Auto,
            spin: Duration::from_micros(50),
            busy_poll: None,
            tx_burst: false,
            complete_checksums: None,
            syscall_per_frame: false,
            bypass: Bypass::Kernel,
            hang_max: Some(HANG_MAX_DEFAULT),
            flow_cache: None,
        };
        least.with_rings(Config::ring_for(LINKS), LINKS)
    }
}

/// Largest number of chunks for the [default](Config::ring_for) rings of a
/// program: 128 MiB.
const RINGS_CHUNKS_MAX: u32 = 1 << 16;

/// The longest default ring: the frames of 4 million a second during one kernel
/// tick (4 ms at 250 Hz), while another program has the processor.
const RING_MAX: u32 = 1 << 14;

impl Config {
    /// Sets rings of this number of frames for each of `links` links, and the
    /// number of chunks they need. A link whose frames no process takes holds
    /// twice its ring (a full rx ring, and as many chunks lent to the fill
    /// ring), and leaves the other links their chunks.
    #[must_use]
    pub fn with_rings(self, ring: u32, links: usize) -> Config {
        let chunks = ring
            .saturating_mul(rings(links))
            .saturating_add(self.reserved)
            .saturating_add(self.held);
        Config {
            ring,
            chunks: chunks.min(CHUNKS_MAX),
            ..self
        }
    }

    /// The ring length for a program that forwards between `links` links: an
    /// interruption of the processor by some milliseconds should cost no frame,
    /// and the memory of all rings stays within 128 MiB.
    pub fn ring_for(links: usize) -> u32 {
        let fit = (RINGS_CHUNKS_MAX / rings(links)).max(1);
        RING_MAX.min(1 << fit.ilog2())
    }
}

/// Number of rings for whose frames there are chunks.
fn rings(links: usize) -> u32 {
    let links = links.clamp(1, weir_link::xdp::LINKS_MAX as usize) as u32;
    2 * links - 1
}

/// Checks the configuration.
pub(crate) fn check(config: &Config) -> Result<(), TapError> {
    let setting = |what, value: u64, range| {
        let error = TapError::Setting { what, value, range };
        Err(error)
    };
    const _: () = {
        use weir_link::xdp::{LINKS_MAX, QUEUES_MAX};
        assert!(LINKS_MAX * QUEUES_MAX <= weir_ring::umem::QUEUES_MAX as u32);
    };
    if !config.ring.is_power_of_two() || !(64..=1 << 16).contains(&config.ring) {
        let range = "a power of two from 64 to 65536";
        return setting("a ring", config.ring.into(), range);
    }
    if config.reserved.saturating_add(config.held) >= config.chunks {
        let range = "with the chunks held for a while fewer than there are chunks";
        return setting("a reserve", config.reserved.into(), range);
    }
    if let Some(limit) = config.hang_max
        && limit < Duration::from_millis(1)
    {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        return setting("a limit (in µs)", micros, "1 ms or more");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_long_within_a_bound_of_memory() {
        let long = |links| Config::ring_for(links);
        assert_eq!([2, 3, 4, 5, 8].map(long), [16_384, 8192, 8192, 4096, 4096]);
        for links in 1..=8 {
            let config = Config::default().with_rings(long(links), links);
            assert!(check(&config).is_ok());
            assert!(config.chunks <= RINGS_CHUNKS_MAX + config.reserved);
            // One full rx ring, and a fill ring for each link.
            assert!(config.chunks >= config.ring * (links as u32) + config.reserved);
        }
    }

    #[test]
    fn a_program_of_two_links_has_the_rings_of_the_commands() {
        let config = Config::default();
        assert!(check(&config).is_ok());
        assert_eq!((config.ring, config.chunks), (16_384, 3 * 16_384 + 64));
        assert_eq!(config, config.with_rings(Config::ring_for(2), 2));
    }

    #[test]
    fn the_longest_rings_have_as_many_chunks_as_can_be() {
        let config = Config::default().with_rings(1 << 16, 8);
        assert_eq!((config.ring, config.chunks), (1 << 16, CHUNKS_MAX));
        assert!(check(&config).is_ok());
    }
}
