//! `weir lab`: test networks of namespaces.

mod demo;
mod meter_demo;
mod results;
pub(crate) mod rfc2544;

use crate::error::CliError;
use clap::Subcommand;

/// Create small networks of network namespaces on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if a network cannot be made, as without root, or something else failed; 2 if an
option is wrong; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.")]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Subcommand, Debug)]
enum Which {
    Demo(demo::Args),
    MeterDemo(meter_demo::Args),
    Rfc2544(Box<rfc2544::Args>),
    Results(results::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    match &args.which {
        Which::Demo(args) => demo::run(args),
        Which::MeterDemo(args) => meter_demo::run(args),
        Which::Rfc2544(args) => rfc2544::run(args),
        Which::Results(args) => results::run(args),
    }
}
