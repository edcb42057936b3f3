//! `weir experiment`: the papers' experiments, their values beside ours.

mod adapter;
mod nettap;
mod packet_filter;
mod plot;
mod setup;
mod tpca;

use crate::error::CliError;
use clap::Subcommand;

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
    Nettap(nettap::Args),
    PacketFilter(packet_filter::Args),
    Setup(setup::Args),
    Tpca(tpca::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    match &args.experiment {
        Experiment::Adapter(args) => adapter::run(args),
        Experiment::Nettap(args) => nettap::run(args),
        Experiment::PacketFilter(args) => packet_filter::run(args),
        Experiment::Setup(args) => setup::run(args),
        Experiment::Tpca(args) => tpca::run(args),
    }
}
