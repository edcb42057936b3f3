//! NATS JetStream as a way from spools to ledgers: `weir ship` publishes chunks, mediators take them.
//!
//! ```text
//!  Spool ─► Shipper ─► stream WEIR, subject weir.chunk ─► consumer "mediators" ─► Taker ─► Ledger
//!    ▲         │                                                                    │
//!    └─────────┴◄──────────────── subject weir.ack: identity and hash ◄─────────────┘
//! ```
//!
//! The stream is transport, not memory: a chunk leaves the spool only when a ledger has it and has said
//! so. What is not acknowledged is published again after [`RESEND`], so a server that loses all its data
//! delays chunks and loses none; the ledger knows a chunk that comes twice.

mod client;

use crate::{Encoded, LedgerError, Spool};
use client::{Client, Message};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};
use weir_meter::ChunkId;

/// The stream, and the subjects of chunks and of acknowledgments.
const STREAM: &str = "WEIR";
const CHUNKS: &str = "weir.chunk";
const ACKS: &str = "weir.ack";
/// The consumer that all mediators share: each chunk goes to one of them.
const CONSUMER: &str = "mediators";
/// When a chunk is published again that no ledger has acknowledged.
pub const RESEND: Duration = Duration::from_secs(30);
/// How long a mediator may take with a chunk before another one gets it, nanoseconds.
const ACK_WAIT_NS: u64 = 20_000_000_000;
/// Chunks of a spool that are published before the first is acknowledged, at most.
const UNDERWAY_MAX: u32 = 1000;
/// Chunks of a request, at most.
const BATCH: usize = 32;

/// A failure of the way by NATS.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// The text is not a URL of a server.
    #[error(
        "`{0}` is no NATS server: give nats://HOST:PORT, tls://HOST:PORT or tls://USER:PASSWORD@HOST:PORT, \
         and behind tls:// ?ca=FILE if the CA is your own"
    )]
    Url(String),
    /// A password would go to another machine in clear.
    #[error(
        "the password would go to {0} in clear: write tls:// in place of nats://, or ?tls=disable at the end \
         to have it so"
    )]
    Clear(String),
    /// The connection fails.
    #[error("NATS: {0}; nothing is lost, and it is tried again")]
    Io(#[from] io::Error),
    /// The server does not answer.
    #[error("NATS: no answer; nothing is lost, and it is tried again")]
    Silent,
    /// The server refuses.
    #[error("NATS: {0}")]
    Said(String),
    /// A chunk is larger than the server takes.
    #[error(
        "NATS: a chunk has {bytes} bytes, and the server takes {max}: raise its max_payload, or lower \
         chunk_records of the counter"
    )]
    Large {
        /// Bytes of the chunk.
        bytes: usize,
        /// The server's limit.
        max: usize,
    },
    /// Spool or ledger fail.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The word of a ledger that it has a chunk.
#[derive(Serialize, Deserialize)]
struct Ack {
    id: ChunkId,
    /// Hexadecimal.
    hash: String,
}

/// An answer of JetStream.
#[derive(Deserialize)]
struct Answer {
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    err_code: Option<u32>,
    description: Option<String>,
}

/// JetStream's code for a stream that is there with another configuration.
const STREAM_IN_USE: u32 = 10058;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a URL is one of NATS.
///
/// # Errors
///
/// If it is not.
pub fn check_nats_url(url: &str) -> Result<(), NatsError> {
    client::check(url)
}

/// Asks JetStream for something; an error but `allowed` is one.
fn ask(
    client: &mut Client,
    api: &str,
    request: &serde_json::Value,
    allowed: Option<u32>,
    others: &mut Vec<Message>,
) -> Result<(), NatsError> {
    let subject = format!("$JS.API.{api}");
    let answer = client.request(&subject, request.to_string().as_bytes(), others)?;
    let answer: Answer = serde_json::from_slice(&answer.payload)
        .map_err(|error| NatsError::Said(error.to_string()))?;
    match answer.error {
        Some(error) if allowed.is_none() || error.err_code != allowed => {
            let why = error.description.unwrap_or_default();
            Err(NatsError::Said(format!("{api}: {why}")))
        }
        _ => Ok(()),
    }
}

/// Connects, and makes the stream if it is not there.
fn connect(url: &str, random: u64) -> Result<Client, NatsError> {
    let mut client = Client::connect(url, random)?;
    let stream = serde_json::json!({
        "name": STREAM, "subjects": [CHUNKS], "storage": "file", "retention": "workqueue",
    });
    let api = format!("STREAM.CREATE.{STREAM}");
    ask(
        &mut client,
        &api,
        &stream,
        Some(STREAM_IN_USE),
        &mut Vec::new(),
    )?;
    Ok(client)
}

/// Publishes the chunks of a spool, and takes those away that a ledger has acknowledged.
#[derive(Debug)]
pub struct Shipper {
    client: Client,
    /// When a chunk was published, by its place in the spool.
    sent: HashMap<i64, Instant>,
}

/// A shipper's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shipped {
    /// Chunks published, again too.
    pub published: u64,
    /// Chunks that a ledger has, and that the spool has no more.
    pub acknowledged: u64,
}

impl Shipper {
    /// Connects to the server; `random` is a random number.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or has no JetStream.
    pub fn connect(url: &str, random: u64) -> Result<Shipper, NatsError> {
        let mut client = connect(url, random)?;
        client.subscribe(ACKS)?;
        Ok(Shipper {
            client,
            sent: HashMap::new(),
        })
    }

