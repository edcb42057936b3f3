//! The plan in the kernel: what a frame costs, how many are delivered without
//! loss beside packet sockets and `AF_XDP`, and what changes cost.
//!
//! ```sh
//! sudo cargo bench -p weir-link --bench plan_kernel -- [runs] [few] [fanout] [acl] [mixed] [changes] [sockets] [evenly] [costs] [parts] [lossless] [arriving] [host] [60] [1514] [ordinary]
//! ```
//!
//! All parts without a name; `costs`, `lossless` and `arriving` with frames of
//! both sizes without a number. Everything that is compared runs in turn, in one
//! process; the live parts take real-time priority, but for `ordinary`.

mod acl;
mod bed;
mod changes;
mod evenly;
mod fanout;
mod host;
mod live;
mod packet;
mod parts;
mod receivers;
mod runs;
mod sockets;
mod table;
mod xsk;

use live::Arrival;
use weir_filter::backend::ebpf::{Insn, Reg};
use weir_lab::results::recorder;
use weir_link::bpf::{Load, Program, ProgramType};

/// Bytes of the frames of `costs` and `lossless`.
const SIZES: [&str; 2] = ["60", "1514"];

fn main() {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    if let Err(error) = Program::load(&nothing, &Load::new(ProgramType::Xdp)) {
        return eprintln!("not measured: {error}");
    }
    let results = recorder!();
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let (sizes, mut parts): (Vec<_>, Vec<_>) = named
        .into_iter()
        .partition(|name| SIZES.contains(&name.as_str()));
    if parts.iter().any(|name| name == "ordinary") {
        receivers::be_ordinary();
        parts.retain(|name| name != "ordinary");
    }
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|name| name == part);
    let sizes = if sizes.is_empty() {
        SIZES.map(str::to_owned).to_vec()
    } else {
        sizes
    };
    let sizes: Vec<usize> = sizes.iter().filter_map(|size| size.parse().ok()).collect();
    if wanted("runs") {
        runs::one_shape(1_000_000, &results);
    }
    if wanted("few") {
        for ports in [1, 4] {
            runs::few_ports(ports, &results);
        }
    }
    if wanted("fanout") {
        fanout::fanout(&results);
    }
    if wanted("acl") {
        acl::acl(&results);
    }
    if wanted("mixed") {
        runs::mixed(&results);
    }
    if wanted("changes") {
        changes::changes(&results);
    }
    type Live<'a> = &'a dyn Fn() -> Result<(), Box<dyn std::error::Error>>;
    let live: [(&str, Live<'_>); 7] = [
        ("sockets", &|| sockets::sockets(&results)),
        ("evenly", &|| {
            evenly::evenly(Arrival::Veth, &results)?;
            evenly::evenly(Arrival::Arriving, &results)
        }),
        ("costs", &|| {
            live::costs(Arrival::Veth, &sizes, &results)?;
            live::costs(Arrival::Arriving, &sizes, &results)
        }),
        ("parts", &|| parts::parts(Arrival::Arriving)),
        ("lossless", &|| live::rates(Arrival::Veth, &sizes, &results)),
        ("arriving", &|| {
            live::rates(Arrival::Arriving, &sizes, &results)
        }),
        ("host", &|| host::throughput(&results)),
    ];
    for (name, run) in live.into_iter().filter(|(name, _)| wanted(name)) {
        if let Err(error) = run() {
            println!("{name} was not measured: {error}");
        }
    }
}
