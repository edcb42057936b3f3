//! Table 6-5: a VMTP client behind a thread that demultiplexes, and a pipe.
//!
//! ```text
//!  link ─► port ─► demultiplexing thread ─► pipe ─► client ─► another port ─► link
//! ```

use super::ProtocolError;
use super::world::INTERFACE;
use std::io::{ErrorKind, PipeReader, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_protocols::station::Station;
use weir_protocols::vmtp::{CallError, filter_of, station_of};
use weir_vmtp::packet::ETHER_TYPE;
use weir_vmtp::{Client, Entity, Event, Request};
use weir_wire::EtherType;
use weir_wire::ethernet::Address;

/// Bytes before each packet in the pipe: its length and its source.
const HEAD: usize = 2 + 6;

/// A client whose packets come by a pipe.
pub(super) struct Demultiplexed {
    client: Client<Address>,
    station: Station,
    pipe: PipeReader,
    began: Instant,
}

impl Demultiplexed {
    /// Runs `measure` with a client behind a demultiplexer.
    pub(super) fn run<T: Send>(
        measure: impl FnOnce(&mut Demultiplexed) -> Result<T, ProtocolError>,
    ) -> Result<T, ProtocolError> {
        let entity = Entity::process(99, [10, 0, 0, 1].into());
        let ether_type = EtherType(ETHER_TYPE);
        let mut receiving = Station::open(INTERFACE, None, ether_type, &filter_of(entity))?;
        // The client's own port only sends.
        let nothing = "ether[14:4] = 0xffffffff and ether[38:4] = 0xffffffff";
        let station = Station::open(INTERFACE, None, ether_type, nothing)?;
        let (reader, mut writer) = pipe()?;
        let mut client = Demultiplexed {
            client: Client::new(entity, 1),
            station,
            pipe: reader,
            began: Instant::now(),
        };
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ended = &ended;
            // In the namespace of the thread that starts it.
            let passing = scope.spawn(move || -> Result<(), ProtocolError> {
                let mut packet = Vec::new();
                while !ended.load(Relaxed) {
                    let mut failed = None;
                    receiving.receive(Duration::from_millis(100), |from, bytes| {
                        packet.clear();
                        packet.extend((bytes.len() as u16).to_be_bytes());
                        packet.extend(from.0);
                        packet.extend(bytes);
                        failed = writer.write_all(&packet).err().or(failed.take());
                    })?;
                    match failed {
                        // The client has ended.
                        Some(error) if error.kind() == ErrorKind::BrokenPipe => break,
                        Some(error) => return Err(error.into()),
                        None => {}
                    }
                }
                Ok(())
            });
            let measured = measure(&mut client);
            ended.store(true, Relaxed);
            drop(client);
            passing.join().expect("it does not panic")?;
            measured
        })
    }

    /// One transaction; returns the bytes of its response.
    pub(super) fn call(&mut self, request: Request) -> Result<usize, ProtocolError> {
        let started = self.client.call(self.began.elapsed(), request);
        started.expect("no transaction is under way");
        loop {
            let client = &mut self.client;
            while self
                .station
                .queue_with(|frame| client.poll_transmit(frame).map(station_of))?
            {}
            self.station.flush()?;
            match self.client.poll_event() {
                Some(Event::Response(response)) => return Ok(response.segment.len()),
                Some(Event::Failed(failure)) => return Err(CallError::from(failure).into()),
                Some(Event::Collected) | None => {}
            }
            let mut head = [0; HEAD];
            // Nothing is lost on this link, so no time-out is needed.
            self.pipe.read_exact(&mut head)?;
            let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
            let from = Address([head[2], head[3], head[4], head[5], head[6], head[7]]);
            let mut packet = vec![0; len];
            self.pipe.read_exact(&mut packet)?;
            self.client.handle(self.began.elapsed(), from, &packet);
        }
    }
}
