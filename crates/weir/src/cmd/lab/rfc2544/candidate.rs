//! Who is measured.

use super::Args;
use crate::error::Failure;
use crate::report::format;
use std::time::Duration;
use weir_lab::rfc2544::{Testbed, Dut, Error, Layout, Baseline, Program, Ready, Running};

/// How long a program may take until it says `ready`.
const READY_MAX: Duration = Duration::from_secs(60);

/// One that is measured, with frames to so many destinations.
#[derive(Clone, Debug)]
pub(super) struct Contestant {
    who: Who,
    pub(super) destinations: u32,
    name: String,
}

#[derive(Clone, Debug)]
enum Who {
    Program(Program),
    Peer(Baseline),
}

impl Contestant {
    /// Those that the command line names: commands first, and each with every
    /// number of destinations.
    pub(super) fn all(args: &Args) -> Result<Vec<Contestant>, Failure> {
        let ready = args
            .ready_after
            .map_or(Ready::Said("ready", READY_MAX), Ready::After);
        let program = |layout| {
            move |command: &String| {
                Ok(Who::Program(Program {
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
        let peers = args.peer.iter().map(|&peer| Ok(Who::Peer(peer)));
        let all: Vec<Who> = bridges
            .chain(routers)
            .chain(peers)
            .collect::<Result<_, Failure>>()?;
        if all.is_empty() {
            let names = Baseline::ALL.map(|peer| peer.to_string()).join(", ");
            return Err(Failure::refused(format!(
                "nothing to test: give --dut COMMAND, --router COMMAND or --peer NAME ({names})"
            )));
        }
        let numbers = match &args.destinations[..] {
            [] => &[0],
            numbers => numbers,
        };
        let with = |who: Who| {
            let numbers = numbers.iter();
            numbers.map(move |&destinations| Contestant::new(who.clone(), destinations))
        };
        Ok(all.into_iter().flat_map(with).collect())
    }

    fn new(who: Who, destinations: u32) -> Contestant {
        let name = who.dut().name();
        let name = match destinations {
            0 => name.to_owned(),
            1 => format!("{name}, 1 destination"),
            many => format!("{name}, {} destinations", format::grouped(many.into())),
        };
        Contestant {
            who,
            destinations,
            name,
        }
    }
}

impl Contestant {
    /// The command that is tested, if it is no peer.
    pub(super) fn command(&self) -> Option<&str> {
        match &self.who {
            Who::Program(program) => Some(&program.name),
            Who::Peer(_) => None,
        }
    }

    /// The peer, if it is one.
    pub(super) fn peer(&self) -> Option<Baseline> {
        match &self.who {
            Who::Program(_) => None,
            Who::Peer(peer) => Some(*peer),
        }
    }
}

impl Who {
    fn dut(&self) -> &dyn Dut {
        match self {
            Who::Program(program) => program,
            Who::Peer(peer) => peer,
        }
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
        &self.name
    }

    fn layout(&self) -> Layout {
        self.who.dut().layout()
    }

    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error> {
        self.who.dut().start(bench)
    }
}
