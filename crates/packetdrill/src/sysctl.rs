//! The kernel settings that scripts make: they also apply to the stack, so that
//! a script has the same meaning for both.

use std::fs;
use weir_stack::tcp::TcpConfig;

/// The values below `/proc/sys/net/ipv4` of packetdrill's network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    folder: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            folder: "/proc/sys/net/ipv4".to_owned(),
        }
    }
}

impl Settings {
    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(format!("{}/{name}", self.folder)).ok()
    }

    /// The first numbers of a setting; empty if there is no such setting.
    fn numbers(&self, name: &str) -> Vec<u64> {
        let text = self.text(name).unwrap_or_default();
        let numbers = text.split_whitespace().map(str::parse);
        numbers.map_while(Result::ok).collect()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.numbers(name).first().copied()
    }

    fn is_on(&self, name: &str, default: bool) -> bool {
        self.number(name).map_or(default, |value| value != 0)
    }

    /// Default size of the send buffer in bytes.
    pub(crate) fn send_buffer(&self) -> usize {
        let numbers = self.numbers("tcp_wmem");
        numbers.get(1).map_or(1 << 18, |bytes| *bytes as usize)
    }

    /// Number of unsent bytes above which a socket is not writable.
    pub(crate) fn notsent_lowat(&self) -> u32 {
        let number = self.number("tcp_notsent_lowat");
        number.map_or(u32::MAX, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// The bits of `tcp_fastopen`.
    pub(crate) fn fast_open(&self) -> u32 {
        let text = self.text("tcp_fastopen").unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// The key of `tcp_fastopen_key`: words of eight digits each.
    pub(crate) fn fast_open_key(&self) -> [u8; 16] {
        let text = self.text("tcp_fastopen_key").unwrap_or_default();
        let text = text.split(',').next().unwrap_or_default();
        let words = text.trim().split('-');
        let words = words.map(|word| u32::from_str_radix(word, 16).unwrap_or(0));
        let mut key = [0; 16];
        for (bytes, word) in key.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        key
    }

    /// The configuration of new connections.
    pub(crate) fn tcp(&self, opens: bool) -> TcpConfig {
        let defaults = TcpConfig::default();
        let receive = self.numbers("tcp_rmem");
        TcpConfig {
            receive_buffer: receive.get(2).map_or(1 << 20, |bytes| *bytes as usize),
            send_buffer: self.send_buffer(),
            receive_initial: usize::MAX,
            send_initial: usize::MAX,
            sack: self.is_on("tcp_sack", true),
            timestamps: self.is_on("tcp_timestamps", true),
            timestamps_required: false,
            // 1: always; 2: if the peer requests it.
            ecn: match self.number("tcp_ecn") {
                Some(1) => true,
                Some(2) => !opens,
                _ => false,
            },
            tail_loss_probe: self.is_on("tcp_early_retrans", true),
            slow_start_after_idle: self.is_on("tcp_slow_start_after_idle", true),
            min_tso_segs: self
                .number("tcp_min_tso_segs")
                .map_or(2, |segments| segments.clamp(1, 255) as u8),
            syn_retries: self
                .number("tcp_syn_retries")
                .map_or(6, |times| times as u8),
            ..defaults
        }
    }
}
