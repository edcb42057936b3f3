//! The cost of a frame in the kernel, by the number of filters tested.

use super::bench_demux::BenchDemux;
use super::{MeasureError, filters};
use weir_demux::Filter;
use weir_link::bpf::TestRun;

/// Frames of one run; as many as fit into the port's queue.
const FRAMES: u32 = 1000;

/// Runs; the quickest counts.
const RUNS: u32 = 30;

/// Filters that differ in one thing, and how the kernel finds the one that
/// accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `udp dst port N`: one look-up, however many.
    SingleSubtable,
    /// `udp dst portrange N-M`: alike but for a range, which is tested one
    /// after the other.
    Ranges,
    /// Programs that nothing is known of: run one after the other.
    Whole,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::SingleSubtable, Kind::Ranges, Kind::Whole];

    /// As figures name it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::SingleSubtable => "udp dst port N",
            Kind::Ranges => "udp dst portrange N-M",
            Kind::Whole => "opaque programs",
        }
    }

    /// The most filters that are tried.
    fn filters_max(self) -> u16 {
        match self {
            Kind::SingleSubtable | Kind::Ranges => 1024,
            // A plan holds 256 of them.
            Kind::Whole => 64,
        }
    }

    /// A filter that accepts datagrams to this port.
    fn filter(self, dst_port: u16) -> Result<Filter, MeasureError> {
        let text = match self {
            Kind::SingleSubtable => format!("udp dst port {dst_port}"),
            Kind::Ranges => format!("udp dst portrange {dst_port}-{}", dst_port + 1),
            Kind::Whole => {
                // How much of the frame is wanted depends on the frame: of
                // that the plan makes no table.
                let text = format!(
                    "filter {{\nb0:\n  v0 = load.2 [36]\n  br eq v0, {dst_port}, b1, b2\n\
                     b1:\n  v1 = len\n  ret v1\nb2:\n  ret 0\n}}"
                );
                return filters::program(&text);
            }
        };
        filters::expression(&text)
    }
}

/// Numbers of filters tested, the last of which accepts the frame, and the
/// nanoseconds that the kernel spends on it, its delivery included.
pub(super) fn points(kind: Kind, frame: &[u8]) -> Result<Vec<(u32, f64)>, MeasureError> {
    let dst_port = u16::from_be_bytes([frame[36], frame[37]]);
    let count = kind.filters_max();
    // Two apart, so that no range accepts a frame meant for the next.
    let mut filters = (1..count)
        .map(|index| kind.filter(dst_port + 2 * index))
        .collect::<Result<Vec<_>, _>>()?;
    filters.push(kind.filter(dst_port)?);
    let mut points = Vec::new();
    let mut tested = 1;
    while tested <= filters.len() {
        let last = &filters[filters.len() - tested..];
        let mut demux = BenchDemux::new(last)?;
        points.push((tested as u32, program(&mut demux, frame)?));
        tested *= 4;
    }
    Ok(points)
}

/// Nanoseconds that the kernel spends on a frame that is delivered.
pub(super) fn program(demux: &mut BenchDemux, frame: &[u8]) -> Result<f64, MeasureError> {
    let run = TestRun {
        repeat: FRAMES,
        ..TestRun::new(frame)
    };
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let ran = demux.program.test_run(&run, &mut []);
        best = best.min(ran?.duration.as_nanos() as f64);
        let mut delivered = 0;
        loop {
            let records = demux.reader.peek()?;
            if records.is_empty() {
                break;
            }
            delivered += records.len();
        }
        if delivered != FRAMES as usize {
            return Err(MeasureError::Undelivered {
                delivered,
                sent: FRAMES,
            });
        }
    }
    Ok(best)
}
