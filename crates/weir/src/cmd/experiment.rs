//! `weir experiment`: the papers' experiments, their values beside ours.

mod packet_filter;
mod plot;
mod tpca;

use crate::failure::Failure;
use clap::Subcommand;

/// Repeat the papers' experiments: their values beside ours
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand, Debug)]
enum Experiment {
    PacketFilter(packet_filter::Args),
    Tpca(tpca::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.experiment {
        Experiment::PacketFilter(args) => packet_filter::run(args),
        Experiment::Tpca(args) => tpca::run(args),
    }
}
