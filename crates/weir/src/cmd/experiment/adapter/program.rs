//! `weir experiment program`: the program that `weir experiment adapter` runs under `weir exec`.

use crate::error::{CliError, say};
use crate::report::stdout;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;
use weir_experiments::adapter::program::{Settings, measure, serve};

/// Measure ordinary sockets: the program of `weir experiment adapter`
///
/// Without --to a server of one client; with it a client, which prints a line of JSON.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The server's transport port
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// The server to measure
    #[arg(long, value_name = "ADDR:PORT")]
    to: Option<SocketAddr>,

    /// Round trips of one byte
    #[arg(long, value_name = "N", default_value_t = 2000,
          value_parser = clap::value_parser!(u32).range(10..=10_000_000),
          allow_negative_numbers = true)]
    trips: u32,

    /// Milliseconds in which messages of one size are sent
    #[arg(long, value_name = "MS", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=1000), allow_negative_numbers = true)]
    time_ms: u64,
}

/// The server's transport port, by default.
pub(super) const PORT: u16 = 7000;

/// Longest run: the process then ends with status 1, whatever it waits for.
const LIFE_MAX: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    thread::spawn(|| {
        thread::sleep(LIFE_MAX);
        say(&format!(
            "weir: the program has not ended within {LIFE_MAX:?}"
        ));
        std::process::exit(1);
    });
    let Some(server) = args.to else {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.port));
        return serve(any).map_err(CliError::run);
    };
    let settings = Settings {
        server,
        trips: args.trips,
        time: Duration::from_millis(args.time_ms),
    };
    let found = measure(&settings).map_err(|error| CliError::run(format!("{server}: {error}")))?;
    stdout::report(true, &found, String::new)
}
