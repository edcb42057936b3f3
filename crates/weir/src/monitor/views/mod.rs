//! Views of protocols in Python: each is one file, which a python3 of its own runs.
//!
//! ```text
//!  frame ─► filter of the file? ─► payload ─► thread ─► python3: driver.py, the file's view()
//!              what is shown ◄─── cache ◄─── answer ◄───┘
//! ```
//!
//! Only frames that are looked at are asked for, and nothing waits for an answer. A file is read once,
//! and runs with the rights of its owner, never with the superuser's. A view that hangs, ends or says
//! too much is ended, and started again at most [`process::RESTARTS_MAX`] times.

mod process;
#[cfg(test)]
mod tests;

use super::filter::Filter;
use crate::error::CliError;
pub(crate) use process::Said;
use process::{Request, Runner, Worker};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use weir_monitor::{StoredFrame, tree};
use weir_wire::LinkType;

/// Most files.
const FILES_MAX: usize = 16;
/// Bytes of a file, at most.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Bytes and number of the answers that are kept: of many more frames than a screen shows.
const KEPT_LEN_MAX: usize = 16 << 20;
const KEPT_MAX: usize = 10_000;
/// The user `nobody` of the distributions: for files of the superuser.
const NOBODY: u32 = 65_534;

/// A file's text, and as whom it runs.
struct Source {
    path: String,
    text: String,
    /// The user and group of its process, if they are not this process's.
    run_as: Option<(u32, u32)>,
}

/// A file that has been read, and its running python3.
struct View {
    name: String,
    filter: Filter,
    worker: Worker,
}

/// What is known of a frame.
#[derive(Default)]
struct Known {
    /// The view that is asked, or has answered.
    view: usize,
    is_asked: bool,
    said: Option<Said>,
    /// No view has anything to say.
    is_over: bool,
}

/// What the views say of a frame.
pub(crate) enum Look<'a> {
    /// Nothing.
    Nothing,
    /// The view of that name has been asked.
    Asked(&'a str),
    /// The view of that name has answered.
    Said(&'a str, &'a Said),
}

/// All views, and their answers of late.
#[derive(Default)]
pub(crate) struct Views {
    views: Vec<View>,
    known: HashMap<u64, Known>,
    known_len: usize,
    answers: Option<Receiver<process::Answer>>,
    /// How often the numbers of frames have begun anew.
    generation: u64,
}

impl Views {
    /// Starts the views of these files; of a folder, of all files in it that end in `.py`.
    pub(crate) fn load(paths: &[PathBuf]) -> Result<Views, CliError> {
        let files = files(paths)?;
        let (put, answers) = channel();
        let mut views = Vec::new();
        for path in files {
            let source = read(&path).map_err(CliError::refused)?;
            let path = source.path.clone();
            let runner = Runner::start(source).map_err(CliError::refused)?;
            let (name, text) = (runner.name().to_owned(), runner.filter().to_owned());
            Filter::check(&text, LinkType::EN10MB)
                .map_err(|error| CliError::refused(format!("{path}: match: {error}")))?;
            let worker = Worker::start(runner, views.len(), put.clone());
            views.push(View {
                name,
                filter: Filter::new(&text),
                worker: worker.map_err(CliError::run)?,
            });
        }
        Ok(Views {
            views,
            answers: Some(answers),
            ..Views::default()
        })
    }

