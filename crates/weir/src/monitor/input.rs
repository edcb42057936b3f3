//! Where the monitor's frames come from: live ports, or a capture file at a chosen speed.

use super::filter::Filter;
use super::session::Session;
use crate::cmd::listen::{ANY, names_up};
use crate::error::CliError;
use crate::input::{capture_file, live_port};
use crate::signals::ShutdownSignal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_broker::protocol::{Attach, Event};
use weir_broker::{Bytes, Port, PortError, Timeout};
use weir_link::pcap::Reader;
use weir_monitor::{Meta, Store};
use weir_wire::LinkType;

/// Longest time that one call reads from a file, so that keys are answered.
const READ_TIME_MAX: Duration = Duration::from_millis(25);
/// Longest pause after frames, so that the next ones come in a batch, with a queue of 8 MiB: at 14.88
/// million frames a second, the line rate of 10 Gb/s, 3.3 MB wait meanwhile. In proportion with a
/// smaller queue.
const PAUSE_MAX: Duration = Duration::from_millis(2);
const PAUSE_QUEUE: u64 = 8 << 20;
/// Bytes of a frame's record in the queue besides the frame's own, at most.
const RECORD_BYTES: u64 = 64;
/// Interval of requests to the ports' counters and events.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The result of [`Input::take_in`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    Frames,
    Nothing,
    /// The file is at its end; the last frames may have come in the same call.
    End,
}

/// The source of frames.
pub(crate) enum Input {
    Live(Box<Live>),
    File(Box<Replay>),
}

impl Input {
    /// Takes frames into the session; waits for the first for at most `wait`.
    pub(crate) fn take_in(
        &mut self,
        session: &mut Session,
        wait: Duration,
    ) -> Result<Came, CliError> {
        match self {
            Input::Live(live) => live.take_in(session, wait),
            Input::File(replay) => replay.take_in(session, wait),
        }
    }

    /// The expression that selects the frames.
    pub(crate) fn filter(&self) -> &str {
        match self {
            Input::Live(live) => &live.filter,
            Input::File(replay) => replay.filter.text(),
        }
    }

    /// Replaces the filter: counts begin anew, of a file from its beginning, and of a stream with the
    /// frames that are kept. If the filter is refused, the old one stays.
    pub(crate) fn set_filter(&mut self, text: &str, session: &mut Session) -> Result<(), String> {
        match self {
            Input::Live(live) => live.set_filter(text, session),
            Input::File(replay) => replay.set_filter(text, session),
        }
    }

    /// The link type for which a filter is checked.
    pub(crate) fn linktype(&self) -> LinkType {
        match self {
            Input::Live(live) => live.ports[0].port.linktype(),
            Input::File(replay) => replay.linktype(),
        }
    }

    /// The name of the interface or file.
    pub(crate) fn name(&self) -> String {
        match self {
            Input::Live(live) => live.name.clone(),
            Input::File(replay) if replay.path == Path::new("-") => "standard input".to_owned(),
            Input::File(replay) => {
                let name = replay.path.file_name().unwrap_or(replay.path.as_os_str());
                name.to_string_lossy().into_owned()
            }
        }
    }

    /// Why nothing can come any more; `None` for a file, or while an interface is there.
    pub(crate) fn gone(&self) -> Option<String> {
        match self {
            Input::Live(live) if live.is_gone() => Some(match live.name.as_str() {
                ANY => "every interface is gone".to_owned(),
                name => format!("interface {name} is gone"),
            }),
            _ => None,
        }
    }

    /// The replay of a file; `None` for ports.
    pub(crate) fn replay(&mut self) -> Option<&mut Replay> {
        match self {
            Input::Live(_) => None,
            Input::File(replay) => Some(replay),
        }
    }

    /// At the end: takes what waits in the queues, and counts what ports lost until now.
    pub(crate) fn finish(&mut self, session: &mut Session) -> Result<(), CliError> {
        if let Input::Live(live) = self {
            live.take_queued(session)?;
            live.count_losses(session);
        }
        Ok(())
    }
}

/// The size of a queue that was not chosen.
const QUEUE_DEFAULT: Bytes = Bytes(8 << 20);

/// How ports are opened.
pub(crate) struct PortOptions<'a> {
    pub(crate) interface: &'a str,
    pub(crate) filter: &'a str,
    pub(crate) socket: Option<&'a Path>,
    /// The size of each queue; `None` if it was not chosen.
    pub(crate) queue: Option<Bytes>,
    pub(crate) snap_len: Option<u32>,
    pub(crate) attach: Attach,
}

