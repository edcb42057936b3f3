//! The candidates of a measurement: tested commands and baselines.

use super::Args;
use crate::error::CliError;
use crate::report::format;
use std::time::Duration;
use weir_lab::rfc2544::{Baseline, Dut, Error, Layout, Program, Ready, Running, Testbed};

/// Time limit for a program to print `ready`.
const READY_MAX: Duration = Duration::from_secs(60);

/// A candidate, with its number of destinations.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    kind: CandidateKind,
    pub(super) destinations: u32,
    name: String,
}

#[derive(Clone, Debug)]
enum CandidateKind {
    Program(Program),
    Peer(Baseline),
}

impl Candidate {
    /// The candidates of the command line: commands first, each with every
    /// number of destinations.
    pub(super) fn all(args: &Args) -> Result<Vec<Candidate>, CliError> {
        let ready = args
            .ready_after
            .map_or(Ready::Said("ready", READY_MAX), Ready::After);
        let program = |layout| {
            move |command: &String| {
                Ok(CandidateKind::Program(Program {
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
        let peers = args.peer.iter().map(|&peer| Ok(CandidateKind::Peer(peer)));
        let all: Vec<CandidateKind> = bridges
            .chain(routers)
            .chain(peers)
            .collect::<Result<_, CliError>>()?;
        if all.is_empty() {
            let names = Baseline::ALL.map(|peer| peer.to_string()).join(", ");
            return Err(CliError::refused(format!(
                "nothing to test: give --dut COMMAND, --router COMMAND or --peer NAME ({names})"
            )));
        }
        let numbers = match &args.destinations[..] {
            [] => &[0],
            numbers => numbers,
        };
        let with = |who: CandidateKind| {
            let numbers = numbers.iter();
            numbers.map(move |&destinations| Candidate::new(who.clone(), destinations))
        };
        Ok(all.into_iter().flat_map(with).collect())
    }

    fn new(who: CandidateKind, destinations: u32) -> Candidate {
        let name = who.dut().name();
        let name = match destinations {
            0 => name.to_owned(),
            1 => format!("{name}, 1 destination"),
            many => format!("{name}, {} destinations", format::grouped(many.into())),
        };
        Candidate {
            kind: who,
            destinations,
            name,
        }
    }
}

impl Candidate {
    /// The tested command; `None` for a baseline.
    pub(super) fn command(&self) -> Option<&str> {
        match &self.kind {
            CandidateKind::Program(program) => Some(&program.name),
            CandidateKind::Peer(_) => None,
        }
    }

    /// The baseline; `None` for a command.
    pub(super) fn peer(&self) -> Option<Baseline> {
        match &self.kind {
            CandidateKind::Program(_) => None,
            CandidateKind::Peer(peer) => Some(*peer),
        }
    }
}

impl CandidateKind {
    fn dut(&self) -> &dyn Dut {
        match self {
            CandidateKind::Program(program) => program,
            CandidateKind::Peer(peer) => peer,
        }
    }
}

/// A command split into words as by a shell; `weir` is replaced by this
/// program.
fn words(command: &str) -> Result<Vec<String>, CliError> {
    let words = shlex::split(command);
    let mut words =
        words.ok_or_else(|| CliError::refused(format!("`{command}` has quotes without an end")))?;
    match words.first_mut() {
        None => Err(CliError::refused(
            "the command of --dut or --router is empty",
        )),
        Some(first) => {
            if first == "weir" {
                let this = std::env::current_exe().map_err(CliError::run)?;
                *first = this.to_string_lossy().into_owned();
            }
            Ok(words)
        }
    }
}

impl Dut for Candidate {
    fn name(&self) -> &str {
        &self.name
    }

    fn layout(&self) -> Layout {
        self.kind.dut().layout()
    }

    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error> {
        self.kind.dut().start(bench)
    }
}