    /// Says what a view says of a frame; asks one that has not been asked.
    pub(crate) fn look(&mut self, kept: &StoredFrame<'_>) -> Look<'_> {
        if self.views.is_empty() {
            return Look::Nothing;
        }
        if self.known.len() >= KEPT_MAX || self.known_len >= KEPT_LEN_MAX {
            self.known.clear();
            self.known_len = 0;
        }
        let known = self.known.entry(kept.number).or_default();
        if known.said.is_none() && !known.is_asked && !known.is_over {
            let (views, generation) = (&mut self.views, self.generation);
            ask(views, known, kept, generation);
        }
        let Some(view) = self.views.get(known.view) else {
            return Look::Nothing;
        };
        match &known.said {
            Some(said) => Look::Said(&view.name, said),
            None if known.is_over => Look::Nothing,
            // Without room for the request it is asked at a later look.
            None => Look::Asked(&view.name),
        }
    }

    /// Takes answers that have come; returns whether any has.
    pub(crate) fn take_answers(&mut self) -> bool {
        let mut has_come = false;
        while let Some(answer) = self.answers.as_ref().and_then(|it| it.try_recv().ok()) {
            has_come = true;
            if answer.generation != self.generation {
                continue;
            }
            let known = self.known.entry(answer.number).or_default();
            known.is_asked = false;
            known.view = answer.view;
            match answer.said {
                Said::Nothing => known.view += 1,
                said => {
                    self.known_len += said.len();
                    known.said = Some(said);
                }
            }
        }
        has_come
    }

    /// Forgets all answers: the numbers of frames begin anew.
    pub(crate) fn restart(&mut self) {
        self.known.clear();
        self.known_len = 0;
        self.generation += 1;
    }
}

/// Asks the next view whose filter accepts the frame.
fn ask(views: &mut [View], known: &mut Known, kept: &StoredFrame<'_>, generation: u64) {
    let payload = payload(kept);
    while let Some(view) = views.get_mut(known.view).filter(|_| !payload.is_empty()) {
        let accepts =
            |filter: &mut Filter| filter.accepts(kept.bytes, kept.meta.len, kept.meta.linktype);
        if accepts(&mut view.filter) {
            // Without room it is asked later.
            known.is_asked = view.worker.ask(Request {
                generation,
                number: kept.number,
                payload: kept.bytes[payload].to_vec(),
            });
            return;
        }
        known.view += 1;
    }
    known.is_over = true;
}

/// Where the bytes lie that a view gets.
pub(crate) fn payload(kept: &StoredFrame<'_>) -> Range<usize> {
    tree::payload(kept.bytes, kept.meta.linktype)
}

/// The files of paths that may be folders, in order.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = |error| CliError::refused(format!("--view {}: {error}", path.display()));
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let entries = entries.flatten().map(|entry| entry.path());
        let is_view = |path: &PathBuf| path.extension().is_some_and(|end| end == "py");
        let mut found: Vec<PathBuf> = entries.filter(is_view).take(FILES_MAX + 1).collect();
        found.sort();
        files.extend(found);
    }
    if files.len() > FILES_MAX {
        let said = format!("--view: more than {FILES_MAX} files: name those that you need");
        return Err(CliError::refused(said));
    }
    Ok(files)
}

/// Reads a file that no other user can have written.
fn read(path: &Path) -> Result<Source, String> {
    let name = path.display();
    let failed = |error: std::io::Error| format!("--view {name}: {error}");
    let mut options = OpenOptions::new();
    // A FIFO without a writer would be waited for.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.read(true).custom_flags(flags).open(path);
    let file = file.map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(format!("--view {name}: this is no file"));
    }
    let (owner, group, mode) = (facts.uid(), facts.gid(), facts.mode());
    let own = rustix::process::geteuid().as_raw();
    if own != 0 && owner != own && owner != 0 {
        return Err(format!(
            "--view {name} belongs to user {owner}, and would run with your rights: look at it, and \
             use a copy of your own"
        ));
    }
    // A group of the same number is the user's own.
    if mode & 0o002 != 0 || mode & 0o020 != 0 && group != owner {
        return Err(format!(
            "--view {name} can be written by other users: chmod go-w {name}"
        ));
    }
    let mut text = String::new();
    let read = file.take(FILE_LEN_MAX + 1).read_to_string(&mut text);
    read.map_err(failed)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(format!("--view {name}: longer than {FILE_LEN_MAX} bytes"));
    }
    let of_owner = if owner == 0 {
        (NOBODY, NOBODY)
    } else {
        (owner, if group == 0 { NOBODY } else { group })
    };
    Ok(Source {
        path: name.to_string(),
        text,
        run_as: (own == 0).then_some(of_owner),
    })
}
