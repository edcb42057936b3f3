//! [`Limits`]: the configuration that a connection began with.

use crate::tcp::TcpConfig;

/// The values of [`TcpConfig`] that one connection uses while it exists.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Limits {
    /// See [`TcpConfig::syn_retries`] and [`TcpConfig::retries`].
    pub(in crate::tcp) syn_retries: u8,
    pub(in crate::tcp) retries: u8,
    /// See [`TcpConfig::min_tso_segs`].
    pub(in crate::tcp) min_tso_segs: u8,
    /// See [`TcpConfig::tail_loss_probe`] and [`TcpConfig::slow_start_after_idle`].
    pub(in crate::tcp) tail_loss_probe: bool,
    pub(in crate::tcp) slow_start_after_idle: bool,
}

impl Limits {
    pub(super) fn new(config: &TcpConfig) -> Limits {
        Limits {
            syn_retries: config.syn_retries,
            retries: config.retries,
            min_tso_segs: config.min_tso_segs,
            tail_loss_probe: config.tail_loss_probe,
            slow_start_after_idle: config.slow_start_after_idle,
        }
    }
}
