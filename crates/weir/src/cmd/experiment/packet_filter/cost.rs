//! The cost of a frame in the kernel, by the number of filters tested.

use super::bench_demux::BenchDemux;
use crate::error::CliError;
use crate::filterset::compile::Compiler;
use weir_demux::Filter;
use weir_filter::ir::Program;
use weir_filter::lang::Language;
use weir_link::bpf::TestRun;
use weir_wire::LinkType;

/// Frames of one run; as many as fit into the port's queue.
const FRAMES: u32 = 1000;

/// Runs; the quickest counts.
const RUNS: u32 = 30;

/// Filters that differ in one thing, and how the kernel finds the one that
/// accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `udp dst port N`: one look-up, however many.
    SingleSubtable,
    /// `udp dst portrange N-M`: alike but for a range, which is tested one
    /// after the other.
    Ranges,
    /// Programs that nothing is known of: run one after the other.
    Whole,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::SingleSubtable, Kind::Ranges, Kind::Whole];

    pub(super) fn name(self) -> &'static str {
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
    fn filter(self, compiler: &Compiler, dst_port: u16) -> Result<Filter, CliError> {
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
                let program: Program = text.parse().map_err(CliError::run)?;
                return Ok(Filter::new(program));
            }
        };
        let compiled = compiler
            .compile(Language::Expr, text.as_bytes(), LinkType::EN10MB)
            .map_err(CliError::run)?;
        Ok(Filter::new(compiled.program))
    }
}

/// Numbers of filters tested, the last of which accepts the frame, and the
/// nanoseconds that the kernel spends on it, its delivery included.
pub(super) fn points(kind: Kind, frame: &[u8]) -> Result<Vec<(u32, f64)>, CliError> {
    let compiler = Compiler::default();
    let dst_port = u16::from_be_bytes([frame[36], frame[37]]);
    let count = kind.filters_max();
    // Two apart, so that no range accepts a frame meant for the next.
    let mut filters = (1..count)
        .map(|index| kind.filter(&compiler, dst_port + 2 * index))
        .collect::<Result<Vec<_>, _>>()?;
    filters.push(kind.filter(&compiler, dst_port)?);
    let mut points = Vec::new();
    let mut tested = 1;
    while tested <= filters.len() {
        let last = &filters[filters.len() - tested..];
        let mut divider = BenchDemux::new(last)?;
        points.push((tested as u32, program(&mut divider, frame)?));
        tested *= 4;
    }
    Ok(points)
}

/// Nanoseconds that the kernel spends on a frame that is delivered.
pub(super) fn program(divider: &mut BenchDemux, frame: &[u8]) -> Result<f64, CliError> {
    let run = TestRun {
        repeat: FRAMES,
        ..TestRun::new(frame)
    };
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let ran = divider.program.test_run(&run, &mut []);
        best = best.min(ran.map_err(CliError::run)?.duration.as_nanos() as f64);
        let mut delivered = 0;
        loop {
            let records = divider.reader.peek().map_err(CliError::run)?;
            if records.is_empty() {
                break;
            }
            delivered += records.len();
        }
        if delivered != FRAMES as usize {
            let message = format!("{delivered} of {FRAMES} frames were delivered");
            return Err(CliError::run(message));
        }
    }
    Ok(best)
}
