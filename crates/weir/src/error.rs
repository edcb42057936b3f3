//! Errors of commands, and their exit statuses.

use rustix::io::Errno;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::process::ExitCode;

/// Why a command ends without complete success.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The input is damaged, or an operation failed: status 1.
    Run(anyhow::Error),
    /// The request is invalid: a filter that does not compile, a port given
    /// twice, an invalid file of ports. Status 2, as for unknown options.
    Refused(anyhow::Error),
    /// A signal ended the command after its report: status 128 plus the
    /// signal's number.
    Stopped(u8),
    /// As [`CliError::Stopped`], with another error.
    StoppedAmid(u8, anyhow::Error),
    /// The reader of standard output has closed it: no message, status 0.
    OutputClosed,
}

impl Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Run(error) | CliError::Refused(error) => write!(f, "{error:#}"),
            CliError::StoppedAmid(signal, error) => {
                write!(f, "{error:#}{NEXT}{}", stopped(*signal))
            }
            CliError::Stopped(signal) => f.write_str(&stopped(*signal)),
            CliError::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl CliError {
    /// A refusal with this message.
    pub(crate) fn refused(message: impl Display) -> CliError {
        CliError::Refused(anyhow::anyhow!("{message}"))
    }

    /// The error, of what a file says.
    pub(crate) fn of_file(self, path: &std::path::Path) -> CliError {
        let file = crate::config::name(path);
        match self {
            CliError::Run(error) => CliError::Run(error.context(file)),
            CliError::Refused(error) => CliError::Refused(error.context(file)),
            other => other,
        }
    }

    /// A failure at run time with this message.
    pub(crate) fn run(message: impl Display) -> CliError {
        CliError::Run(anyhow::anyhow!("{message}"))
    }

    /// Several errors as one: a refusal if one of them is. `Ok` if there is none.
    pub(crate) fn all(errors: Vec<CliError>) -> Result<(), CliError> {
        let is_refusal = errors.iter().any(|one| matches!(one, CliError::Refused(_)));
        let texts: Vec<String> = errors.iter().map(CliError::to_string).collect();
        match (texts.is_empty(), is_refusal) {
            (true, _) => Ok(()),
            (false, true) => Err(CliError::refused(texts.join(NEXT))),
            (false, false) => Err(CliError::run(texts.join(NEXT))),
        }
    }

    /// A failure to write to standard output.
    pub(crate) fn output(error: io::Error) -> CliError {
        if error.kind() == io::ErrorKind::BrokenPipe {
            CliError::OutputClosed
        } else {
            CliError::run(format!("cannot write to standard output: {error}"))
        }
    }

    /// Prints the error on standard error; returns the exit status.
    pub(crate) fn report(self) -> ExitCode {
        let status = match self {
            CliError::OutputClosed => return ExitCode::SUCCESS,
            CliError::Stopped(signal) | CliError::StoppedAmid(signal, _) => 128 + signal,
            CliError::Run(_) => 1,
            CliError::Refused(_) => 2,
        };
        say(&format!("weir: {}", harmless(&self.to_string())));
        ExitCode::from(status)
    }
}

/// A system error, with advice if a limit of the process was reached.
pub(crate) fn limited(error: &io::Error) -> String {
    let remedy = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => ": raise the limit of open files (ulimit -n)",
        // These calls return it if no thread can be started.
        Some(Errno::AGAIN) => ": raise the limits of processes and of memory (ulimit -u, -v)",
        _ => "",
    };
    format!("{error}{remedy}")
}

/// Separator of two messages of one failure.
const NEXT: &str = "\nweir: ";

/// Why a report does not cover the whole input.
#[derive(Default)]
pub(crate) struct Incomplete {
    /// The errors, one message each.
    pub(crate) troubles: Vec<String>,
    /// The signal that ended the work.
    pub(crate) signal: Option<u8>,
}

impl Incomplete {
    /// The field `error` of a JSON report; `None` if nothing is missing.
    pub(crate) fn error(&self) -> Option<String> {
        let troubles = self.troubles.iter().cloned();
        let messages: Vec<String> = troubles.chain(self.signal.map(stopped)).collect();
        (!messages.is_empty()).then(|| messages.join("\n"))
    }

    /// The result of the command. A signal determines the exit status in spite
    /// of other errors: its sender checks whether it was obeyed.
    pub(crate) fn outcome(self) -> Result<(), CliError> {
        let said = anyhow::anyhow!(self.troubles.join(NEXT));
        match (self.signal, self.troubles.as_slice()) {
            (None, []) => Ok(()),
            (None, _) => Err(CliError::Run(said)),
            (Some(signal), []) => Err(CliError::Stopped(signal)),
            (Some(signal), _) => Err(CliError::StoppedAmid(signal, said)),
        }
    }
}

/// Prints a line on standard error; a failure is ignored.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The message when a signal ended the work.
pub(crate) fn stopped(signal: u8) -> String {
    format!("stopped by {}", signal_name(signal))
}

/// `message` with control characters escaped, which it may contain from a
/// filter or a file name: they could control the terminal or reverse the text.
pub(crate) fn harmless(message: &str) -> String {
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') || turns(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// As [`harmless`], and of one line: text of the network must not look like lines of weir's own.
pub(crate) fn harmless_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// A signal's name in messages.
fn signal_name(signal: u8) -> String {
    signal_hook::low_level::signal_name(signal.into())
        .map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_gives_the_status_and_problems_are_printed() {
        let gaps = |troubles: &[&str], signal| Incomplete {
            troubles: troubles.iter().map(|why| (*why).to_owned()).collect(),
            signal,
        };
        assert!(gaps(&[], None).error().is_none() && gaps(&[], None).outcome().is_ok());
        let both = || gaps(&["a is full", "b is full"], Some(15));
        assert_eq!(
            both().error().unwrap(),
            "a is full\nb is full\nstopped by SIGTERM"
        );
        let failure = both().outcome().unwrap_err();
        assert!(matches!(failure, CliError::StoppedAmid(15, _)));
        assert_eq!(
            failure.to_string(),
            "a is full\nweir: b is full\nweir: stopped by SIGTERM"
        );
        assert_eq!(failure.report(), ExitCode::from(143));
        let failure = gaps(&["a is full"], None).outcome().unwrap_err();
        assert!(matches!(failure, CliError::Run(_)));
        assert_eq!(gaps(&[], Some(2)).error().unwrap(), "stopped by SIGINT");
    }

    #[test]
    fn messages_cannot_drive_the_terminal() {
        assert_eq!(
            harmless("a\u{1b}[31m\tb\r\nc\u{9b}é\u{202e}"),
            "a\\u{1b}[31m\tb\\r\nc\\u{9b}é\\u{202e}"
        );
    }
}
