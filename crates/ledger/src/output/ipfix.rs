//! IPFIX: messages (RFC 7011) in files (RFC 5655) and to a collector by TCP.
//!
//! A record is a Data Record of one of four templates: with the subscriber's IPv4 or IPv6 address as
//! source (up) or destination (down); other keys have the templates without addresses.
//!
//! ```text
//!  flowStartMilliseconds 152 · flowEndMilliseconds 153 · octetDeltaCount 1 · packetDeltaCount 2 ·
//!  flowDirection 61 · flowId 148 · [sourceIPv4Address 8 | destinationIPv4Address 12 |
//!  sourceIPv6Address 27 | destinationIPv6Address 28] · userName 371 · applicationName 96
//! ```
//!
//! flowId is made of the record's identity: the same record has it again. flowDirection is 0 (ingress)
//! for traffic from the subscriber, 1 (egress) for that to the subscriber.

use super::given::{Given, count};
use super::lines::{Line, Memory};
use super::shape::Shape;

use crate::{Ledger, LedgerError};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::time::Duration;
use weir_meter::{Direction, Key, Totals};
use weir_wire::ipfix::{HEADER_LEN, Message, SET_HEADER_LEN, TEMPLATE_SET, VARIABLE, VERSION};

/// Bytes of a message at most: a message fits into a packet of Ethernet, since collectors that take
/// UDP alone are fed by relays.
const MESSAGE_LEN_MAX: usize = 1400;
/// Bytes of a name in a record at most: longer ones are cut.
const NAME_LEN_MAX: usize = 250;
/// The Observation Domain: there is one.
const DOMAIN: u32 = 1;

/// Fields that all templates begin with: element and length.
const COMMON: [(u16, u16); 6] = [(152, 8), (153, 8), (1, 8), (2, 8), (61, 1), (148, 8)];
/// Fields that all templates end with.
const NAMES: [(u16, u16); 2] = [(371, VARIABLE), (96, VARIABLE)];
/// Template number and its address field.
const TEMPLATES: [(u16, Option<(u16, u16)>); 5] = [
    (256, None),
    (257, Some((8, 4))),
    (258, Some((12, 4))),
    (259, Some((27, 16))),
    (260, Some((28, 16))),
];

/// Makes messages of lines.
#[derive(Default)]
pub(super) struct Encoder {
    message: Message,
    /// Data Records of all messages, and of this one (RFC 7011 §3.1, Sequence Number).
    sequence: u32,
    records: u32,
    /// Unix time of the message in seconds: the end of its latest period.
    export_s: u32,
    has_templates: bool,
    record: Vec<u8>,
}

