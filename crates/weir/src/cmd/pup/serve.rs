//! `weir pup serve`: FTP, Telnet, echo, time, names of one host.

use super::link::{LinkArgs, failure};
use super::session::{Ftp, Progress, Terminal};
use crate::error::{CliError, say};
use crate::http::files::Folder;
use crate::same_address;
use crate::signals::ShutdownSignal;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use weir_pup::Host;
use weir_pup::bsp::Connection;
use weir_pup::datagram::{Address, socket};

/// Serve a folder by FTP and Telnet, and echo, time and names
///
/// Prints `ready` on standard error and serves until SIGINT, SIGTERM or SIGHUP. Nothing outside of
/// the folder is served, and no hidden file. Pup has no security: with --writable, any host on the
/// link can store files.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    #[command(flatten)]
    link: LinkArgs,

    /// Let clients store files, each up to 1 GiB; an older file of the name is replaced
    #[arg(long)]
    writable: bool,

    /// A name that look-ups are answered with; can be repeated
    #[arg(long = "name", value_name = "NAME=NET#HOST#", value_parser = name)]
    names: Vec<(String, Address)>,
}

fn name(text: &str) -> Result<(String, Address), String> {
    let wrong = || format!("`{text}` is not a name and an address: write one such as ada=1#10#");
    let (name, address) = text.split_once('=').ok_or_else(wrong)?;
    let address = address.parse().map_err(|_| wrong())?;
    let fits = (1..=weir_pup::services::NAME_LEN_MAX).contains(&name.len());
    fits.then(|| (name.to_owned(), address)).ok_or_else(wrong)
}

/// How long a turn waits at most: so often signals are looked for.
const TURN: Duration = Duration::from_millis(100);

/// The application of a connection.
enum Session {
    Ftp(Box<Ftp>),
    Terminal(Terminal),
}

impl Session {
    fn go_on(&mut self, connection: &mut Connection, folder: &Folder) -> Progress {
        match self {
            Session::Ftp(ftp) => ftp.go_on(connection, folder),
            Session::Terminal(terminal) => terminal.go_on(connection, folder),
        }
    }
}

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    if !args.link.has_own() {
        return Err(CliError::refused(
            "a server needs an address that clients know: give one, as in --own 1#2#",
        ));
    }
    let folder = Folder::open(&args.folder).map_err(|error| {
        CliError::run(format!("cannot serve {}: {error}", args.folder.display()))
    })?;
    let mut node = args.link.server()?;
    for (name, Address(port)) in &args.names {
        if !node.host.add_name(name, *port) {
            return Err(CliError::refused(format!(
                "too many names: `{name}` has no room"
            )));
        }
    }
    node.host.listen(socket::FTP);
    node.host.listen(socket::TELNET);
    let own = Address(node.host.port(0)).to_string();
    let _claim = same_address::claim("pup", &own, &args.link.name());
    say(&format!("weir: pup server {}", Address(node.host.port(0))));
    say("ready");
    let mut sessions: BTreeMap<u32, Session> = BTreeMap::new();
    let mut has_more = false;
    while !stop.is_requested() {
        let turn = if has_more { Duration::ZERO } else { TURN };
        node.turn(turn).map_err(failure)?;
        has_more = serve(&mut node.host, &mut sessions, &folder, args.writable);
    }
    for number in sessions.keys() {
        node.host.release(*number);
    }
    node.turn(Duration::ZERO).map_err(failure)
}

/// Lets every session go on; returns whether one has more to do.
fn serve(
    host: &mut Host,
    sessions: &mut BTreeMap<u32, Session>,
    folder: &Folder,
    writable: bool,
) -> bool {
    let mut has_more = false;
    while let Some(accepted) = host.poll_accepted() {
        let session = match accepted.socket {
            socket::TELNET => Session::Terminal(Terminal::new()),
            _ => Session::Ftp(Box::new(Ftp::new(writable))),
        };
        sessions.insert(accepted.connection, session);
    }
    sessions.retain(|number, session| {
        let connection = host.connection(*number);
        let progress = connection.map_or(Progress::Over, |one| session.go_on(one, folder));
        has_more |= progress == Progress::HasMore;
        let goes_on = progress != Progress::Over;
        if !goes_on {
            // A connection that was ended in order stays to dally.
            let closing = host.connection(*number).is_some_and(|one| one.is_closing());
            if !closing {
                host.release(*number);
            }
        }
        goes_on
    });
    let held = |number| sessions.contains_key(&number);
    host.forget_finished(held);
    has_more
}
