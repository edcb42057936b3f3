//! `weir meter --read`: the records of a capture.

use super::report::{JsonLines, Table};
use super::{Args, seed};
use crate::config;
use crate::error::{CliError, Incomplete, say};
use crate::input::capture_file;
use crate::signals::ShutdownSignal;
use crate::store;
use std::collections::HashMap;
use std::path::Path;
use weir_ledger::{Accepted, Encoded, Ledger, LedgerError};
use weir_link::names::SystemNames;
use weir_link::pcap::{Error, Reader};
use weir_meter::config::Config;
use weir_meter::engine::{Engine, Frame, LinkIndex, Refusal};
use weir_meter::period::{Moment, Schedule};
use weir_meter::{Chunk, SessionInfo};
use weir_wire::LinkType;

/// Counts the frames of the capture at `path`.
pub(super) fn run(
    args: &Args,
    config: &Config,
    subscribers: &[SessionInfo],
    names: &SystemNames,
    path: &Path,
) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut gaps = Incomplete::default();
    let mut is_damaged = false;
    let mut output = Output::new(args);
    let counted = match capture_file::open(path, &stop) {
        Ok(mut reader) => {
            let mut meter = CaptureMeter {
                config,
                subscribers,
                names,
                state: None,
                links: HashMap::new(),
                refusals: Vec::new(),
                frames: 0,
            };
            match meter.read(&mut reader, &stop, &mut output) {
                Ok(signal) => gaps.signal = signal,
                Err(error) => {
                    is_damaged = true;
                    gaps.troubles.push(capture_file::complaint(path, &error));
                }
            }
            for (linktype, refusal) in &meter.refusals {
                gaps.troubles.push(refused(*linktype, refusal));
            }
            if meter.frames > 0 && output.is_all_outside() {
                if config.each_address {
                    say(
                        "weir: no frame is from or to a subscriber: name their networks by --inside NET",
                    );
                } else if !subscribers.is_empty() {
                    say(
                        "weir: no frame is from or to a subscriber of the list: all is unattributed",
                    );
                }
            }
            meter.frames
        }
        Err(_) if stop.is_requested() => {
            gaps.signal = Some(stop.signal());
            0
        }
        Err(error) if capture_file::is_damage(&error) => {
            gaps.troubles.push(capture_file::complaint(path, &error));
            0
        }
        Err(error) => return Err(CliError::run(capture_file::complaint(path, &error))),
    };
    let printed = output.end(&config::name(path), counted, args.top, config.unit);
    let failure = output.failure.take().map_or(Ok(()), Err);
    // The records of a part of a capture would stand in the place of those of the whole.
    let stored = if gaps.signal.is_none() && !is_damaged {
        output.store(args)
    } else {
        if output
            .to_store
            .as_ref()
            .is_some_and(|chunks| !chunks.is_empty())
        {
            say("weir: the records are not kept, since they are of a part of the capture");
        }
        Ok(())
    };
    gaps.outcome().and(failure).and(printed).and(stored)
}

fn refused(linktype: LinkType, refusal: &Refusal) -> String {
    let why = match &refusal.error {
        Some(error) => error.to_string(),
        None => "the capture has too many link types".into(),
    };
    format!(
        "link type {linktype}: {} accepts no frame: {why}",
        refusal.of
    )
}

/// Where chunks go.
struct Output {
    table: Table,
    json: Option<JsonLines>,
    failure: Option<CliError>,
    /// The chunks to be stored at the end, in order; `None` without a store.
    to_store: Option<Vec<Encoded>>,
}

impl Output {
    fn new(args: &Args) -> Output {
        Output {
            table: Table::default(),
            json: args.json.then(JsonLines::default),
            failure: None,
            to_store: (!args.no_store).then(Vec::new),
        }
    }

    /// Takes a chunk of a period that has ended, and keeps it for the store, too.
    fn take(&mut self, mut chunk: Chunk) {
        self.chunk(&chunk);
        if let Some(chunks) = &mut self.to_store {
            chunk.manifest.previous = chunks.last().map_or([0; 32], |before| before.hash);
            chunks.push(weir_ledger::encode(&chunk));
        }
    }

    /// Puts the records into the store, where `weir usage` finds them: once, however often the
    /// capture is metered.
    fn store(&mut self, args: &Args) -> Result<(), CliError> {
        let Some(chunks) = self.to_store.take().filter(|chunks| !chunks.is_empty()) else {
            return Ok(());
        };
        let path = store::path_made(args.store.as_deref())?;
        let is_new = !path.exists();
        // Closes the ledger: a failure leaves one without records, which is removed.
        let replace = |path: &Path| Ledger::open(path)?.replace(&chunks);
        let replaced = replace(&path);
        if is_new && replaced.is_err() {
            Ledger::remove_unused(&path);
        }
        match replaced {
            Ok(Accepted::New) => {}
            Ok(Accepted::Known) => say(&format!(
                "weir: {} has the records of this capture already: they count once",
                path.display()
            )),
            Ok(Accepted::Replaced) => say(&format!(
                "weir: {}: the records of this capture took the place of its former ones",
                path.display()
            )),
            Err(error @ LedgerError::Contradiction(_)) => {
                return Err(CliError::run(format!(
                    "{}: {error}; an output has had those records: give the counter another name, \
                     or another --store",
                    path.display()
                )));
            }
            Err(error) => return Err(CliError::run(error)),
        }
        Ok(())
    }

