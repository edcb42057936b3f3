//! The plan in the kernel: what a frame costs, how many are delivered without
//! loss beside packet sockets and `AF_XDP`, and what changes cost.
//!
//! ```sh
//! sudo cargo bench -p weir-link --bench plan_kernel -- [runs] [few] [mixed] [changes] [sockets] [costs] [lossless] [apart] [host]
//! ```
//!
//! All parts without a name. Everything that is compared runs in turn, in one
//! process; the live parts take real-time priority.

mod bed;
mod changes;
mod host;
mod live;
mod packet;
mod receivers;
mod runs;
mod sockets;
mod table;
mod xsk;

use weir_filter::backend::ebpf::{Insn, Reg};
use weir_link::bpf::{Load, Program, ProgramType};

fn main() {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    if let Err(error) = Program::load(&nothing, &Load::new(ProgramType::Xdp)) {
        return eprintln!("not measured: {error}");
    }
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    if wanted("runs") {
        runs::one_shape(100_000);
    }
    if wanted("few") {
        runs::few_ports();
    }
    if wanted("mixed") {
        runs::mixed();
    }
    if wanted("changes") {
        changes::changes();
    }
    type Live = fn() -> Result<(), Box<dyn std::error::Error>>;
    let live: [(&str, Live); 5] = [
        ("sockets", sockets::sockets),
        ("costs", live::costs),
        ("lossless", live::rates),
        ("apart", live::apart),
        ("host", host::throughput),
    ];
    for (name, run) in live.into_iter().filter(|(name, _)| wanted(name)) {
        if let Err(error) = run() {
            println!("{name} was not measured: {error}");
        }
    }
}
