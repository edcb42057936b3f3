//! The measurement protocol of iperf3 (3.x).
//!
//! ```text
//!  client                     control connection                 server
//!  cookie, 37 bytes ──────────────────────────────────────────────►
//!  ◄──────────────────────────────────────────────── PARAM_EXCHANGE
//!  parameters (length, JSON) ─────────────────────────────────────►
//!  ◄──────────────────────────────────────────────── CREATE_STREAMS
//!  streams: each a connection that begins with the cookie,
//!  or a datagram that is answered
//!  ◄─────────────────────────────────────── TEST_START, TEST_RUNNING
//!  … bytes on the streams …
//!  TEST_END ──────────────────────────────────────────────────────►
//!  ◄────────────────────────────────────────────── EXCHANGE_RESULTS
//!  results (length, JSON) ────────────────────────────────────────►
//!  ◄─────────────────────────────────────── results, DISPLAY_RESULTS
//!  IPERF_DONE ────────────────────────────────────────────────────►
//! ```

pub(crate) mod client;
mod control;
pub(crate) mod server;
mod streams;

use serde::{Deserialize, Deserializer, Serialize};
use std::io;
use std::time::Duration;

/// The default port.
pub(crate) const PORT: u16 = 5201;
/// Length of a test's cookie: 36 letters and a NUL.
pub(crate) const COOKIE_LEN: usize = 37;
/// Largest length of JSON text, in bytes.
const JSON_LEN_MAX: usize = 1 << 20;
/// Largest number of streams in one test.
pub(crate) const STREAMS_MAX: usize = 128;
/// Default length of a write, in bytes.
pub(crate) const BLOCK_LEN: usize = 128 << 10;
/// Largest length of a write or datagram, in bytes.
pub(crate) const BLOCK_LEN_MAX: usize = 1 << 20;
/// Time limit for the peer's next message.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// The states that both sides send, a byte each.
pub(crate) mod state {
    pub(crate) const TEST_START: u8 = 1;
    pub(crate) const TEST_RUNNING: u8 = 2;
    pub(crate) const TEST_END: u8 = 4;
    pub(crate) const PARAM_EXCHANGE: u8 = 9;
    pub(crate) const CREATE_STREAMS: u8 = 10;
    pub(crate) const SERVER_TERMINATE: u8 = 11;
    pub(crate) const CLIENT_TERMINATE: u8 = 12;
    pub(crate) const EXCHANGE_RESULTS: u8 = 13;
    pub(crate) const DISPLAY_RESULTS: u8 = 14;
    pub(crate) const IPERF_DONE: u8 = 16;
    /// The server is running another test.
    pub(crate) const ACCESS_DENIED: u8 = 0xff;
    pub(crate) const SERVER_ERROR: u8 = 0xfe;
}

/// The parameters of a test: the supported fields of the client's message.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Parameters {
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) tcp: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) udp: bool,
    /// Duration in seconds.
    pub(crate) time: f64,
    /// Initial seconds that the client does not count.
    pub(crate) omit: f64,
    /// Bytes, or blocks, in place of a duration; 0 for none.
    pub(crate) num: u64,
    pub(crate) blockcount: u64,
    pub(crate) parallel: usize,
    /// Whether the server sends.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) reverse: bool,
    /// Whether both sides send.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) bidirectional: bool,
    /// Length of a block or datagram, in bytes.
    pub(crate) len: usize,
    /// Bits per second of each stream; 0 for no limit.
    pub(crate) bandwidth: u64,
    /// Whether datagram numbers have 64 bits.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) udp_counters_64bit: u64,
    pub(crate) client_version: String,
}

