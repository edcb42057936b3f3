//! What a tap is to be.

use crate::error::TapError;
use crate::flow_cache::FlowCacheConfig;
use std::time::Duration;
use weir_link::xdp::{Bypass, CopyMode};
use weir_ring::umem::CHUNKS_MAX;

/// How frames get to the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Without a copy where the drivers of all links can, else by copy.
    #[default]
    Auto,
    /// As said; an error where a driver cannot.
    Only(CopyMode),
}

/// The limit for hangs where none is given: how long a frame may wait for a
/// process that does not take it before the bypass takes over.
pub const HANG_MAX_DEFAULT: Duration = Duration::from_millis(10);

/// What a tap is to be: sizes, and what happens when its program fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Chunks of memory, for all links together; at most 2^18.
    pub chunks: u32,
    /// Bytes of a chunk, 2048 or 4096; 256 of them are the kernel's. Longer
    /// frames lie in several.
    pub chunk_bytes: u32,
    /// Chunks that are kept ready to be allocated, and never lent to the
    /// kernel to receive.
    pub reserved: u32,
    /// Frames that may wait in each ring, a power of two up to 2^16.
    pub ring: u32,
    /// How frames get to the memory.
    pub mode: Mode,
    /// How long to look for frames before going to sleep, at most: the core is
    /// busy, and the latency low. Where frames come at greater intervals than
    /// that, they are soon slept for at once.
    pub spin: Duration,
    /// Have our calls poll the device for so long at a time, where its driver
    /// knows how.
    pub busy_poll: Option<Duration>,
    /// In copy mode, send frames of which 32 or more wait at once without a
    /// socket buffer for each, where that is possible: on a veth of one queue
    /// without segmentation (`ethtool -K … tso off`), whose other end joins
    /// what it receives (`gro on`) or has a program at XDP; Linux 6.3. Where
    /// frames stay in a receiver's queues, the kernel keeps what it made for
    /// each such call as long, so that there are 256 of these at most, see
    /// `docs/explanation/bypass-and-flow-cache.md`.
    pub tx_burst: bool,
    /// Complete TCP and UDP checksums that were left to the device: it makes
    /// them what a wire would carry. `None`: where the driver is that of
    /// veths, whose frames have never seen a wire.
    pub complete_checksums: Option<bool>,
    /// A [`Bridge`](crate::Bridge) calls the kernel before it takes each frame
    /// and after it gave it, instead of once for many: to see what that costs
    /// (the paper, §7).
    pub syscall_per_frame: bool,
    /// What becomes of frames when the program fails.
    pub bypass: Bypass,
    /// How long a frame may wait for a program that does nothing, before it
    /// counts as hung; `None` for ever. At least 1 ms.
    pub hang_max: Option<Duration>,
    /// Answers that the kernel may remember, see [`FlowCache`](crate::FlowCache);
    /// `None`: every frame comes to the application.
    pub flow_cache: Option<FlowCacheConfig>,
}

/// Links that the rings are long enough for by default: a bump in a wire has two.
const LINKS: usize = 2;

impl Default for Config {
    /// With the rings of `weir bridge`, [long](Config::ring_for) enough to lose
    /// nothing while another program has the processor for some milliseconds, in
    /// 96 MiB. For more links, or in less memory, see [`Config::with_rings`].
    fn default() -> Config {
        let least = Config {
            chunks: 0,
            chunk_bytes: 2048,
            reserved: 64,
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

/// Chunks that the rings of a program have by [default](Config::ring_for), at
/// most: 128 MiB.
const RINGS_CHUNKS_MAX: u32 = 1 << 16;

/// The longest rings by default: what comes at 4 million a second while another
/// program has the processor for a tick of the kernel's (4 ms at 250 a second).
const RING_MAX: u32 = 1 << 14;

impl Config {
    /// With rings for so many frames at each of so many links, and as many
    /// chunks as it takes: a link whose frames nobody takes holds twice its
    /// ring (a full rx ring, and as much that is lent to be filled), and leaves
    /// the others theirs all the same.
    #[must_use]
    pub fn with_rings(self, ring: u32, links: usize) -> Config {
        let chunks = ring
            .saturating_mul(rings(links))
            .saturating_add(self.reserved);
        Config {
            ring,
            chunks: chunks.min(CHUNKS_MAX),
            ..self
        }
    }

    /// Rings as long as makes sense for a program that forwards between so many
    /// links: a processor that does something else for some milliseconds shall
    /// cost no frame, and the memory of all of them stay within 128 MiB.
    pub fn ring_for(links: usize) -> u32 {
        let fit = (RINGS_CHUNKS_MAX / rings(links)).max(1);
        RING_MAX.min(1 << fit.ilog2())
    }
}

/// How many rings' frames there are chunks for.
fn rings(links: usize) -> u32 {
    let links = links.clamp(1, weir_link::xdp::LINKS_MAX as usize) as u32;
    2 * links - 1
}

/// Whether it can be.
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
    if config.reserved >= config.chunks {
        let range = "fewer than there are chunks";
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