impl PortOptions<'_> {
    fn open(&self, interface: &str) -> Result<OnePort, CliError> {
        let mut builder = live_port::port(interface, self.filter, self.socket)?
            .timestamps(true)
            .attach(self.attach);
        builder = match self.queue {
            Some(queue) => builder.queue(queue),
            None => builder.queue_up_to(QUEUE_DEFAULT),
        };
        if let Some(snap_len) = self.snap_len {
            builder = builder.snap_len(snap_len);
        }
        Ok(OnePort {
            name: interface.to_owned(),
            port: builder.open().map_err(live_port::failure)?,
            is_gone: false,
            lost_before: 0,
        })
    }
}

struct OnePort {
    name: String,
    port: Port,
    is_gone: bool,
    /// Losses from before the counts began anew.
    lost_before: u64,
}

/// Ports on live interfaces.
pub(crate) struct Live {
    name: String,
    filter: String,
    ports: Vec<OnePort>,
    polled: Instant,
    is_orphan: bool,
    /// What is said with the first frames.
    note: Option<String>,
    /// Size of the smallest queue, in bytes.
    queue: u64,
    pause: Duration,
}

impl Live {
    /// Opens a port on the interface; for `any` on every one that is up now.
    pub(crate) fn open(options: &PortOptions<'_>) -> Result<Live, CliError> {
        let mut ports = Vec::new();
        if options.interface == ANY {
            let mut refused = None;
            for name in names_up()? {
                match options.open(&name) {
                    Ok(port) => ports.push(port),
                    Err(error) => refused = Some(error),
                }
            }
            if ports.is_empty() {
                let none = || CliError::run("no interface is up: look at `ip link`");
                return Err(refused.unwrap_or_else(none));
            }
        } else {
            ports.push(options.open(options.interface)?);
        }
        let queues = ports.iter().map(|one| one.port.queue().0);
        let queue = queues.min().unwrap_or(QUEUE_DEFAULT.0);
        let notes = ports.iter_mut();
        let notes = notes.filter_map(|one| live_port::earlier_program(&one.name, &mut one.port));
        let notes: Vec<String> = notes.collect();
        Ok(Live {
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            name: options.interface.to_owned(),
            filter: options.filter.to_owned(),
            ports,
            polled: Instant::now(),
            is_orphan: false,
            queue,
            pause: Duration::ZERO,
        })
    }

    fn take_in(&mut self, session: &mut Session, wait: Duration) -> Result<Came, CliError> {
        if let Some(note) = self.note.take() {
            session.news = Some(note);
        }
        let mut taken = self.take_queued(session)?;
        if taken == 0 {
            taken = self.wait(session, wait)?;
        }
        session.rest();
        if self.polled.elapsed() >= POLL_INTERVAL {
            self.polled = Instant::now();
            self.poll_events(session)?;
        }
        if taken == 0 {
            return Ok(Came::Nothing);
        }
        self.pause_after(taken);
        Ok(Came::Frames)
    }

    /// Takes what is in the queues, batch by batch, at most about as much as a queue holds; returns
    /// about how many bytes of the fullest that was.
    fn take_queued(&mut self, session: &mut Session) -> Result<u64, CliError> {
        let mut taken = 0;
        while taken < self.queue {
            let mut most = 0;
            for one in &mut self.ports {
                most = most.max(one.take_in(session, Timeout::NOW)?);
            }
            if most == 0 {
                break;
            }
            taken += most;
        }
        Ok(taken)
    }

    /// Pauses after this many bytes of the fullest queue were taken: longer while pauses fill little of
    /// it, less while they fill much. A batch has at most 256 frames, and says little of the queue.
    fn pause_after(&mut self, bytes: u64) {
        const STEP: Duration = Duration::from_micros(100);
        if bytes > self.queue / 8 {
            self.pause /= 2;
        } else if bytes < self.queue / 32 {
            let share = self.queue.min(PAUSE_QUEUE) as f64 / PAUSE_QUEUE as f64;
            self.pause = (self.pause * 2).max(STEP).min(PAUSE_MAX.mul_f64(share));
        }
        if self.pause >= STEP {
            std::thread::sleep(self.pause);
        }
    }

