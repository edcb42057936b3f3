//! What a frame costs to be counted for its subscriber in the kernel, by the
//! candidates of decision 014.
//!
//! ```sh
//! sudo cargo bench -p weir-link --bench meter_kernel -- [tables] [stage] [policing]
//! ```
//!
//! A program picks a key at random among N and counts one frame of it in a
//! cell of {packets, bytes}; the cost is net of the same program without the
//! count. The candidates run in turn, in one process.

mod flow_counter;
mod policing;
mod stage;
mod tables;

use weir_filter::backend::ebpf::{Insn, Reg};
use weir_lab::results::{Parts, recorder};
use weir_link::bpf::{Load, Program, ProgramType};

fn main() {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    if let Err(error) = Program::load(&nothing, &Load::new(ProgramType::Xdp)) {
        return eprintln!("not measured: {error}");
    }
    let results = recorder!().seed(tables::SEED);
    let parts = Parts::of_arguments();
    if parts.wants("tables") {
        tables::tables(&results);
    }
    if parts.wants("stage") {
        stage::stage(&results);
    }
    if parts.wants("policing") {
        policing::policing(&results);
    }
}
