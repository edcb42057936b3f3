//! The terminal: raw mode and the alternate screen while the monitor is shown, and as it was before
//! afterwards, also after a panic.
//!
//! A thread writes, so that a slow terminal delays no frame: while it writes, nothing new is drawn.

use crate::error::CliError;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Whether the terminal is in the monitor's state.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Longest wait for a slow terminal at the end.
const END_WAIT: Duration = Duration::from_secs(2);

/// An output that a thread writes to the terminal.
pub(super) struct Screen {
    buffer: Vec<u8>,
    put: Sender<Vec<u8>>,
    is_busy: Arc<AtomicBool>,
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.is_busy.store(true, Ordering::Release);
        let sent = self.put.send(std::mem::take(&mut self.buffer));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The terminal, given back when this is dropped.
pub(super) struct Tty {
    pub(super) terminal: Terminal<CrosstermBackend<Screen>>,
    is_busy: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
    events: Receiver<io::Result<Event>>,
}

/// Reads keys and sizes in a thread: crossterm's reader does not return when the terminal is gone.
fn read_events() -> io::Result<Receiver<io::Result<Event>>> {
    let (put, events) = channel();
    let read = move || {
        loop {
            let event = event::read();
            let is_over = event.is_err();
            if put.send(event).is_err() || is_over {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("keys".to_owned());
    thread.spawn(read)?;
    Ok(events)
}

fn failed(error: io::Error) -> CliError {
    CliError::run(format!("cannot use the terminal: {error}"))
}

impl Tty {
    /// Takes the terminal.
    pub(super) fn take() -> Result<Tty, CliError> {
        let is_busy = Arc::new(AtomicBool::new(false));
        let (put, written) = channel::<Vec<u8>>();
        let busy = Arc::clone(&is_busy);
        let write = move || {
            while let Ok(bytes) = written.recv() {
                let mut out = io::stdout();
                // A terminal that is gone sends SIGHUP too.
                let _ = out.write_all(&bytes).and_then(|()| out.flush());
                busy.store(false, Ordering::Release);
            }
        };
        let thread = thread::Builder::new().name("screen".to_owned());
        let writer = thread.spawn(write).map_err(failed)?;
        enter().map_err(failed)?;
        let screen = Screen {
            buffer: Vec::new(),
            put,
            is_busy: Arc::clone(&is_busy),
        };
        let terminal = Terminal::new(CrosstermBackend::new(screen)).map_err(|error| {
            leave();
            failed(error)
        })?;
        Ok(Tty {
            terminal,
            is_busy,
            writer: Some(writer),
            events: read_events().map_err(|error| {
                leave();
                failed(error)
            })?,
        })
    }

    /// The next key or size, if there is one.
    pub(super) fn event(&self) -> Result<Option<Event>, CliError> {
        self.events.try_recv().ok().transpose().map_err(failed)
    }

    /// Whether the last picture is on the terminal.
    pub(super) fn is_free(&self) -> bool {
        !self.is_busy.load(Ordering::Acquire)
    }

    /// Stops this process as a shell's Ctrl-Z does; returns when it goes on.
    pub(super) fn suspend(&mut self) -> Result<(), CliError> {
        self.wait();
        leave();
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::TSTP);
        enter().map_err(failed)?;
        self.clear()
    }

    /// Has the next picture drawn as a whole. `Terminal::clear` would ask the terminal where the
    /// cursor is, and the answer goes to the thread that reads keys.
    pub(super) fn clear(&mut self) -> Result<(), CliError> {
        let size = self.terminal.size().map_err(failed)?;
        let area = Rect::new(0, 0, size.width, size.height);
        self.terminal.resize(area).map_err(failed)
    }

    fn wait(&self) {
        let began = Instant::now();
        while !self.is_free() && began.elapsed() < END_WAIT {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        self.wait();
        leave();
        // The thread ends with the channel, which the terminal holds; a stuck one ends with the process.
        self.writer.take();
    }
}

fn enter() -> io::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
    });
    enable_raw_mode()?;
    IS_TAKEN.store(true, Ordering::SeqCst);
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Gives the terminal back, once.
fn leave() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // A failure cannot be reported any more.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}
