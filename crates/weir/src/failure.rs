//! How a command fails, and with which exit status.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

/// Why a command ends without full success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input is damaged, or something on the machine failed: status 1.
    Run(anyhow::Error),
    /// The request is refused: a filter that does not compile, a port given
    /// twice, a bad file of ports. Status 2, as for unknown options.
    Refused(anyhow::Error),
    /// A signal asked us to end, after reporting: status 128 and its number.
    Stopped(u8),
    /// Whoever read our output has closed it: quietly, status 0.
    OutputClosed,
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Run(error) | Failure::Refused(error) => write!(f, "{error:#}"),
            Failure::Stopped(signal) => write!(f, "stopped by signal {signal}"),
            Failure::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl Failure {
    /// A refusal with this message.
    pub(crate) fn refused(message: impl Display) -> Failure {
        Failure::Refused(anyhow::anyhow!("{message}"))
    }

    /// A failure at run time with this message.
    pub(crate) fn run(message: impl Display) -> Failure {
        Failure::Run(anyhow::anyhow!("{message}"))
    }

    /// A failure to write to standard output.
    pub(crate) fn output(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::OutputClosed
        } else {
            Failure::run(format!("cannot write to standard output: {error}"))
        }
    }

    /// Says it on standard error and gives the exit status.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::OutputClosed => ExitCode::SUCCESS,
            Failure::Stopped(signal) => ExitCode::from(128 + signal),
            Failure::Run(error) => {
                eprintln!("weir: {error:#}");
                ExitCode::from(1)
            }
            Failure::Refused(error) => {
                eprintln!("weir: {error:#}");
                ExitCode::from(2)
            }
        }
    }
}
