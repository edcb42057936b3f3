//! `weir experiment`: the papers' experiments, their values beside ours.

mod adapter;
mod all;
mod nettap;
mod packet_filter;
mod plot;
mod protocols;
mod setup;
mod tpca;

use crate::error::CliError;
use clap::Subcommand;
use protocols::Tables;

/// Where a paper has a value that our text of it lacks.
const NOT_IN_OUR_COPY: &str = "not in our copy";

/// Repeat the papers' experiments: their values beside ours
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if something cannot be measured here; 2 if an option is wrong; 130 or 143 after
SIGINT or SIGTERM.")]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand, Debug)]
enum Experiment {
    Adapter(adapter::Args),
    #[command(hide = true)]
    Program(adapter::program::Args),
    All(all::Args),
    /// Measure VMTP on ports beside the kernel's UDP and TCP
    ///
    /// Repeats tables 6-2 to 6-5 of the 1987 paper: a minimal transaction, bulk, what batching gives,
    /// and what a demultiplexing thread costs. As root, in network namespaces that go with the
    /// command, across a link without offloads. Ratios are of one run.
    Vmtp(protocols::Args),
    /// Measure the Pup byte stream on ports beside the kernel's TCP
    ///
    /// Repeats table 6-6 of the 1987 paper, also with TCP's packets as small as Pup's. As root.
    Bsp(protocols::Args),
    /// Measure Telnet by Pup and by TCP, on displays as slow as those of 1987
    ///
    /// Repeats table 6-7 of the 1987 paper. As root.
    Telnet(protocols::Args),
    /// Predict what a demultiplexing process costs, and measure it
    ///
    /// Repeats section 6.5.2 of the 1987 paper: from the costs of a switch and of a transfer. As root.
    Predict(protocols::Args),
    Nettap(nettap::Args),
    PacketFilter(packet_filter::Args),
    Setup(setup::Args),
    Tpca(tpca::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    match &args.experiment {
        Experiment::Adapter(args) => adapter::run(args),
        Experiment::Program(args) => adapter::program::run(args),
        Experiment::All(args) => all::run(args),
        Experiment::Vmtp(args) => protocols::run(args, Tables::Vmtp),
        Experiment::Bsp(args) => protocols::run(args, Tables::Bsp),
        Experiment::Telnet(args) => protocols::run(args, Tables::Telnet),
        Experiment::Predict(args) => protocols::run_prediction(args),
        Experiment::Nettap(args) => nettap::run(args),
        Experiment::PacketFilter(args) => packet_filter::run(args),
        Experiment::Setup(args) => setup::run(args),
        Experiment::Tpca(args) => tpca::run(args),
    }
}