/// A number that some versions write as unsigned although it may be -1.
fn wrapped<'de, D: Deserializer<'de>>(input: D) -> Result<i64, D::Error> {
    let number = serde_json::Number::deserialize(input)?;
    let wrapped = || number.as_u64().map(u64::cast_signed);
    Ok(number.as_i64().or_else(wrapped).unwrap_or(-1))
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// The results of one side.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Results {
    pub(crate) cpu_util_total: f64,
    pub(crate) cpu_util_user: f64,
    pub(crate) cpu_util_system: f64,
    /// -1 if unknown.
    #[serde(deserialize_with = "wrapped")]
    pub(crate) sender_has_retransmits: i64,
    pub(crate) streams: Vec<StreamResult>,
}

/// The results of one stream.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StreamResult {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    #[serde(deserialize_with = "wrapped")]
    pub(crate) retransmits: i64,
    /// Seconds.
    pub(crate) jitter: f64,
    /// Number of lost datagrams.
    pub(crate) errors: i64,
    pub(crate) omitted_errors: i64,
    pub(crate) packets: i64,
    pub(crate) omitted_packets: i64,
    pub(crate) start_time: f64,
    pub(crate) end_time: f64,
}

/// iperf3's id of a stream: 1, 3, 4, 5 …
pub(crate) fn stream_id(index: usize) -> u64 {
    match index {
        0 => 1,
        more => more as u64 + 2,
    }
}

/// The measurement of a test.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) protocol: &'static str,
    /// Whether this side was the sender.
    pub(crate) sent: bool,
    pub(crate) streams: usize,
    pub(crate) seconds: f64,
    /// As counted by sender and receiver.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// The rate of received data.
    pub(crate) bits_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams: Option<Datagrams>,
}

/// The receiver's UDP results.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Datagrams {
    pub(crate) sent: i64,
    pub(crate) lost: i64,
    pub(crate) jitter_ms: f64,
}

impl Measured {
    /// From the results of both sides; `sent` says which side is the sender.
    pub(crate) fn of(
        parameters: &Parameters,
        sent: bool,
        ours: &Results,
        theirs: &Results,
        seconds: f64,
    ) -> Measured {
        let (sender, receiver) = if sent { (ours, theirs) } else { (theirs, ours) };
        let bytes = |side: &Results| side.streams.iter().map(|stream| stream.bytes).sum();
        let received_bytes: u64 = bytes(receiver);
        let count = receiver.streams.len().max(1) as f64;
        let datagrams = parameters.udp.then(|| Datagrams {
            sent: sender.streams.iter().map(|stream| stream.packets).sum(),
            lost: receiver.streams.iter().map(|stream| stream.errors).sum(),
            jitter_ms: receiver.streams.iter().map(|one| one.jitter).sum::<f64>() / count * 1e3,
        });
        Measured {
            protocol: if parameters.udp { "udp" } else { "tcp" },
            sent,
            streams: parameters.parallel,
            seconds,
            sent_bytes: bytes(sender),
            received_bytes,
            bits_per_second: received_bytes as f64 * 8.0 / seconds.max(1e-9),
            datagrams,
        }
    }

    /// A line of text: the received data, whichever side received, and the sent
    /// data if that is more.
    pub(crate) fn line(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let received = megabytes(self.received_bytes);
        let whose = if self.sent {
            "received there"
        } else {
            "received"
        };
        let sent = if self.sent_bytes > self.received_bytes && self.datagrams.is_some() {
            format!(" of {:.1} MB sent", megabytes(self.sent_bytes))
        } else {
            String::new()
        };
        let rate = self.bits_per_second / 1e6;
        let seconds = self.seconds;
        let protocol = self.protocol;
        let datagrams = self.datagrams.map_or_else(String::new, |datagrams| {
            let Datagrams {
                sent,
                lost,
                jitter_ms,
            } = datagrams;
            format!(", {lost} of {sent} datagrams lost, jitter {jitter_ms:.3} ms")
        });
        format!(
            "{received:.1} MB {whose}{sent} over {protocol} in {seconds:.2} s: {rate:.1} Mb/s{datagrams}"
        )
    }
}

fn unexpected(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}
