//! `weir`: the command-line program, with one subcommand for each task (`weir
//! --help`).
//!
//! Subcommands read their arguments in [`cmd`] and build on the crates below:
//! `weir_broker` for live ports (`listen`, `ports`, `broker`), `weir_demux` and
//! `weir_link::pcap` for captures (`demux`, `filter`), `weir_tap` and
//! `weir_apps` for whole links (`bridge`, `route`), `weir_socket` for hosts of
//! weir's own (`host`, `serve`, `get`, `echo`, `iperf`) and programs that run on
//! it (`exec`), `weir_lab` for test
//! networks and measurements (`lab`).
//!
//! | module | what |
//! |---|---|
//! | [`cmd`] | the subcommands, one file each |
//! | [`filterset`], [`input`], [`report`] | filters of a command, its inputs, its output |
//! | [`host`], [`http`], [`iperf`] | a host of weir's own, and protocols on it |
//! | [`config`], [`error`] | configuration errors with positions; exit statuses |
//! | [`signals`], [`watchdog`] | orderly end; heartbeats for a service manager |
//!
//! `docs/reference/commands.md` lists every option. A new subcommand is a file
//! in `cmd`, a variant of `cmd::Command`, and a regenerated reference
//! (`tests/reference.rs`).

mod cmd;
mod config;
mod error;
mod filterset;
mod host;
mod http;
mod input;
mod iperf;
mod longest;
mod radius;
mod rarp;
mod report;
mod signals;
mod stack;
mod store;
mod watchdog;

use clap::{Parser, Subcommand};
use error::CliError;
use std::io::{self, Write};
use std::process::ExitCode;

/// Divides a network link among programs, by filters.
#[derive(Parser, Debug)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Listen(cmd::listen::Args),
    Route(cmd::route::Args),
    Ports(cmd::ports::Args),
    Broker(cmd::broker::Args),
    Bridge(cmd::bridge::Args),
    Meter(cmd::meter::Args),
    Get(cmd::get::Args),
    Serve(cmd::serve::Args),
    Host(cmd::host::Args),
    Echo(cmd::echo::Args),
    Exec(cmd::exec::Args),
    Iperf(cmd::iperf::Args),
    Mediate(cmd::mediate::Args),
    Usage(cmd::usage::Args),
    Rarpd(cmd::rarpd::Args),
    Demux(cmd::demux::Args),
    Filter(cmd::filter::Args),
    Demo(cmd::demo::Args),
    Lab(cmd::lab::Args),
    Experiment(cmd::experiment::Args),
}

fn main() -> ExitCode {
    stack::with_enough(run)
}

/// Prints the help, the version, or an error in the arguments.
fn print_usage(usage: &clap::Error) -> ExitCode {
    let printed = usage.print().and_then(|()| io::stdout().flush());
    match printed {
        Err(failure) if !usage.use_stderr() => CliError::output(failure).report(),
        _ => ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2)),
    }
}

fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return print_usage(&usage),
    };
    // Otherwise the limit ends the process, as it would have anyway.
    let _ = signals::report_file_size_limit();
    let outcome = match cli.command {
        Command::Route(args) => cmd::route::run(&args),
        Command::Listen(args) => cmd::listen::run(&args),
        Command::Ports(args) => cmd::ports::run(&args),
        Command::Broker(args) => cmd::broker::run(&args),
        Command::Bridge(args) => cmd::bridge::run(&args),
        Command::Meter(args) => cmd::meter::run(&args),
        Command::Get(args) => cmd::get::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Host(args) => cmd::host::run(&args),
        Command::Echo(args) => cmd::echo::run(&args),
        Command::Exec(args) => cmd::exec::run(&args),
        Command::Iperf(args) => cmd::iperf::run(&args),
        Command::Mediate(args) => cmd::mediate::run(&args),
        Command::Usage(args) => cmd::usage::run(&args),
        Command::Rarpd(args) => cmd::rarpd::run(&args),
        Command::Demux(args) => cmd::demux::run(&args),
        Command::Filter(args) => cmd::filter::run(&args),
        Command::Demo(args) => cmd::demo::run(&args),
        Command::Lab(args) => cmd::lab::run(&args),
        Command::Experiment(args) => cmd::experiment::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
