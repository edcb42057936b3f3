//! `weir`: the command-line program, with one subcommand for each task (`weir
//! --help`).
//!
//! Subcommands read their arguments in [`cmd`] and build on the crates below:
//! `weir_broker` for live ports (`listen`, `top`, `ports`, `broker`), `weir_demux` and
//! `weir_link::pcap` for captures (`demux`, `filter`), `weir_tap`, `weir_apps` and
//! `weir_chain` for whole links (`bridge`, `route`, `run`, `nat`, `balance`, `shape`),
//! `weir_meter` and `weir_ledger` for usage records (`meter`, `ship`, `mediate`,
//! `usage`), `weir_socket` for hosts of weir's own (`host`, `serve`, `get`, `echo`,
//! `iperf`) and programs that run on them (`exec`), `weir_protocols` for the
//! protocols of 1987 (`vmtp`, `pup`), `weir_lab` for test networks and measurements
//! (`lab`), `weir_experiments` for the papers' experiments (`experiment`).
//!
//! | module | what |
//! |---|---|
//! | [`cmd`] | the subcommands, a file or a folder each |
//! | [`filterset`], [`input`], [`report`] | filters of a command, its inputs, its output |
//! | [`monitor`] | frames into `weir_monitor`'s model |
//! | [`host`], [`http`], [`iperf`] | a host of weir's own, and protocols on it |
//! | [`radius`] | the RADIUS server of `weir meter` |
//! | [`rarp`] | RARP on ports: the protocol of `rarpd` |
//! | [`config`], [`error`] | configuration errors with positions; exit statuses |
//! | [`signals`], [`watchdog`] | orderly end; heartbeats for a service manager |
//!
//! `docs/reference/commands.md` lists every option. A new subcommand is a file
//! in `cmd`, a variant of `Command` below, and a regenerated reference
//! (`tests/reference.rs`).

mod cmd;
mod config;
mod error;
mod filterset;
mod host;
mod http;
mod idle_links;
mod input;
mod iperf;
mod longest;
mod monitor;
mod radius;
mod rarp;
mod report;
mod same_address;
mod signals;
mod stack;
mod store;
mod watchdog;

use clap::{CommandFactory, Parser, Subcommand};
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
    Top(cmd::top::Args),
    Web(cmd::web::Args),
    Route(cmd::route::Args),
    Run(cmd::run::Args),
    Nat(cmd::run::nat::Args),
    Nat64(cmd::run::nat64::Args),
    Balance(cmd::run::balance::Args),
    Ipsec(cmd::run::ipsec::Args),
    Shape(cmd::shape::Args),
    Ports(cmd::ports::Args),
    Extcap(cmd::extcap::Args),
    Broker(cmd::broker::Args),
    Bridge(cmd::bridge::Args),
    Meter(cmd::meter::Args),
    Get(cmd::get::Args),
    Serve(cmd::serve::Args),
    Host(cmd::host::Args),
    Echo(cmd::echo::Args),
    Exec(cmd::exec::Args),
    Sockets(cmd::sockets::Args),
    Iperf(cmd::iperf::Args),
    Ship(cmd::ship::Args),
    Mediate(cmd::mediate::Args),
    Usage(cmd::usage::Args),
    Rarpd(cmd::rarpd::Args),
    Vmtp(cmd::vmtp::Args),
    Pup(cmd::pup::Args),
    Demux(cmd::demux::Args),
    Filter(cmd::filter::Args),
    Demo(cmd::demo::Args),
    Lab(cmd::lab::Args),
    Experiment(cmd::experiment::Args),
    #[command(hide = true)]
    Generate(cmd::generate::Args),
}

fn main() -> ExitCode {
    // Before there are more threads.
    weir_filter::backend::native::register_early();
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
    let arguments = cmd::extcap::arguments(std::env::args_os());
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(usage) => return print_usage(&usage),
    };
    // Otherwise the limit ends the process, as it would have anyway.
    let _ = signals::report_file_size_limit();
    let outcome = match cli.command {
        Command::Route(args) => cmd::route::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::Nat(args) => cmd::run::nat::run(&args),
        Command::Nat64(args) => cmd::run::nat64::run(&args),
        Command::Balance(args) => cmd::run::balance::run(&args),
        Command::Ipsec(args) => cmd::run::ipsec::run(&args),
        Command::Shape(args) => cmd::shape::run(&args),
        Command::Listen(args) => cmd::listen::run(&args),
        Command::Top(args) => cmd::top::run(&args),
        Command::Web(args) => cmd::web::run(&args),
        Command::Ports(args) => cmd::ports::run(&args),
        Command::Extcap(args) => cmd::extcap::run(&args),
        Command::Broker(args) => cmd::broker::run(&args),
        Command::Bridge(args) => cmd::bridge::run(&args),
        Command::Meter(args) => cmd::meter::run(&args),
        Command::Get(args) => cmd::get::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Host(args) => cmd::host::run(&args),
        Command::Echo(args) => cmd::echo::run(&args),
        Command::Exec(args) => cmd::exec::run(&args),
        Command::Sockets(args) => cmd::sockets::run(&args),
        Command::Iperf(args) => cmd::iperf::run(&args),
        Command::Ship(args) => cmd::ship::run(&args),
        Command::Mediate(args) => cmd::mediate::run(&args),
        Command::Usage(args) => cmd::usage::run(&args),
        Command::Rarpd(args) => cmd::rarpd::run(&args),
        Command::Vmtp(args) => cmd::vmtp::run(&args),
        Command::Pup(args) => cmd::pup::run(&args),
        Command::Demux(args) => cmd::demux::run(&args),
        Command::Filter(args) => cmd::filter::run(&args),
        Command::Demo(args) => cmd::demo::run(&args),
        Command::Lab(args) => cmd::lab::run(&args),
        Command::Experiment(args) => cmd::experiment::run(&args),
        Command::Generate(args) => cmd::generate::run(&args, <Cli as CommandFactory>::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