impl Encoder {
    /// Adds a line; writes the message if it is full.
    pub(super) fn line(&mut self, line: &Line<'_>, out: &mut impl Write) -> io::Result<()> {
        if !self.has_templates {
            self.has_templates = true;
            self.templates(out)?;
        }
        let template = self.encode(line);
        if self.message.wire_len() + SET_HEADER_LEN + self.record.len() > MESSAGE_LEN_MAX {
            self.flush(out)?;
        }
        self.message.record(template, &self.record);
        self.records += 1;
        let end_s = line.chunk.unix_ns[1].div_euclid(1_000_000_000);
        self.export_s = self.export_s.max(u32::try_from(end_s).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Encodes a record; gives its template.
    fn encode(&mut self, line: &Line<'_>) -> u16 {
        let record = &mut self.record;
        record.clear();
        let chunk = line.chunk;
        for time in chunk.unix_ns {
            let ms = u64::try_from(time.div_euclid(1_000_000)).unwrap_or(0);
            record.extend(ms.to_be_bytes());
        }
        record.extend(line.bytes.to_be_bytes());
        record.extend(line.packets.to_be_bytes());
        let direction = line.direction.unwrap_or(Direction::Up);
        record.push(direction as u8);
        record.extend(&flow_id(line));
        let address = match line.first_key {
            Some(Key::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Key::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Key::Prefix(address, _)) => Some(address),
            _ => None,
        };
        let template = match address {
            None => 256,
            Some(IpAddr::V4(address)) => {
                record.extend(address.octets());
                257 + direction as u16
            }
            Some(IpAddr::V6(address)) => {
                record.extend(address.octets());
                259 + direction as u16
            }
        };
        for text in [line.subscriber, line.service] {
            let text = &text[..text.floor_char_boundary(NAME_LEN_MAX)];
            record.push(text.len() as u8);
            record.extend(text.as_bytes());
        }
        template
    }

    /// A message with all templates.
    fn templates(&mut self, out: &mut impl Write) -> io::Result<()> {
        for (number, address) in TEMPLATES {
            let fields = COMMON.into_iter().chain(address).chain(NAMES);
            self.message.template(number, fields);
        }
        self.flush(out)
    }

    /// Writes the message that has been begun.
    pub(super) fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.message.is_empty() {
            return Ok(());
        }
        out.write_all(self.message.finish(self.export_s, self.sequence, DOMAIN))?;
        self.sequence = self.sequence.wrapping_add(self.records);
        self.records = 0;
        self.message.clear();
        Ok(())
    }
}

/// Eight bytes that stand for the record's identity.
fn flow_id(line: &Line<'_>) -> [u8; 8] {
    let chunk = line.chunk;
    let mut hash = Sha256::new();
    hash.update(chunk.counter.as_bytes());
    for number in [
        chunk.boot_epoch,
        chunk.period,
        chunk.number.into(),
        line.record,
    ] {
        hash.update(number.to_be_bytes());
    }
    let hash: [u8; 32] = hash.finalize().into();
    hash[..8].try_into().expect("eight of 32 bytes")
}

/// How long a collector may take to accept a connection, and what is sent.
const COLLECTOR: Duration = Duration::from_secs(10);

impl Ledger {
    /// Sends the lines of some chunks to a collector in one connection. When this returns, its TCP has
    /// taken all of them.
    pub(super) fn send_to(
        &self,
        address: &str,
        sequences: &[i64],
        shape: &Shape,
    ) -> Result<(Given, u64), LedgerError> {
        let failed = |source: io::Error| LedgerError::Collector {
            address: address.to_owned(),
            source,
        };
        let stream = connect(address).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 16, &stream);
        let mut encoder = Encoder::default();
        let mut memory = Memory::default();
        let mut records = 0;
        for sequence in sequences {
            records += self.lines(*sequence, shape, &mut memory, &mut |line| {
                encoder.line(line, &mut out).map_err(failed)
            })?;
        }
        encoder.flush(&mut out).map_err(failed)?;
        out.flush().map_err(failed)?;
        drop(out);
        taken(&stream).map_err(failed)?;
        Ok((memory.given, records))
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, COLLECTOR) {
            Ok(stream) => {
                stream.set_write_timeout(Some(COLLECTOR))?;
                stream.set_read_timeout(Some(COLLECTOR))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    Err(last.unwrap_or_else(none))
}

/// Ends the connection, and waits until its peer's TCP has acknowledged everything, or until the peer
/// has closed it.
fn taken(stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    // A collector sends nothing, and closes when it has read the end.
    let ended = (&*stream).read(&mut [0; 1]);
    match ended {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The sums of a file that [`Encoder`] has made.
pub(super) fn totals(mut file: File) -> Result<Totals, String> {
    let damaged = |_| "it ends within a message".to_owned();
    let mut sum = Totals::default();
    let mut file = io::BufReader::new(&mut file);
    loop {
        let mut header = [0; HEADER_LEN];
        match file
            .read(&mut header[..1])
            .map_err(|error| error.to_string())?
        {
            0 => return Ok(sum),
            _ => file.read_exact(&mut header[1..]).map_err(damaged)?,
        }
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if u16::from_be_bytes([header[0], header[1]]) != VERSION || length < HEADER_LEN {
            return Err("not a message of IPFIX".to_owned());
        }
        let mut body = vec![0; length - HEADER_LEN];
        file.read_exact(&mut body).map_err(damaged)?;
        add_message(&body, &mut sum).ok_or("a set that is no set of weir's")?;
    }
}

fn add_message(mut body: &[u8], sum: &mut Totals) -> Option<()> {
    while let Some((head, _)) = body.split_first_chunk::<4>() {
        let template = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let mut set = body.get(4..length)?;
        body = &body[length..];
        if template == TEMPLATE_SET {
            continue;
        }
        let (_, address) = TEMPLATES.iter().find(|(number, _)| *number == template)?;
        let address = address.map_or(0, |(_, length)| usize::from(length));
        while !set.is_empty() {
            let number = |at: usize| -> Option<u64> {
                Some(u64::from_be_bytes(set.get(at..at + 8)?.try_into().ok()?))
            };
            let (bytes, packets) = (number(16)?, number(24)?);
            let direction = if *set.get(32)? == 0 {
                Direction::Up
            } else {
                Direction::Down
            };
            count(sum, Some(direction), packets, bytes);
            let mut at = 41 + address;
            for _ in NAMES {
                at += 1 + usize::from(*set.get(at)?);
            }
            set = set.get(at..)?;
        }
    }
    Some(())
}
