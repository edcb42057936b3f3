//! Who is measured.

use super::Args;
use crate::failure::Failure;
use std::time::Duration;
use weir_lab::rfc2544::{Bench, Dut, Error, Layout, Peer, Program, Ready, Running};

/// How long a program may take until it says `ready`.
const READY_MAX: Duration = Duration::from_secs(20);

/// One that is measured.
#[derive(Clone, Debug)]
pub(super) enum Contestant {
    Program(Program),
    Peer(Peer),
}

impl Contestant {
    /// Those that the command line names: commands first.
    pub(super) fn all(args: &Args) -> Result<Vec<Contestant>, Failure> {
        let ready = args
            .ready_after
            .map_or(Ready::Said("ready", READY_MAX), Ready::After);
        let program = |layout| {
            move |command: &String| {
                Ok(Contestant::Program(Program {
                    name: command.clone(),
                    words: words(command)?,
                    layout,
                    ready,
                    open_input: false,
                }))
            }
        };
        let bridges = args.dut.iter().map(program(Layout::Bridge));
        let routers = args.router.iter().map(program(Layout::Router));
        let peers = args.peer.iter().map(|&peer| Ok(Contestant::Peer(peer)));
        let all: Vec<Contestant> = bridges
            .chain(routers)
            .chain(peers)
            .collect::<Result<_, Failure>>()?;
        if all.is_empty() {
            let names = Peer::ALL.map(|peer| peer.to_string()).join(", ");
            return Err(Failure::refused(format!(
                "nothing to test: give --dut COMMAND, --router COMMAND or --peer NAME ({names})"
            )));
        }
        Ok(all)
    }
}

/// The words of a command, as a shell has them; `weir` is the program that
/// runs.
fn words(command: &str) -> Result<Vec<String>, Failure> {
    let words = shlex::split(command);
    let mut words =
        words.ok_or_else(|| Failure::refused(format!("`{command}` has quotes without an end")))?;
    match words.first_mut() {
        None => Err(Failure::refused(
            "the command of --dut or --router is empty",
        )),
        Some(first) => {
            if first == "weir" {
                let this = std::env::current_exe().map_err(Failure::run)?;
                *first = this.to_string_lossy().into_owned();
            }
            Ok(words)
        }
    }
}

impl Dut for Contestant {
    fn name(&self) -> &str {
        match self {
            Contestant::Program(program) => program.name(),
            Contestant::Peer(peer) => peer.name(),
        }
    }

    fn layout(&self) -> Layout {
        match self {
            Contestant::Program(program) => program.layout(),
            Contestant::Peer(peer) => peer.layout(),
        }
    }

    fn start(&self, bench: &Bench) -> Result<Box<dyn Running>, Error> {
        match self {
            Contestant::Program(program) => program.start(bench),
            Contestant::Peer(peer) => peer.start(bench),
        }
    }
}
