//! A host's `--metrics`.

use crate::report::metrics::{Exposition, label};
use weir_socket::Net;

/// The metrics of a host, under the names of the command that has it.
pub(crate) fn metrics(net: &Net, prefix: &'static str) -> Exposition {
    let (counters, stats) = (net.counters(), net.stats());
    let mut out = Exposition::new(prefix);
    for (name, help, value) in [
        ("rx_frames_total", "Frames received", counters.frames_in),
        ("tx_frames_total", "Frames sent", counters.frames_out),
        (
            "shard_frames_lost_total",
            "Frames lost on their way from one stack of the host to another",
            stats.forwarded_lost,
        ),
        (
            "syn_cookies_sent_total",
            "SYN cookies sent, which need no state",
            counters.cookies_out,
        ),
        (
            "challenge_acks_total",
            "Challenge ACKs sent for unexpected segments",
            counters.challenges,
        ),
    ] {
        out.one(name, "counter", help, value);
    }
    out.one(
        "tcp_connections",
        "gauge",
        "TCP connections, those in TIME-WAIT included",
        stats.connections as u64,
    );
    let drops = counters.drops();
    let drops: Vec<_> = drops
        .map(|(reason, times)| (label("reason", &words(&format!("{reason:?}"))), times))
        .collect();
    out.metric(
        "dropped_total",
        "counter",
        "Packets that the host dropped, by reason",
        &drops,
    );
    out
}

/// `BacklogFull` as `backlog_full`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            words.push('_');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    #[test]
    fn reasons_are_words() {
        assert_eq!(super::words("BacklogFull"), "backlog_full");
        assert_eq!(super::words("Malformed"), "malformed");
    }
}