    /// Takes a chunk of a period that has ended.
    fn chunk(&mut self, chunk: &Chunk) {
        self.table.see(chunk);
        match &mut self.json {
            None => self.table.add(chunk),
            Some(json) => {
                if let Err(error) = json.print(chunk) {
                    self.failure.get_or_insert(CliError::output(error));
                }
            }
        }
    }

    /// Whether no record was of a subscriber.
    fn is_all_outside(&self) -> bool {
        self.table.of_sessions == 0
    }

    fn end(
        &mut self,
        name: &str,
        frames: u64,
        top: usize,
        unit: weir_meter::engine::Unit,
    ) -> Result<(), CliError> {
        match &mut self.json {
            Some(json) => json.flush().map_err(CliError::output),
            None => self.table.print(name, frames, top, unit),
        }
    }
}

/// A counter of a capture: times of the frames are its monotonic clock.
struct CaptureMeter<'a> {
    config: &'a Config,
    subscribers: &'a [SessionInfo],
    names: &'a SystemNames,
    /// From the first frame on.
    state: Option<(Engine, Schedule)>,
    links: HashMap<LinkType, LinkIndex>,
    refusals: Vec<(LinkType, Refusal)>,
    frames: u64,
}

impl CaptureMeter<'_> {
    /// Reads until the end, the first damage, or a signal, which it gives.
    fn read(
        &mut self,
        reader: &mut Reader,
        stop: &ShutdownSignal,
        output: &mut Output,
    ) -> Result<Option<u8>, Error> {
        let progress = capture_file::progress_bar(reader, false);
        let mut last: Option<(LinkType, LinkIndex)> = None;
        let mut now_ns = 0;
        let ended = loop {
            let frame = match reader.next_frame() {
                Ok(Some(frame)) => frame,
                // A pipe ends early when we are asked to stop.
                _ if stop.is_requested() => break Ok(Some(stop.signal())),
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            };
            // The monotonic clock of a capture is the latest of its times so far.
            now_ns = frame
                .time_ns
                .map_or(now_ns, |time| now_ns.max(time.max(0).cast_unsigned()));
            let linktype = frame.linktype();
            if self.state.is_none() {
                self.begin(now_ns);
            }
            let link = match last {
                Some((same, link)) if same == linktype => link,
                _ => self.link(linktype),
            };
            last = Some((linktype, link));
            let (engine, schedule) = self.state.as_mut().expect("begun");
            while let Some(boundary) = schedule.due(now_ns) {
                engine.cut(moment(boundary), 0, None, &mut |chunk| output.take(chunk));
            }
            engine.count(&Frame {
                bytes: frame.bytes,
                wire_len: frame.wire_len,
                link,
                direction: None,
                now_ns,
            });
            self.frames += 1;
            if output.failure.is_some() {
                break Ok(None);
            }
            if self.frames.is_multiple_of(1 << 14) {
                progress.set_position(reader.progress().consumed);
                if stop.is_requested() {
                    break Ok(Some(stop.signal()));
                }
            }
        };
        progress.finish_and_clear();
        self.last(now_ns, output);
        ended
    }

    /// The first frame: the first period begins, and the list's sessions with it.
    fn begin(&mut self, now_ns: u64) {
        let began = moment(now_ns);
        // The records of a capture have the same identity each time: its first time.
        let settings = self.config.settings(now_ns, seed());
        let mut engine = Engine::new(settings, began);
        for info in self.subscribers {
            let up = engine.up(info, 0, now_ns);
            up.expect("the list has been checked against the limits");
        }
        self.state = Some((engine, Schedule::new(began, self.config.period_ns)));
    }

    fn link(&mut self, linktype: LinkType) -> LinkIndex {
        if let Some(link) = self.links.get(&linktype) {
            return *link;
        }
        let (engine, _) = self.state.as_mut().expect("begun");
        let (link, refusals) = engine.prepare(linktype, self.names);
        self.links.insert(linktype, link);
        let refusals = refusals.into_iter().map(|refusal| (linktype, refusal));
        self.refusals.extend(refusals);
        link
    }

    /// The last period ends with the last frame.
    fn last(&mut self, now_ns: u64, output: &mut Output) {
        if let Some((engine, _)) = &mut self.state {
            engine.cut(moment(now_ns), 0, None, &mut |chunk| output.take(chunk));
        }
    }
}

fn moment(now_ns: u64) -> Moment {
    Moment {
        monotonic_ns: now_ns,
        unix_ns: now_ns.cast_signed(),
    }
}
