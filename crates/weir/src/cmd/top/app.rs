//! The monitor on a terminal: its state, and the loop that feeds, asks and draws it.

use super::Args;
use super::detail::Detail;
use super::follow::Followed;
use super::frames::FrameList;
use super::prompt::Prompt;
use super::sheet::{Kind, Sheet};
use super::terminal::Tty;
use super::{draw, keys};
use crate::error::CliError;
use crate::monitor::facts::Watcher;
use crate::monitor::input::{Came, Input};
use crate::monitor::session::Session;
use crate::monitor::views::Views;
use crate::signals::ShutdownSignal;
use crossterm::event::{Event, KeyEventKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Shortest time between two pictures that no key has asked for.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of new rates and orders of tables.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for frames before keys are looked for.
const WAIT: Duration = Duration::from_millis(20);
/// How long a message stays, unless another one comes.
const MESSAGE_TIME: Duration = Duration::from_secs(8);

/// The view on the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum View {
    Overview,
    /// The sheet of that number.
    Sheet(usize),
    Frames,
}

/// The window over the view.
pub(super) enum Over {
    Nothing,
    /// From this line on.
    Help(usize),
    Detail(Box<Detail>),
    Follow(Box<Followed>),
}

/// A key's request to the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Nothing,
    Quit,
    Suspend,
    Redraw,
}

/// The state of the screen.
pub(super) struct App {
    pub(super) session: Session,
    pub(super) input: Input,
    pub(super) stop: ShutdownSignal,
    pub(super) view: View,
    pub(super) over: Over,
    pub(super) sheets: [Sheet; 5],
    pub(super) frames: FrameList,
    /// Views of protocols in Python.
    pub(super) views: Views,
    pub(super) prompt: Option<Prompt>,
    /// The list's filter before the prompt was opened.
    pub(super) filter_before: String,
    pub(super) searched: String,
    pub(super) news: Option<(Instant, String)>,
    /// Whether frames are not shown as they come: the tables keep their order.
    pub(super) is_frozen: bool,
    /// Rows that a page has, as last drawn.
    pub(super) page: usize,
    /// Frames and bytes a second over the last interval.
    pub(super) rates: (f64, f64),
    ticked: Instant,
    ticked_totals: (u64, u64),
    /// Number of frames when the tables were put in order.
    ordered: u64,
    /// The span of a file's frames at the last tick.
    ticked_span_s: f64,
}

impl App {
    pub(super) fn new(input: Input, session: Session, stop: &ShutdownSignal) -> App {
        use Kind::{Conversations, Ports, Processes, Protocols, Talkers};
        App {
            session,
            input,
            stop: stop.clone(),
            view: View::Overview,
            over: Over::Nothing,
            sheets: [Talkers, Conversations, Protocols, Ports, Processes].map(Sheet::new),
            frames: FrameList::new(),
            views: Views::default(),
            prompt: None,
            filter_before: String::new(),
            searched: String::new(),
            news: None,
            is_frozen: false,
            page: 10,
            rates: (0.0, 0.0),
            ticked: Instant::now(),
            ticked_totals: (0, 0),
            ordered: 0,
            ticked_span_s: 0.0,
        }
    }

    /// Shows a message below.
    pub(super) fn say(&mut self, text: impl Into<String>) {
        // A compiler's message has several lines.
        let text: String = text.into();
        let words: Vec<&str> = text.split_whitespace().collect();
        self.news = Some((Instant::now(), words.join(" ")));
    }

    /// Sets rates, and puts the tables in order.
    pub(super) fn tick(&mut self) {
        let passed = match self.input {
            Input::Live(_) => self.ticked.elapsed().as_secs_f64(),
            // A file's rates are those of its own time, however fast it is read.
            Input::File(_) => self.session.model.span_s() - self.ticked_span_s,
        };
        self.ticked = Instant::now();
        if passed <= 0.0 {
            self.refresh();
            return;
        }
        self.ticked_span_s = self.session.model.span_s();
        let totals = self.session.model.totals();
        let (frames, bytes) = self.ticked_totals;
        self.rates = (
            totals.frames.saturating_sub(frames) as f64 / passed,
            totals.bytes.saturating_sub(bytes) as f64 / passed,
        );
        self.ticked_totals = (totals.frames, totals.bytes);
        self.session.model.tick(passed);
        self.refresh();
    }

    /// Whether frames have come since the tables were put in order.
    fn is_stale(&self) -> bool {
        self.session.model.totals().frames != self.ordered
    }

    /// Puts the tables in order if the first frames have come, which are shown at once and not at the
    /// next tick; returns whether they have.
    pub(super) fn takes_first(&mut self) -> bool {
        let is_first = self.ordered == 0 && self.is_stale();
        if is_first {
            self.refresh();
        }
        is_first
    }

    /// Puts the visible tables in order.
    pub(super) fn refresh(&mut self) {
        self.ordered = self.session.model.totals().frames;
        if self.is_frozen {
            return;
        }
        match self.view {
            View::Sheet(number) => self.sheets[number].refresh(&self.session),
            View::Overview => {
                for number in [0, 2] {
                    self.sheets[number].refresh(&self.session);
                }
            }
            View::Frames => {}
        }
    }

