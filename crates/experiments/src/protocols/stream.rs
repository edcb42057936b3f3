//! Tables 6-6 and 6-7: the Pup byte stream, and Telnet on it.

use super::source::Source;
use super::world::{INTERFACE, Measured, World, megabytes};
use super::{Figures, ProtocolError, Ratio, Row, Settings, Unit, kernel, paper};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use weir_protocols::pup::{Link, Node, Stream};
use weir_pup::Host;
use weir_pup::bsp::Read;
use weir_pup::datagram::socket;

/// Bytes of the largest Pup in an Ethernet packet of 1987: what TCP is limited to
/// for comparison.
const PUP_PACKET: i32 = 568;

fn node(host: u8) -> Result<Node, ProtocolError> {
    let host = Host::new(1, host, 0x5eed + u32::from(host));
    let link = Link::on_port(INTERFACE, None, host.port(0))?;
    Ok(Node::new(host, link))
}

/// Runs a server that writes what a source has for ever, and a client's measurement on the
/// stream.
fn with_stream<T: Send>(
    world: &World,
    source: &mut Source,
    measure: impl FnOnce(&mut Stream<'_>) -> Result<T, ProtocolError> + Send,
) -> Result<T, ProtocolError> {
    world.run(
        |ended, ready| {
            let mut node = node(2)?;
            node.host.listen(socket::TELNET);
            ready(());
            let mut number = None;
            while !ended.load(Relaxed) {
                number = number.or_else(|| node.host.poll_accepted());
                if let Some(accepted) = number
                    && let Some(connection) = node.connection(accepted.connection)
                {
                    loop {
                        let bytes = source.next()?;
                        let (wanted, count) = (bytes.len(), connection.write(bytes));
                        source.consume(count);
                        if count < wanted {
                            break;
                        }
                    }
                }
                node.turn(Duration::from_millis(100))?;
            }
            Ok(())
        },
        |()| {
            let mut node = node(3)?;
            let remote = weir_pup::datagram::Port {
                net: 1,
                host: 2,
                socket: socket::TELNET,
            };
            let mut stream = Stream::open(&mut node, remote, &|| false)?;
            measure(&mut stream)
        },
    )
}

fn bulk(world: &World, settings: &Settings, source: &mut Source) -> Result<f64, ProtocolError> {
    with_stream(world, source, |stream| {
        let mut buffer = vec![0; 64 << 10];
        megabytes(settings.time, || match stream.read(&mut buffer)? {
            Read::Data(count) => Ok(count),
            _ => Ok(0),
        })
    })
}

/// Measures table 6-6; `begin` is called with the name of each step.
///
/// # Errors
/// If something of the measurement fails.
pub fn bsp(
    world: &World,
    settings: &Settings,
    begin: &dyn Fn(&str),
) -> Result<Figures, ProtocolError> {
    begin("TCP");
    let memory = &mut Source::memory();
    let tcp = World::best(settings, false, || {
        kernel::tcp(world, settings, memory, None)
    })?;
    begin("TCP, packets of 568 bytes");
    let small = World::best(settings, false, || {
        kernel::tcp(world, settings, memory, Some(PUP_PACKET))
    })?;
    begin("Pup byte stream");
    let bsp = World::best(settings, false, || bulk(world, settings, memory))?;
    let disk = &mut Source::disk()?;
    begin("TCP, a file on a disk");
    let tcp_from_disk = World::best(settings, false, || kernel::tcp(world, settings, disk, None))?;
    begin("Pup byte stream, a file on a disk");
    let bsp_from_disk = World::best(settings, false, || bulk(world, settings, disk))?;
    let row =
        |table, what, paper, found| Row::new(table, what, paper, found, Unit::MegabytesASecond);
    let (of_stream, of_tcp, of_small) = paper::STREAM;
    let (stream_from_disk, of_tcp_from_disk) = paper::FROM_DISK;
    let rows = vec![
        row("6-6", "Pup byte stream, port", of_stream, bsp),
        row("6-6", "TCP, kernel, without offloads", of_tcp, tcp),
        row("6-6", "TCP, kernel, packets of 568 bytes", of_small, small),
        row(
            "§6.4",
            "Pup byte stream, a file on a disk",
            stream_from_disk,
            bsp_from_disk,
        ),
        row(
            "§6.4",
            "TCP, kernel, a file on a disk",
            of_tcp_from_disk,
            tcp_from_disk,
        ),
    ];
    let third = 1.0 / 3.0;
    let ratios = vec![
        Ratio::new(
            "byte stream : TCP with packets of 568 bytes",
            bsp,
            small,
            third,
        )
        .at_least(third, "at least 1/3"),
        Ratio::new("byte stream : TCP", bsp, tcp, 38.0 / 222.0),
        Ratio::new(
            "byte stream, from a disk : from memory",
            bsp_from_disk,
            bsp,
            1.0,
        ),
        Ratio::new("TCP, from a disk : from memory", tcp_from_disk, tcp, 0.5),
    ];
    Ok(Figures { rows, ratios })
}

/// A line that the server's program prints.
pub(super) const LINE: [u8; 64] =
    *b"The quick brown fox jumps over the lazy dog, again and again.\r\n\0";

/// A display that shows this many characters a second.
pub(super) struct Display {
    characters: f64,
}

impl Display {
    /// Reads what there is room for, as it is displayed; returns characters a
    /// second.
    pub(super) fn run(
        &self,
        time: Duration,
        mut read: impl FnMut(usize) -> Result<usize, ProtocolError>,
    ) -> Result<f64, ProtocolError> {
        let began = Instant::now();
        let mut shown = 0.0;
        while began.elapsed() < time {
            let may = (began.elapsed().as_secs_f64() * self.characters - shown) as usize;
            if may == 0 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            shown += read(may)? as f64;
        }
        Ok(shown / began.elapsed().as_secs_f64())
    }
}

/// Measures table 6-7; `begin` is called with the name of each step.
///
/// # Errors
/// If something of the measurement fails.
pub fn telnet(
    world: &World,
    settings: &Settings,
    begin: &dyn Fn(&str),
) -> Result<Figures, ProtocolError> {
    // Displays are slow: less time shows nothing.
    let time = settings.time.max(Duration::from_secs(1));
    let displays = [
        ("display of 3,350 characters a second", 3350.0),
        ("terminal of 9,600 baud", 960.0),
    ];
    let mut figures = Figures {
        rows: Vec::new(),
        ratios: Vec::new(),
    };
    for ((name, characters), (pup, tcp)) in displays.into_iter().zip(paper::TELNET) {
        let display = Display { characters };
        begin(name);
        let (mut by_tcp, mut by_pup) = (Measured::none(false), Measured::none(false));
        for _ in 0..settings.rounds {
            by_tcp.add(kernel::tcp_display(world, time, &display)?);
            by_pup.add(pup_display(world, time, &display)?);
        }
        let what = if characters > 1000.0 {
            [
                "Pup Telnet, port, display of 3,350",
                "TCP, kernel, display of 3,350",
            ]
        } else {
            ["Pup Telnet, port, 9,600 baud", "TCP, kernel, 9,600 baud"]
        };
        for (what, paper, found) in [(what[0], pup, by_pup), (what[1], tcp, by_tcp)] {
            let unit = Unit::CharactersASecond;
            figures.rows.push(Row::new("6-7", what, paper, found, unit));
        }
        let paper = if characters > 1000.0 {
            1635.0 / 1757.0
        } else {
            878.0 / 933.0
        };
        figures.ratios.push(Ratio::new(name, by_pup, by_tcp, paper));
    }
    Ok(figures)
}

/// Characters a second by Pup that a display of this speed shows.
fn pup_display(world: &World, time: Duration, display: &Display) -> Result<f64, ProtocolError> {
    with_stream(world, &mut Source::Memory(&LINE), |stream| {
        let mut buffer = [0; 512];
        display.run(time, |limit| {
            match stream.read(&mut buffer[..limit.min(512)])? {
                Read::Data(count) => Ok(count),
                _ => Ok(0),
            }
        })
    })
}
