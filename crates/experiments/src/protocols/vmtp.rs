//! Tables 6-2 to 6-5: VMTP on ports.

use super::demultiplexer::Demultiplexed;
use super::source::Source;
use super::world::{INTERFACE, Measured, World, megabytes, microseconds};
use super::{Figures, ProtocolError, Ratio, Row, Settings, Unit, kernel, paper};
use std::sync::atomic::Ordering::Relaxed;
use weir_protocols::vmtp::{Client, Server};
use weir_vmtp::segment::SEGMENT_LEN_MAX;
use weir_vmtp::{Entity, Incoming, Reply, Request};

/// The server's number on its host.
const NUMBER: u32 = 7;
/// The request code: answer with as many bytes as the first word of user data
/// says.
const READ: u32 = 1;

fn answer(request: &Incoming) -> Reply {
    let len = (request.user_data[0] as usize).min(SEGMENT_LEN_MAX);
    Reply {
        segment: vec![7; len],
        idempotent: len == 0,
        ..Reply::default()
    }
}

fn read(server: Entity, len: usize) -> Request {
    Request {
        user_data: [len as u32, 0, 0],
        ..Request::new(server, READ)
    }
}

/// Runs a server, and a client's measurement with its entity.
fn with_server<T: Send>(
    world: &World,
    client: impl FnOnce(Entity) -> Result<T, ProtocolError> + Send,
) -> Result<T, ProtocolError> {
    world.run(
        |ended, ready| {
            let mut server = Server::open(INTERFACE, None, NUMBER, &[])?;
            ready(server.entity());
            Ok(server.serve(answer, || ended.load(Relaxed))?)
        },
        client,
    )
}

fn minimal(world: &World, settings: &Settings) -> Result<f64, ProtocolError> {
    with_server(world, |server| {
        let mut client = Client::open(INTERFACE, None)?;
        microseconds(settings.time, || {
            client.call(read(server, 0), || false)?;
            Ok(())
        })
    })
}

fn bulk(world: &World, settings: &Settings, batch: usize) -> Result<f64, ProtocolError> {
    with_server(world, |server| {
        let mut client = Client::open(INTERFACE, None)?;
        client.set_batch(batch);
        megabytes(settings.time, || {
            let response = client.call(read(server, SEGMENT_LEN_MAX), || false)?;
            Ok(response.segment.len())
        })
    })
}

fn demultiplexed(world: &World, settings: &Settings) -> Result<(f64, f64), ProtocolError> {
    with_server(world, |server| {
        Demultiplexed::run(|client| {
            let minimal = microseconds(settings.time, || {
                client.call(read(server, 0))?;
                Ok(())
            })?;
            let bulk = megabytes(settings.time, || client.call(read(server, SEGMENT_LEN_MAX)))?;
            Ok((minimal, bulk))
        })
    })
}

/// Measures tables 6-2 to 6-5; `begin` is called with the name of each step.
///
/// # Errors
/// If something of the measurement fails.
pub fn vmtp(
    world: &World,
    settings: &Settings,
    begin: &dyn Fn(&str),
) -> Result<Figures, ProtocolError> {
    begin("UDP round trips");
    let udp = World::best(settings, true, || kernel::udp_round_trip(world, settings))?;
    begin("VMTP, minimal operation");
    let minimal = World::best(settings, true, || minimal(world, settings))?;
    begin("TCP, bulk");
    let tcp = World::best(settings, false, || {
        kernel::tcp(world, settings, &mut Source::memory(), None)
    })?;
    begin("VMTP, bulk");
    let bulk_batched = World::best(settings, false, || bulk(world, settings, usize::MAX))?;
    begin("VMTP, bulk, a packet at a time");
    let bulk_alone = World::best(settings, false, || bulk(world, settings, 1))?;
    begin("VMTP behind a demultiplexer");
    let mut behind = (Measured::none(true), Measured::none(false));
    for _ in 0..settings.rounds {
        let (minimal, bulk) = demultiplexed(world, settings)?;
        behind.0.add(minimal);
        behind.1.add(bulk);
    }
    let (time, rate) = (Unit::MicrosecondsAnOperation, Unit::MegabytesASecond);
    let rows = vec![
        Row::new("6-2", "VMTP, port", paper::MINIMAL.0, minimal, time),
        Row::new(
            "6-2",
            "UDP transaction, kernel (paper: VMTP)",
            paper::MINIMAL.1,
            udp,
            time,
        ),
        Row::new("6-3", "VMTP, port", paper::BULK.0, bulk_batched, rate),
        Row::new(
            "6-3",
            "TCP, kernel, without offloads",
            paper::BULK.1,
            tcp,
            rate,
        ),
        Row::new(
            "6-4",
            "VMTP, port, a packet at a time",
            paper::NO_BATCHING,
            bulk_alone,
            rate,
        ),
        Row::new(
            "6-5",
            "VMTP behind a thread that demultiplexes",
            paper::DEMULTIPLEXED.0,
            behind.0,
            time,
        ),
        Row::new(
            "6-5",
            "VMTP behind a thread that demultiplexes",
            paper::DEMULTIPLEXED.1,
            behind.1,
            rate,
        ),
    ];
    let ratios = vec![
        Ratio::new(
            "minimal operation, port : kernel",
            minimal,
            udp,
            14.7 / 7.44,
        )
        .at_most(2.0, "at most 2"),
        Ratio::new(
            "bulk, VMTP by port : kernel TCP",
            bulk_batched,
            tcp,
            112.0 / 222.0,
        )
        .at_least(0.5, "at least 0.5"),
        Ratio::new(
            "bulk, batching : none",
            bulk_batched,
            bulk_alone,
            112.0 / 64.0,
        ),
        Ratio::new(
            "minimal operation, demultiplexer : port",
            behind.0,
            minimal,
            18.08 / 14.72,
        ),
        Ratio::new(
            "bulk, port : demultiplexer",
            bulk_batched,
            behind.1,
            112.0 / 25.0,
        ),
    ];
    Ok(Figures { rows, ratios })
}
