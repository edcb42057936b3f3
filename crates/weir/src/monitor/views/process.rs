//! The python3 of one view, and the thread that speaks with it.

use super::Source;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;
use serde::Deserialize;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The program that runs a file's view.
const DRIVER: &str = include_str!("driver.py");
/// Longest time in which python3 starts and runs the file.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time for one frame.
const FRAME_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes of an answer, at most.
const ANSWER_LEN_MAX: usize = 1 << 20;
/// How often a view's python3 is started again.
pub(super) const RESTARTS_MAX: u32 = 5;
/// Frames that wait for a view, at most: about what a screen shows.
const REQUESTS_MAX: usize = 256;

/// A field that a view has found: as deep as in [`weir_monitor::tree::Field`], its range in the
/// payload.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct ViewField(
    pub(crate) u8,
    pub(crate) String,
    pub(crate) String,
    pub(crate) usize,
    pub(crate) usize,
);

impl ViewField {
    /// Its place in the frame, of the payload's; the file's numbers may be anything.
    pub(crate) fn range(&self, payload: &Range<usize>) -> Range<usize> {
        let at = |offset: usize| payload.start.saturating_add(offset).min(payload.end);
        at(self.3)..at(self.4).max(at(self.3))
    }
}

/// What a view says of a payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// The payload is not of its protocol.
    Nothing,
    /// A line, and fields.
    Fields(String, Vec<ViewField>),
    /// Why it says nothing.
    Failed(String),
}

impl Said {
    /// Its size in memory, about.
    pub(super) fn len(&self) -> usize {
        let text = match self {
            Said::Nothing => 0,
            Said::Failed(why) => why.len(),
            Said::Fields(summary, fields) => {
                let len =
                    |field: &ViewField| field.1.len() + field.2.len() + size_of::<ViewField>();
                summary.len() + fields.iter().map(len).sum::<usize>()
            }
        };
        text + size_of::<Said>()
    }
}

/// A payload for a view.
pub(super) struct Request {
    pub(super) generation: u64,
    pub(super) number: u64,
    pub(super) payload: Vec<u8>,
}

/// A view's answer.
pub(super) struct Answer {
    pub(super) generation: u64,
    pub(super) number: u64,
    /// The number of the view.
    pub(super) view: usize,
    pub(super) said: Said,
}

/// A line of the driver.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Line {
    name: String,
    r#match: String,
    summary: String,
    fields: Vec<ViewField>,
    none: bool,
    error: Option<String>,
}

