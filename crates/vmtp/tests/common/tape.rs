//! A tape of packets, times and answers for a client and a server: nothing
//! panics, and nothing grows without bound.

use std::time::Duration;
use weir_vmtp::packet::{Flags, Repr};
use weir_vmtp::server::Limits;
use weir_vmtp::{Client, Entity, Reply, Request, Server, file};

const HERE: Entity = Entity(0x0000_0001_0a00_0001);
const THERE: Entity = Entity(0x0000_0002_0a00_0002);
const CLIENTS: usize = 8;
const BYTES: usize = 40_000;

struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*first))
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let (first, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        first
    }

    /// A packet that is whole, with fields of the tape.
    fn packet(&mut self) -> Option<Vec<u8>> {
        let kinds = self.byte()?;
        let client = match kinds & 3 {
            0 => HERE,
            1 => THERE,
            _ => Entity(u64::from(self.byte()?)),
        };
        let server = match kinds >> 2 & 3 {
            0 => HERE,
            1 => THERE,
            2 => Entity::MANAGERS,
            _ => file::GROUP,
        };
        let size = match kinds >> 4 & 3 {
            0 => 0,
            1 => 300,
            2 => 1024,
            _ => 16_384,
        };
        let segment = vec![kinds; size];
        let all = weir_vmtp::segment::all_blocks(size);
        let code = [0, 5, 0x101, 0x10f, 0x110][usize::from(self.byte()? % 5)];
        let repr = Repr {
            client,
            multicast: false,
            acknowledge: kinds & 0x40 != 0,
            retransmit_count: 0,
            response: kinds & 0x80 != 0,
            transaction: 100_u32.wrapping_add_signed(i32::from(self.byte()? as i8) % 5),
            delivery: self.word()? & all,
            server,
            flags: Flags(self.byte()? & !Flags::SPARSE.0),
            code,
            co_resident: client,
            user_data: [u32::from(self.byte()? % 18), u32::from(self.byte()?), 0],
            message_delivery: self.word()?,
            segment_size: size as u32,
        };
        let mut bytes = Vec::new();
        repr.emit(&segment, &mut bytes);
        Some(bytes)
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut tape = Tape(data);
    let limits = Limits {
        clients: CLIENTS,
        bytes: BYTES,
        ..Limits::default()
    };
    let mut server = Server::<u8>::with_limits(THERE, 0, limits);
    server.join(file::GROUP);
    let mut client = Client::<u8>::new(HERE, 100);
    let mut now = Duration::ZERO;
    let mut last = Vec::new();
    let mut waiting = Vec::new();
    let mut steps = 0;
    while let Some(operation) = tape.byte() {
        match operation % 10 {
            0 => last = tape.packet().unwrap_or_default(),
            1 => {
                let len = usize::from(tape.byte().unwrap_or(0));
                last = tape.take(len).to_vec();
            }
            2 => {
                let at = usize::from(tape.byte().unwrap_or(0));
                let value = tape.byte().unwrap_or(0);
                if let Some(byte) = last.get_mut(at) {
                    *byte = value;
                }
            }
            3 | 4 => server.handle(now, operation >> 4, &last),
            5 => client.handle(now, operation >> 4, &last),
            6 => {
                let collect = (operation & 0x80 != 0).then_some(Duration::from_millis(500));
                let request = Request {
                    segment: vec![1; usize::from(operation >> 4) * 1000],
                    collect,
                    ..Request::new(
                        if collect.is_some() {
                            file::GROUP
                        } else {
                            THERE
                        },
                        5,
                    )
                };
                let _ = client.call(now, request);
            }
            7 => {
                now += Duration::from_millis(1 << (operation >> 4));
                server.handle_timeout(now);
                client.handle_timeout(now);
            }
            8 => {
                waiting.extend(server.poll_request());
                if operation & 0x10 != 0 && !waiting.is_empty() {
                    let request = waiting.remove(0);
                    let reply = Reply {
                        segment: vec![2; usize::from(operation >> 5) * 2000],
                        idempotent: operation & 0x80 != 0,
                        ..Reply::default()
                    };
                    server.respond(now, &request, reply);
                }
                waiting.truncate(CLIENTS);
            }
            _ => {
                last.clear();
                let sent = if operation & 0x10 != 0 {
                    server.poll_transmit(&mut last).is_some()
                } else {
                    client.poll_transmit(&mut last).is_some()
                };
                // What is sent must be understood.
                assert!(!sent || weir_vmtp::packet::Packet::new(&last).is_ok());
            }
        }
        while client.poll_event().is_some() {}
        assert!(server.clients() <= CLIENTS);
        assert!(server.kept_bytes() <= BYTES);
        steps += 1;
    }
    // Whatever happened, all that waits to be sent is bounded, and all ends.
    let mut bytes = Vec::new();
    let mut sent = 0;
    loop {
        bytes.clear();
        let one = server.poll_transmit(&mut bytes).is_some();
        let other = client.poll_transmit(&mut bytes).is_some();
        if !one && !other {
            break;
        }
        sent += 1;
        assert!(sent < 2000, "{sent} packets wait after {steps} steps");
    }
    while let Some(request) = server.poll_request() {
        server.respond(now, &request, Reply::default());
    }
    for _ in 0..200 {
        let due = [server.next_timeout(), client.next_timeout()];
        let Some(due) = due.into_iter().flatten().min() else {
            break;
        };
        if due == Duration::MAX {
            break;
        }
        now = now.max(due);
        server.handle_timeout(now);
        client.handle_timeout(now);
        while server.poll_transmit(&mut bytes).is_some() {}
        while client.poll_transmit(&mut bytes).is_some() {}
        bytes.clear();
    }
    assert!(!client.is_busy(), "a transaction stays");
}
