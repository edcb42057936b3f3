//! `weir vmtp read`: a file of a server.

use super::{LinkArgs, call_failure};
use crate::error::CliError;
use crate::http::output::Output;
use crate::signals::ShutdownSignal;
use std::path::PathBuf;
use weir_protocols::vmtp::CallError;
use weir_vmtp::file::{self, NAME_LEN_MAX, Part, Read};
use weir_vmtp::packet::code;
use weir_vmtp::segment::SEGMENT_LEN_MAX;
use weir_vmtp::{Entity, Failure};

/// Read a file of a server
///
/// Without --server, the first server of the link that answers for the file.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The file's path in the server's folder
    #[arg(value_name = "FILE")]
    file: String,

    #[command(flatten)]
    link: LinkArgs,

    /// The server
    #[arg(long, value_name = "NUMBER@ADDRESS")]
    server: Option<Entity>,

    /// Write the file there instead of to standard output (-); it appears when it is whole
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let name = args.file.trim_start_matches('/');
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(CliError::refused(format!(
            "a file's name has 1 to {NAME_LEN_MAX} bytes: `{}` has {}",
            name.chars().take(40).collect::<String>(),
            name.len()
        )));
    }
    let mut client = args.link.client()?;
    let mut output = None;
    let mut server = args.server.unwrap_or(file::GROUP);
    let mut first: Option<(u64, u32)> = None;
    let mut offset = 0;
    loop {
        let read = Read {
            name: name.to_owned(),
            offset,
            len: SEGMENT_LEN_MAX as u32,
        };
        let response = client.call(read.request(server), || stop.is_requested());
        let response = response.map_err(|error| match error {
            // Not the group's name, which the user has not given.
            CallError::Failed(Failure::NoAnswer(file::GROUP)) => {
                CliError::run(format!("no file server on {} answers", args.link.link))
            }
            other => call_failure(other, stop),
        })?;
        // From now on the server that has answered for its group.
        server = response.server;
        let part = Part::parse(response)
            .map_err(|code| CliError::run(format!("{server}: {name}: {}", reason(code))))?;
        let version = (part.file_len, part.version);
        if *first.get_or_insert(version) != version {
            return Err(CliError::run(format!(
                "{server}: {name} has changed while it was read: read it again"
            )));
        }
        if output.is_none() {
            output = Some(Output::open(args.output.as_deref(), stop)?);
        }
        if let Some(output) = &mut output {
            output.write(&part.bytes)?;
        }
        match read.next_offset(&part) {
            Ok(Some(next)) => offset = next,
            Ok(None) => break,
            Err(short) => return Err(CliError::run(format!("{server}: {name}: {short}"))),
        }
    }
    output.map_or(Ok(()), Output::finish)
}

fn reason(number: u32) -> String {
    match number {
        file::NOT_FOUND => "there is no such file".to_owned(),
        file::UNREADABLE => "the server cannot read it".to_owned(),
        file::NOT_UNDERSTOOD => "the server is no file server of weir's".to_owned(),
        other => code::name(other).map_or_else(|| format!("code {other}"), str::to_owned),
    }
}