    fn wait(&mut self, session: &mut Session, wait: Duration) -> Result<u64, CliError> {
        if let [one] = &mut self.ports[..] {
            // The port's own wait is optimised for bursts.
            return one.take_in(session, Timeout::after(wait));
        }
        let mut all_armed = true;
        for one in &mut self.ports {
            all_armed &= one.port.arm();
        }
        if all_armed {
            let ports = self.ports.iter();
            let mut fds: Vec<PollFd<'_>> = ports
                .map(|one| PollFd::new(&one.port, PollFlags::IN))
                .collect();
            let time = Timespec::try_from(wait).unwrap_or_default();
            // A signal or the end of the time ends the wait.
            let _ = poll(&mut fds, Some(&time));
        }
        Ok(0)
    }

    /// Losses, and changes of the interfaces.
    fn poll_events(&mut self, session: &mut Session) -> Result<(), CliError> {
        self.count_losses(session);
        let mut is_orphan = false;
        for one in &mut self.ports {
            if one.is_gone {
                continue;
            }
            let events = match one.port.events() {
                Ok(events) => events,
                // The port continues without the broker, and with the next one.
                Err(PortError::NoBroker { .. }) => {
                    is_orphan = true;
                    continue;
                }
                Err(error) => return Err(live_port::failure(error)),
            };
            for event in events {
                let name = &one.name;
                session.news = Some(match event {
                    Event::Up => format!("{name} is up"),
                    Event::Down => format!("{name} is down"),
                    Event::Renamed { name: new } => {
                        let said = format!("{name} is now {new}");
                        one.name = new;
                        said
                    }
                    Event::Mtu { mtu } => format!("{name} has mtu {mtu}"),
                    Event::Gone => {
                        one.is_gone = true;
                        format!("interface {name} is gone: no frame comes from it any more")
                    }
                    Event::Revoked { reason } => {
                        return Err(CliError::run(format!("the policy has changed: {reason}")));
                    }
                });
            }
        }
        if is_orphan != self.is_orphan {
            let said = if is_orphan {
                "the broker has ended; frames continue to arrive"
            } else {
                "there is a broker again"
            };
            session.news = Some(said.to_owned());
        }
        self.is_orphan = is_orphan;
        let gone = self.ports.iter().filter(|one| one.is_gone);
        let gone = gone.map(|one| format!("interface {} is gone", one.name));
        let orphan = is_orphan.then(|| "no broker runs".to_owned());
        session.troubles = gone.chain(orphan).collect();
        Ok(())
    }

    /// Whether all interfaces are gone.
    fn is_gone(&self) -> bool {
        self.ports.iter().all(|one| one.is_gone)
    }

    fn count_losses(&mut self, session: &mut Session) {
        let ports = self.ports.iter_mut();
        // Without a broker only the frames carry losses.
        let lost = ports.filter_map(|one| one.lost());
        session.model.set_lost_by_port(lost.sum());
    }

    fn set_filter(&mut self, text: &str, session: &mut Session) -> Result<(), String> {
        Filter::check(text, self.ports[0].port.linktype())?;
        for number in 0..self.ports.len() {
            let set = self.ports[number].port.set_filter(text);
            if let Err(error) = set {
                // Ports of several interfaces have one filter or the other.
                for one in &mut self.ports[..number] {
                    let _ = one.port.set_filter(&self.filter);
                }
                return Err(error.to_string());
            }
        }
        self.filter = text.to_owned();
        for one in &mut self.ports {
            // Frames that the old filter has accepted.
            let _ = one.port.recv_batch(Timeout::NOW).map(Iterator::count);
            one.lost_before += one.lost().unwrap_or(0);
        }
        session.reset();
        Ok(())
    }
}

impl OnePort {
    /// Takes what is in the queue; returns about how many bytes of the queue that was.
    fn take_in(&mut self, session: &mut Session, timeout: Timeout) -> Result<u64, CliError> {
        let linktype = self.port.linktype();
        let interface = session.interface(&self.name, linktype);
        let frames = self.port.recv_batch(timeout).map_err(live_port::failure)?;
        let mut bytes = 0;
        for frame in frames {
            bytes += frame.bytes().len() as u64 + RECORD_BYTES;
            let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
            let time = frame.timestamp().and_then(since);
            let meta = Meta {
                len: frame.original_len(),
                time_ns: time.and_then(|time| i64::try_from(time.as_nanos()).ok()),
                linktype,
                interface,
                is_outgoing: Some(frame.is_outgoing()),
                lost_before: frame.lost_before(),
            };
            session.frame(frame.bytes(), meta);
        }
        Ok(bytes)
    }