    /// Publishes what was not, or too long ago, and listens for acknowledgments for so long.
    ///
    /// # Errors
    ///
    /// If server or spool fail; then connect anew.
    pub fn ship(&mut self, spool: &mut Spool, wait: Duration) -> Result<Shipped, NatsError> {
        let mut done = Shipped::default();
        let mut acks = Vec::new();
        let places = spool.places(UNDERWAY_MAX)?;
        self.sent
            .retain(|place, _| places.binary_search(place).is_ok());
        for place in places {
            let is_due = |at: &Instant| at.elapsed() >= RESEND;
            if !self.sent.get(&place).is_none_or(is_due) {
                continue;
            }
            // An acknowledgment may have come meanwhile.
            let Some(stored) = spool.next(place - 1)?.filter(|it| it.sequence == place) else {
                continue;
            };
            // The answer says that the server has stored it.
            let answer = self
                .client
                .request(CHUNKS, &stored.encoded.bytes, &mut acks)?;
            let answer: Answer = serde_json::from_slice(&answer.payload)
                .map_err(|error| NatsError::Said(error.to_string()))?;
            if let Some(error) = answer.error {
                return Err(NatsError::Said(error.description.unwrap_or_default()));
            }
            self.sent.insert(place, Instant::now());
            done.published += 1;
            done.acknowledged += self.acknowledge(spool, &mut acks)?;
        }
        let end = Instant::now() + wait;
        while let Some(message) = self.client.next(end)? {
            acks.push(message);
            done.acknowledged += self.acknowledge(spool, &mut acks)?;
        }
        done.acknowledged += self.acknowledge(spool, &mut acks)?;
        Ok(done)
    }

    fn acknowledge(
        &mut self,
        spool: &mut Spool,
        acks: &mut Vec<Message>,
    ) -> Result<u64, NatsError> {
        let mut acknowledged = 0;
        for message in acks.drain(..) {
            // Other clients of the server may say anything.
            let Ok(ack) = serde_json::from_slice::<Ack>(&message.payload) else {
                continue;
            };
            let hash = (0..ack.hash.len()).step_by(2).map(|at| {
                let byte = ack.hash.get(at..at + 2)?;
                u8::from_str_radix(byte, 16).ok()
            });
            let hash: Option<Vec<u8>> = hash.collect();
            let hash: Option<[u8; 32]> = hash.and_then(|hash| hash.try_into().ok());
            if let Some(hash) = hash {
                acknowledged += u64::from(spool.acknowledge(&ack.id, &hash)?);
            }
        }
        Ok(acknowledged)
    }
}

/// Takes chunks from the stream.
#[derive(Debug)]
pub struct Taker {
    client: Client,
}

/// A chunk that was taken.
#[derive(Debug)]
pub struct Taken {
    /// Its bytes and hash, not checked.
    pub encoded: Encoded,
    reply: String,
}

impl Taker {
    /// Connects to the server; `random` is a random number.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or has no JetStream.
    pub fn connect(url: &str, random: u64) -> Result<Taker, NatsError> {
        let mut client = connect(url, random)?;
        let consumer = serde_json::json!({
            "stream_name": STREAM,
            "config": {
                "durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": ACK_WAIT_NS,
            },
        });
        let api = format!("CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}");
        ask(&mut client, &api, &consumer, None, &mut Vec::new())?;
        Ok(Taker { client })
    }

    /// The chunks that wait, some of them; waits at most so long for the first.
    ///
    /// # Errors
    ///
    /// If the server fails; then connect anew.
    pub fn take(&mut self, wait: Duration) -> Result<Vec<Taken>, NatsError> {
        let inbox = self.client.new_inbox();
        let request = serde_json::json!({ "batch": BATCH, "expires": wait.as_nanos() as u64 });
        let api = format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}");
        self.client
            .publish(&api, &inbox, request.to_string().as_bytes())?;
        // The server says when it is over; longer than that nothing comes.
        let end = Instant::now() + wait + Duration::from_secs(5);
        let mut taken = Vec::new();
        while taken.len() < BATCH {
            let Some(message) = self.client.next(end)? else {
                return Err(NatsError::Silent);
            };
            match (message.status, message.reply) {
                (None, Some(reply)) => taken.push(Taken {
                    encoded: Encoded::of(message.payload),
                    reply,
                }),
                // A heartbeat.
                (Some(100), _) => {}
                // No more messages, or the time is over.
                (Some(404 | 408), _) if message.subject == inbox => break,
                // Of an earlier request.
                (Some(404 | 408), _) => {}
                (Some(status), _) => {
                    return Err(NatsError::Said(format!(
                        "status {status} instead of chunks"
                    )));
                }
                (None, None) => {}
            }
        }
        Ok(taken)
    }

    /// Informs the counter that the ledger has the chunk, and the server that it may forget it.
    ///
    /// # Errors
    ///
    /// If the server fails: the chunk comes once more.
    pub fn acknowledge(&mut self, id: &ChunkId, taken: &Taken) -> Result<(), NatsError> {
        let ack = Ack {
            id: id.clone(),
            hash: hex(&taken.encoded.hash),
        };
        let ack = serde_json::to_vec(&ack).expect("an acknowledgment is JSON");
        self.client.publish(ACKS, "", &ack)?;
        self.client.publish(&taken.reply, "", b"+ACK")
    }

    /// Informs the server that no mediator can use the message: it stays in its spool.
    ///
    /// # Errors
    ///
    /// If the server fails.
    pub fn refuse(&mut self, taken: &Taken) -> Result<(), NatsError> {
        self.client.publish(&taken.reply, "", b"+TERM")
    }
}