    /// Takes what views in Python have said; returns whether anything has come.
    pub(super) fn take_views(&mut self) -> bool {
        let has_come = self.views.take_answers();
        if let Over::Detail(detail) = &mut self.over
            && has_come
        {
            detail.look(&mut self.views);
        }
        has_come
    }

    /// Begins the counts of the screen anew, after the session's.
    pub(super) fn restarted(&mut self) {
        self.frames.restart();
        self.views.restart();
        self.over = Over::Nothing;
        self.ticked_totals = (0, 0);
        self.ticked_span_s = 0.0;
        for sheet in &mut self.sheets {
            sheet.refresh(&self.session);
        }
    }

    /// The path that the user typed, if nothing is there yet.
    pub(super) fn new_file(text: &str) -> Result<PathBuf, String> {
        let path = PathBuf::from(text.trim());
        if path.as_os_str().is_empty() {
            return Err("give a file's name".to_owned());
        }
        match std::fs::symlink_metadata(&path) {
            Ok(_) => Err(format!("{} exists: give another name", path.display())),
            Err(_) => Ok(path),
        }
    }
}

/// Shows the monitor until the user, a signal or the time ends it.
pub(super) fn run(
    args: &Args,
    input: Input,
    session: Session,
    views: Views,
    stop: &ShutdownSignal,
) -> Result<(), CliError> {
    if args.no_color {
        crossterm::style::force_color_output(false);
    }
    let is_live = matches!(input, Input::Live(_));
    let mut app = App::new(input, session, stop);
    app.views = views;
    let mut tty = Tty::take()?;
    let ended = shown(args, &mut app, &mut tty, is_live);
    drop(tty);
    let recorded = app.session.end_recording();
    if let Some(news) = app.session.news.take().filter(|_| recorded.is_ok()) {
        crate::error::say(&format!("weir: {news}"));
    }
    ended?;
    recorded?;
    if let Some(failure) = app.session.take_failure() {
        return Err(failure);
    }
    if let Some(gone) = app.input.gone() {
        return Err(CliError::run(gone));
    }
    match app.input.replay().and_then(|replay| replay.trouble()) {
        Some(trouble) => Err(CliError::run(trouble)),
        None => Ok(()),
    }
}

fn shown(args: &Args, app: &mut App, tty: &mut Tty, is_live: bool) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::run(format!("cannot use the terminal: {error}"));
    let deadline = args.time.and_then(|time| Instant::now().checked_add(time));
    let mut is_due = true;
    let mut is_changed = true;
    let mut drawn: Option<Instant> = None;
    let mut watcher = None;
    let began = Instant::now();
    // So that the first picture has the first frames, if they come at once.
    app.input.take_in(&mut app.session, WAIT)?;
    app.takes_first();
    loop {
        if app.stop.is_requested() || deadline.is_some_and(|end| Instant::now() >= end) {
            return if app.stop.is_requested() {
                Err(CliError::Stopped(app.stop.signal()))
            } else {
                Ok(())
            };
        }
        let is_old = drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_INTERVAL);
        if (is_due || is_changed && is_old) && tty.is_free() {
            let all = app.frames.refresh(&app.session.store);
            tty.terminal
                .draw(|frame| draw::all(frame, app))
                .map_err(failed)?;
            (is_due, is_changed, drawn) = (false, !all, Some(Instant::now()));
        }
        // After the picture of the first frames, which it would delay.
        let is_time = app.ordered > 0 || began.elapsed() >= DRAW_INTERVAL;
        if is_live && watcher.is_none() && is_time {
            watcher = Some(Watcher::start(args.source.socket.as_deref()));
        }
        let came = app.input.take_in(&mut app.session, WAIT)?;
        is_changed |= came == Came::Frames;
        is_due |= app.takes_first();
        if let Some(news) = app.session.news.take() {
            app.say(news);
            is_due = true;
        }
        if let Some(fresh) = watcher
            .as_ref()
            .and_then(|watcher| watcher.as_ref()?.fresh())
        {
            app.session.take_facts(fresh);
            is_changed = true;
        }
        // SIGHUP, which means the same, may be ignored.
        if app.ticked.elapsed() >= TICK_INTERVAL
            && app
                .stop
                .wait_unless_closed(Duration::ZERO, &std::io::stdout())
        {
            return Err(CliError::run("the terminal is gone"));
        }
        if app.ticked.elapsed() >= TICK_INTERVAL || came == Came::End && app.is_stale() {
            app.tick();
            is_changed = true;
        }
        if app.take_views() {
            is_changed = true;
        }
        if let Over::Detail(detail) = &mut app.over
            && let Some(news) = detail.poll()
        {
            is_due = true;
            match news {
                Some(news) => app.say(news),
                None => app.news = None,
            }
        }
        if app
            .news
            .as_ref()
            .is_some_and(|(at, _)| at.elapsed() > MESSAGE_TIME)
        {
            app.news = None;
            is_due = true;
        }
        while let Some(event) = tty.event()? {
            match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => match keys::key(app, key) {
                    Action::Quit => return Ok(()),
                    Action::Suspend => tty.suspend()?,
                    Action::Redraw => tty.clear()?,
                    Action::Nothing => {}
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            is_due = true;
        }
    }
}