    fn lost(&mut self) -> Option<u64> {
        let lost = self.port.counters().ok()?.lost;
        Some(lost.saturating_sub(self.lost_before))
    }
}

/// How fast a file is replayed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Speed {
    /// This many times as fast as the frames were captured.
    Times(f64),
    /// As fast as the file can be read.
    Max,
}

impl std::str::FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Speed, String> {
        if text == "max" {
            return Ok(Speed::Max);
        }
        let times = text.strip_suffix('x').unwrap_or(text).parse::<f64>().ok();
        let times = times.filter(|times| times.is_finite() && *times > 0.0);
        times
            .map(Speed::Times)
            .ok_or_else(|| "give a number greater than 0, such as 1 or 10x, or `max`".to_owned())
    }
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Speed::Times(times) => write!(f, "{times}x"),
            Speed::Max => f.write_str("max"),
        }
    }
}

/// A frame that was read and is not due yet.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    meta: Option<Meta>,
}

/// A capture file.
pub(crate) struct Replay {
    path: PathBuf,
    stop: ShutdownSignal,
    reader: Reader,
    filter: Filter,
    snap_len: Option<u32>,
    pub(crate) speed: Speed,
    is_paused: bool,
    /// When the frame of that time was due; `None` before the first frame and after a pause.
    origin: Option<(Instant, i64)>,
    pending: Pending,
    /// The time of the last frame that was taken.
    position_ns: Option<i64>,
    is_at_end: bool,
    /// Why reading ended before the end of the file.
    trouble: Option<String>,
    /// The last frames of a stream, which cannot be read again, whatever the present filter is; `None`
    /// until there is a second filter.
    read: Option<Store>,
}

impl Replay {
    /// Opens a file; the filter must fit its first interface.
    pub(crate) fn open(
        path: &Path,
        filter: &str,
        speed: Speed,
        snap_len: Option<u32>,
        stop: &ShutdownSignal,
    ) -> Result<Replay, CliError> {
        let reader = match capture_file::open(path, stop) {
            Ok(reader) => reader,
            Err(_) if stop.is_requested() => return Err(CliError::Stopped(stop.signal())),
            Err(error) => return Err(CliError::run(capture_file::complaint(path, &error))),
        };
        let replay = Replay {
            path: path.to_owned(),
            stop: stop.clone(),
            reader,
            filter: Filter::new(filter),
            snap_len,
            speed,
            is_paused: false,
            origin: None,
            pending: Pending::default(),
            position_ns: None,
            is_at_end: false,
            trouble: None,
            read: None,
        };
        Filter::check(filter, replay.linktype()).map_err(CliError::refused)?;
        Ok(replay)
    }

    fn linktype(&self) -> LinkType {
        let first = self.reader.interfaces().first();
        first.map_or(LinkType::EN10MB, |first| first.linktype)
    }

    /// Whether what was read cannot be read again: standard input, or a pipe.
    fn is_stream(&self) -> bool {
        let is_file = || std::fs::metadata(&self.path).is_ok_and(|facts| facts.is_file());
        self.path == Path::new("-") || !is_file()
    }

    fn set_filter(&mut self, text: &str, session: &mut Session) -> Result<(), String> {
        Filter::check(text, self.linktype())?;
        self.filter = Filter::new(text);
        if !self.is_stream() {
            return self.restart(session);
        }
        let mut read = self.read.take().unwrap_or_else(|| session.take_store());
        if let Some(meta) = self.pending.meta
            && !self
                .filter
                .accepts(&self.pending.bytes, meta.len, meta.linktype)
        {
            read.keep(&self.pending.bytes, meta);
            self.pending.meta = None;
        }
        let filter = &mut self.filter;
        session.recount(&read, |kept| {
            filter.accepts(kept.bytes, kept.meta.len, kept.meta.linktype)
        });
        if read.first() > 0 {
            session.news = Some(format!(
                "a stream cannot be read again: the first {} frames are not in the counts",
                read.first()
            ));
        }
        self.read = Some(read);
        Ok(())
    }

    /// Reads the file from its beginning again.
    pub(crate) fn restart(&mut self, session: &mut Session) -> Result<(), String> {
        if self.is_stream() {
            self.read = None;
            session.reset();
            let said = "a stream cannot be read again: counts are of what still comes";
            session.news = Some(said.to_owned());
            return Ok(());
        }
        let reader = capture_file::open(&self.path, &self.stop);
        self.reader = reader.map_err(|error| capture_file::complaint(&self.path, &error))?;
        (self.origin, self.position_ns) = (None, None);
        (self.is_at_end, self.trouble) = (false, None);
        self.pending.meta = None;
        session.reset();
        Ok(())
    }