/// A running python3.
struct Python {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// What was read and is no whole line.
    unread: Vec<u8>,
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Python {
    /// Starts the driver.
    fn start(source: &Source) -> Result<Python, String> {
        let mut command = Command::new("python3");
        // Isolated from variables and files that other users may have set or written.
        command.args(["-I", "-B", "-c", DRIVER]).current_dir("/");
        command.env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Keys such as Ctrl-C of the terminal are not for it.
            .process_group(0);
        if let Some((user, group)) = source.run_as {
            command.uid(user).gid(group);
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!(
                "--view {}: no python3 in PATH: install it (apt install python3)",
                source.path
            ),
            _ => format!("--view {}: cannot run python3: {error}", source.path),
        })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("python3 has no pipes".to_owned());
        };
        let python = Python {
            child,
            input,
            output,
            unread: Vec::new(),
        };
        for pipe in [python.input.as_fd(), python.output.as_fd()] {
            fcntl_setfl(pipe, OFlags::NONBLOCK).map_err(|error| error.to_string())?;
        }
        Ok(python)
    }

    /// Writes a line and reads the answer, in limited time; `Ok(None)` if `end` is closed meanwhile.
    fn exchange(
        &mut self,
        line: &[u8],
        time: Duration,
        end: &OwnedFd,
    ) -> Result<Option<Line>, String> {
        let deadline = Instant::now() + time;
        let mut left = line;
        if !self.unread.is_empty() {
            return Err("said more than one line for a frame".to_owned());
        }
        loop {
            if let Some(len) = self.unread.iter().position(|byte| *byte == b'\n') {
                let said: Vec<u8> = self.unread.drain(..=len).collect();
                let said = serde_json::from_slice(&said);
                return said
                    .map(Some)
                    .map_err(|error| format!("no answer: {error}"));
            }
            if self.unread.len() > ANSWER_LEN_MAX {
                return Err(format!("said more than {ANSWER_LEN_MAX} bytes"));
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(format!("took longer than {} s", time.as_secs()));
            }
            let mut fds = vec![
                PollFd::new(end, PollFlags::IN),
                PollFd::new(&self.output, PollFlags::IN),
            ];
            if !left.is_empty() {
                fds.push(PollFd::new(&self.input, PollFlags::OUT));
            }
            let wait = Timespec::try_from(deadline - now).unwrap_or_default();
            match poll(&mut fds, Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            if !fds[0].revents().is_empty() {
                return Ok(None);
            }
            self.write_some(&mut left)?;
            self.read_some()?;
        }
    }

    fn write_some(&mut self, left: &mut &[u8]) -> Result<(), String> {
        if left.is_empty() {
            return Ok(());
        }
        match rustix::io::write(&self.input, left) {
            Ok(len) => *left = &left[len..],
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Its last words may be there to be read.
            Err(Errno::PIPE) => *left = &[],
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn read_some(&mut self) -> Result<(), String> {
        let mut bytes = [0; 16 << 10];
        match rustix::io::read(&self.output, &mut bytes) {
            Ok(0) => Err(self.end()),
            Ok(len) => {
                self.unread.extend_from_slice(&bytes[..len]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// How python3 has ended, which has closed its output.
    fn end(&mut self) -> String {
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended its python3 with status {code}"),
                (None, Some(9)) => "has closed its output, or was killed".to_owned(),
                (None, signal) => format!("ended its python3 by signal {}", signal.unwrap_or(0)),
            },
            Err(error) => error.to_string(),
        }
    }
}

/// A view's file, and its python3 while that runs.
pub(super) struct Runner {
    source: Source,
    python: Option<Python>,
    restarts: u32,
    name: String,
    filter: String,
    /// The end that is closed when the view is no longer needed, and its reader's end.
    end: (Option<OwnedFd>, OwnedFd),
}

impl Runner {
    /// Starts the file's view; returns what is wrong with the file otherwise.
    pub(super) fn start(source: Source) -> Result<Runner, String> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let mut runner = Runner {
            source,
            python: None,
            restarts: 0,
            name: String::new(),
            filter: String::new(),
            end: (Some(writer), reader),
        };
        runner.load()?;
        Ok(runner)
    }

    /// The protocol's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The expression that selects its frames.
    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    /// Starts python3 with the file.
    fn load(&mut self) -> Result<(), String> {
        let path = &self.source.path;
        let mut python = Python::start(&self.source)?;
        let file = serde_json::json!({"file": path, "source": self.source.text});
        let file = format!("{file}\n");
        let said = python.exchange(file.as_bytes(), START_TIME_MAX, &self.end.1);
        let said = said.map_err(|why| format!("--view {path}: the file {why}"))?;
        let said = said.unwrap_or_default();
        if let Some(error) = said.error {
            return Err(format!("--view {error}"));
        }
        (self.name, self.filter) = (said.name, said.r#match);
        self.python = Some(python);
        Ok(())
    }

    /// Whether the view is no longer needed.
    fn is_unneeded(&self) -> bool {
        let mut end = [PollFd::new(&self.end.1, PollFlags::IN)];
        poll(&mut end, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The file's name without its folders: a screen has little room.
    fn short_name(&self) -> &str {
        let path = &self.source.path;
        path.rsplit('/').next().unwrap_or(path)
    }

    /// What the view says of a payload.
    fn say(&mut self, payload: &[u8]) -> Said {
        if self.python.is_none() {
            if self.restarts == RESTARTS_MAX {
                let file = self.short_name();
                return Said::Failed(format!(
                    "{file}: off after {RESTARTS_MAX} new starts; mend it, and start weir again"
                ));
            }
            self.restarts += 1;
            if let Err(why) = self.load() {
                return Said::Failed(why);
            }
        }
        let Some(python) = &mut self.python else {
            return Said::Nothing;
        };
        let mut line: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        line.push('\n');
        match python.exchange(line.as_bytes(), FRAME_TIME_MAX, &self.end.1) {
            Ok(Some(line)) => match (line.error, line.none) {
                (Some(error), _) => Said::Failed(error),
                (None, true) => Said::Nothing,
                (None, false) => Said::Fields(line.summary, line.fields),
            },
            Ok(None) => Said::Nothing,
            Err(why) => {
                self.python = None;
                Said::Failed(format!("{}: {why}", self.short_name()))
            }
        }
    }
}

/// The thread of a view; it and its python3 end when this is dropped.
pub(super) struct Worker {
    requests: Option<SyncSender<Request>>,
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread of the view of that number.
    pub(super) fn start(
        mut runner: Runner,
        view: usize,
        answers: Sender<Answer>,
    ) -> io::Result<Worker> {
        let end = runner.end.0.take();
        let (requests, asked) = sync_channel(REQUESTS_MAX);
        let thread = thread::Builder::new().name("view".to_owned());
        let thread = thread.spawn(move || work(runner, view, &asked, &answers))?;
        Ok(Worker {
            requests: Some(requests),
            end,
            thread: Some(thread),
        })
    }

    /// Asks for a payload; returns `false` if too many wait.
    pub(super) fn ask(&self, request: Request) -> bool {
        let requests = self.requests.as_ref();
        requests.is_some_and(|requests| requests.try_send(request).is_ok())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        (self.requests, self.end) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(mut runner: Runner, view: usize, asked: &Receiver<Request>, answers: &Sender<Answer>) {
    while let Ok(request) = asked.recv() {
        if runner.is_unneeded() {
            return;
        }
        let said = runner.say(&request.payload);
        let answer = Answer {
            generation: request.generation,
            number: request.number,
            view,
            said,
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}
