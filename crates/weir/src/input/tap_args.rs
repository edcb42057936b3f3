//! Options of the commands that own links by a tap: `bridge`, `route`, `run`, `shape`.

use crate::error::CliError;
use crate::report::metrics;
use crate::report::tx_burst::TxBurstMode;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use weir_tap::Config;

/// How a tap sends, waits and ends.
#[derive(clap::Args, Debug)]
pub(crate) struct TapArgs {
    /// Restore the interfaces on SIGINT and SIGTERM
    #[arg(long)]
    pub(crate) restore: bool,

    /// Longest time that a frame may wait for a weir that does not respond, in
    /// milliseconds, before the bypass takes over
    #[arg(long, value_name = "N", default_value_t = weir_tap::HANG_MAX_DEFAULT.as_millis() as u64,
          value_parser = clap::value_parser!(u64).range(1..=60_000),
          allow_negative_numbers = true)]
    hang_ms: u64,

    /// In copy mode, send many frames at once without a socket buffer for each:
    /// where the devices support it (auto), the same with a message where not
    /// (on), or never (off)
    #[arg(long, alias = "bulk", value_name = "WHAT", default_value = "auto")]
    pub(crate) tx_burst: TxBurstMode,

    /// How long to poll for frames before sleeping, in microseconds; polling
    /// occupies a core and lowers the latency
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000_000),
          allow_negative_numbers = true)]
    spin_us: u64,
}

impl TapArgs {
    /// The default configuration of a tap, with these options.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        self.apply(&mut config);
        config
    }

    /// Sets these options in a configuration.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.hang_max = Some(Duration::from_millis(self.hang_ms));
        config.spin = Duration::from_micros(self.spin_us);
        config.tx_burst = self.tx_burst.is_tried();
    }
}

/// The configuration of a tap of `links` links with rings of this length, and with memory for the frames that
/// wait in queues, [`Config::held`].
///
/// # Errors
/// If there is no such ring, or not enough memory.
pub(crate) fn with_queues(tap: Config, ring: u32, links: usize) -> Result<Config, CliError> {
    if !ring.is_power_of_two() || !(64..=1 << 16).contains(&ring) {
        let message = format!("--ring {ring}: write a power of two, 64 to 65536");
        return Err(CliError::refused(message));
    }
    let tap = tap.with_rings(ring, links);
    let rings = 2 * links as u64 - 1;
    let wanted = u64::from(ring) * rings + u64::from(tap.reserved) + u64::from(tap.held);
    if tap.held > 0 && u64::from(tap.chunks) < wanted {
        return Err(CliError::refused(format!(
            "--ring {ring} and queues of {} frames need {wanted} chunks of memory, and there are {} at \
             most: choose a shorter ring, or shorter queues (limit)",
            tap.held, tap.chunks
        )));
    }
    Ok(tap)
}

/// Where a command writes its statistics while it runs.
#[derive(clap::Args, Debug)]
pub(crate) struct StatsArgs {
    /// Write the statistics to a file every second and at the end, as JSON;
    /// standard output (-), a FIFO or a device gets a line each time
    #[arg(long, value_name = "FILE")]
    pub(crate) stats_json: Option<PathBuf>,

    /// Serve metrics for Prometheus at this address, at /metrics; port 0
    /// chooses a free port, which is printed
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address)]
    pub(crate) metrics: Option<SocketAddr>,
}
