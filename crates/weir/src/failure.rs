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
                eprintln!("weir: {}", harmless(&format!("{error:#}")));
                ExitCode::from(1)
            }
            Failure::Refused(error) => {
                eprintln!("weir: {}", harmless(&format!("{error:#}")));
                ExitCode::from(2)
            }
        }
    }
}

/// `message` with the control characters escaped that it took from a filter
/// or a file's name: they could drive the terminal.
fn harmless(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cannot_drive_the_terminal() {
        assert_eq!(
            harmless("a\u{1b}[31m\tb\r\nc\u{9b}é"),
            "a\\u{1b}[31m\tb\\r\nc\\u{9b}é"
        );
    }
}
