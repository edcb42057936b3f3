//! `weir experiment`: the papers' experiments, their values beside ours.

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
    Tpca(tpca::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.experiment {
        Experiment::Tpca(args) => tpca::run(args),
    }
}
