//! `weir pup telnet`: a terminal's connection.

use super::link::{LinkArgs, failure, stream_failure};
use crate::error::CliError;
use crate::signals::ShutdownSignal;
use std::io::{self, Read as _, Write as _};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;
use weir_protocols::pup::{Stream, StreamError};
use weir_pup::bsp::{Ended, Read};
use weir_pup::datagram::{Address, Port, socket};
use weir_pup::telnet::{Event, Parser, mark};

/// Connect standard input and output to a host's Telnet server
///
/// Ends when the server ends the connection, or at the end of standard input once the server has
/// had five seconds to answer.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The host
    #[arg(value_name = "NET#HOST#")]
    host: Address,

    #[command(flatten)]
    link: LinkArgs,
}

/// How long output is waited for after the end of input.
const LINGER: Duration = Duration::from_secs(5);
/// How long a turn waits for Pups: so late a character of the user is sent.
const TURN: Duration = Duration::from_millis(5);

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let Address(asked) = args.host;
    let remote = Port {
        socket: if asked.socket == 0 {
            socket::TELNET
        } else {
            asked.socket
        },
        ..asked
    };
    let mut node = args.link.client(args.host)?;
    let is_stopped = || stop.is_requested();
    let mut stream = Stream::open(&mut node, remote, &is_stopped).map_err(|error| match error {
        StreamError::Ended(ended) => CliError::run(format!("{}: {ended}", args.host)),
        other => stream_failure(other, stop),
    })?;
    let (sender, typed) = mpsc::sync_channel(16);
    let mut input = stop.interruptible(io::stdin());
    let reader = thread::Builder::new().spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = input.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    reader.map_err(|error| CliError::run(format!("cannot start a thread: {error}")))?;
    let mut parser = Parser::default();
    let mut waiting: Vec<u8> = Vec::new();
    let mut ended_at = None;
    let mut out = io::stdout().lock();
    loop {
        if waiting.is_empty() {
            match typed.try_recv() {
                Ok(more) => waiting = more,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    ended_at.get_or_insert_with(std::time::Instant::now);
                }
            }
        }
        let Some(connection) = stream.connection() else {
            return Ok(());
        };
        let taken = connection.write(&waiting);
        waiting.drain(..taken);
        let mut buffer = [0; 4096];
        let mut shown = false;
        loop {
            match connection.read(&mut buffer) {
                Read::Data(count) => {
                    let events = buffer[..count].iter().map(|byte| parser.byte(*byte));
                    let characters: Vec<u8> = events
                        .filter_map(|event| match event {
                            Event::Character(byte) => Some(byte),
                            _ => None,
                        })
                        .collect();
                    out.write_all(&characters).map_err(CliError::output)?;
                    shown = true;
                }
                Read::Mark(number) => {
                    if parser.mark(number) == Some(Event::Timing) {
                        // All before it is displayed.
                        out.flush().map_err(CliError::output)?;
                        connection.write_mark(mark::TIMING_REPLY);
                    }
                }
                Read::Nothing => break,
                Read::End => {
                    out.flush().map_err(CliError::output)?;
                    return match connection.ended() {
                        None | Some(Ended::Closed) => Ok(()),
                        Some(reason) => Err(CliError::run(format!("{}: {reason}", args.host))),
                    };
                }
            }
        }
        if shown {
            out.flush().map_err(CliError::output)?;
        }
        if stop.is_requested() {
            return Err(CliError::Stopped(stop.signal()));
        }
        let over = |at: std::time::Instant| waiting.is_empty() && at.elapsed() >= LINGER;
        if ended_at.is_some_and(over) {
            connection.close();
        }
        match stream.turn(TURN) {
            Ok(()) => {}
            Err(StreamError::Link(error)) => return Err(failure(error)),
            Err(other) => return Err(stream_failure(other, stop)),
        }
    }
}