    /// Pauses, or goes on.
    pub(crate) fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        self.origin = None;
    }

    /// Whether it pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether the end of the file was reached.
    pub(crate) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Changes the speed by steps of 2 (from 1) and 5, up to `max`.
    pub(crate) fn change_speed(&mut self, faster: bool) {
        const STEPS: [f64; 9] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 1000.0];
        self.speed = match (self.speed, faster) {
            (Speed::Max, true) => Speed::Max,
            (Speed::Max, false) => Speed::Times(STEPS[STEPS.len() - 1]),
            (Speed::Times(now), true) => {
                let next = STEPS.iter().find(|step| **step > now);
                next.map_or(Speed::Max, |step| Speed::Times(*step))
            }
            (Speed::Times(now), false) => {
                let next = STEPS.iter().rev().find(|step| **step < now);
                Speed::Times(next.copied().unwrap_or(now))
            }
        };
        self.origin = None;
    }

    /// Why reading ended early.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn take_in(&mut self, session: &mut Session, wait: Duration) -> Result<Came, CliError> {
        if self.is_at_end || self.is_paused {
            self.stop.wait(wait);
            return Ok(if self.is_at_end {
                Came::End
            } else {
                Came::Nothing
            });
        }
        let began = Instant::now();
        let mut came = Came::Nothing;
        for number in 1_u32.. {
            if self.pending.meta.is_none() && !self.read(session) {
                came = Came::End;
                break;
            }
            let Some(meta) = self.pending.meta else {
                // The filter has rejected it.
                if number.is_multiple_of(64) && began.elapsed() > READ_TIME_MAX {
                    break;
                }
                continue;
            };
            let left = self.left(meta.time_ns);
            if !left.is_zero() {
                if came == Came::Nothing {
                    self.stop.wait(left.min(wait));
                }
                break;
            }
            session.frame(&self.pending.bytes, meta);
            if let Some(read) = &mut self.read {
                read.keep(&self.pending.bytes, meta);
            }
            self.pending.meta = None;
            self.position_ns = meta.time_ns.or(self.position_ns);
            came = Came::Frames;
            if number.is_multiple_of(64) && began.elapsed() > READ_TIME_MAX {
                break;
            }
        }
        session.rest();
        Ok(came)
    }

    /// Reads the next frame; `false` at the end. A frame that the filter rejects leaves nothing
    /// pending.
    fn read(&mut self, session: &mut Session) -> bool {
        let frame = match self.reader.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                self.is_at_end = true;
                return false;
            }
            Err(error) => {
                let why = capture_file::complaint(&self.path, &error);
                session.news = Some(why.clone());
                self.trouble = Some(why);
                self.is_at_end = true;
                return false;
            }
        };
        let linktype = frame.linktype();
        let is_wanted = self.filter.accepts(frame.bytes, frame.wire_len, linktype);
        if !is_wanted && self.read.is_none() {
            return true;
        }
        let snap_len = self.snap_len.map_or(usize::MAX, |len| len as usize);
        let bytes = &frame.bytes[..frame.bytes.len().min(snap_len)];
        let meta = Meta {
            len: frame.wire_len,
            time_ns: frame.time_ns,
            linktype,
            interface: session.interface(frame.interface.name.as_deref().unwrap_or("?"), linktype),
            is_outgoing: None,
            lost_before: 0,
        };
        if let Some(read) = self.read.as_mut().filter(|_| !is_wanted) {
            read.keep(bytes, meta);
            return true;
        }
        self.pending.bytes.clear();
        self.pending.bytes.extend_from_slice(bytes);
        self.pending.meta = Some(meta);
        true
    }

    /// Time until a frame is due.
    fn left(&mut self, time_ns: Option<i64>) -> Duration {
        let (Speed::Times(times), Some(time_ns)) = (self.speed, time_ns) else {
            return Duration::ZERO;
        };
        let now = Instant::now();
        let start_ns = self.position_ns.unwrap_or(time_ns);
        let (origin, origin_ns) = *self.origin.get_or_insert((now, start_ns));
        let due_s = time_ns.saturating_sub(origin_ns).max(0) as f64 / 1e9 / times;
        let passed = now - origin;
        let due = Duration::try_from_secs_f64(due_s).unwrap_or(Duration::MAX);
        due.saturating_sub(passed)
    }
}
