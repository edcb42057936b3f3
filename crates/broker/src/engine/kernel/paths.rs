//! Paths that check what users send.
//!
//! To make one, a namespace and a pair of devices, takes some ten
//! milliseconds, and so does to end one: that is done on a thread of its own.

use super::system;
use crate::engine::MadePath;
use crate::protocol::{ErrorKind, Refusal};
use rustix::io::write;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use weir_link::bpf::PinFolder;
use weir_link::live::{CheckedPath, PathCounts, PathError, SendRules, close_path};

/// The paths of a network namespace. Ended when this is dropped, unless they
/// are kept.
#[derive(Debug)]
pub(super) struct Paths {
    root: Arc<PinFolder>,
    folder: Arc<PinFolder>,
    pub(super) folder_name: String,
    news: Arc<OwnedFd>,
    all: BTreeMap<String, Arc<CheckedPath>>,
    /// Started when there is something to do.
    thread: Option<Thread>,
    pub(super) is_kept: bool,
}

#[derive(Debug)]
struct Thread {
    jobs: Sender<Job>,
    done: Receiver<(u32, Made)>,
}

type Made = Result<(CheckedPath, MadePath), Refusal>;

enum Job {
    Make {
        token: u32,
        name: String,
        ifindex: u32,
        rules: SendRules,
    },
    Retire(Arc<CheckedPath>),
}

/// What the folders of paths are called, before the namespace's number.
const FOLDER: &str = "paths-";

impl Paths {
    pub(super) fn of(
        root: &Arc<PinFolder>,
        namespace: u64,
        news: &Arc<OwnedFd>,
    ) -> Result<Paths, Refusal> {
        let folder_name = format!("{FOLDER}{namespace}");
        Ok(Paths {
            folder: Arc::new(root.folder(&folder_name).map_err(system)?),
            root: Arc::clone(root),
            folder_name,
            news: Arc::clone(news),
            all: BTreeMap::new(),
            thread: None,
            is_kept: false,
        })
    }

    fn ask(&mut self, job: Job) -> io::Result<()> {
        if self.thread.is_none() {
            self.thread = Some(start(Arc::clone(&self.folder), Arc::clone(&self.news))?);
        }
        // The thread ends only after this end.
        let sent = self.thread.as_ref().map(|thread| thread.jobs.send(job));
        sent.and_then(Result::ok)
            .ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    pub(super) fn make(
        &mut self,
        token: u32,
        ifindex: u32,
        rules: SendRules,
    ) -> Result<(), Refusal> {
        // At most 14 bytes, of which no other path has the same.
        let chance = super::random() as u16;
        let name = format!("w{token:x}-{chance:04x}");
        let job = Job::Make {
            token,
            name,
            ifindex,
            rules,
        };
        self.ask(job).map_err(system)
    }

    pub(super) fn made(&mut self) -> Vec<(u32, Result<MadePath, Refusal>)> {
        let Some(thread) = &self.thread else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (token, made) in thread.done.try_iter() {
            let made = made.map(|(path, made)| {
                self.all.insert(made.name.clone(), Arc::new(path));
                made
            });
            all.push((token, made));
        }
        all
    }

    pub(super) fn adopt(&mut self, name: &str) -> bool {
        match CheckedPath::adopt(name, &self.folder) {
            Ok(Some(path)) if path.is_open().unwrap_or(false) => {
                self.all.insert(name.to_owned(), Arc::new(path));
                true
            }
            _ => false,
        }
    }

    pub(super) fn retire(&mut self, name: &str) {
        if let Some(path) = self.all.get(name) {
            let job = Job::Retire(Arc::clone(path));
            if self.ask(job).is_err() {
                self.end(name);
            }
        }
    }

    /// A device is gone: its path, if it was one's, with it.
    pub(super) fn device_gone(&mut self, name: &str) {
        if self.all.contains_key(name) {
            self.end(name);
        }
    }

    fn end(&mut self, name: &str) {
        let _ = close_path(name, &self.folder);
        self.all.remove(name);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    pub(super) fn counts(&self, name: &str) -> PathCounts {
        let path = self.all.get(name);
        path.map_or_else(PathCounts::default, |path| path.counts())
    }

    /// Ends those of this namespace that are not known.
    pub(super) fn sweep(&self) -> Result<(), PathError> {
        sweep_folder(&self.folder, |name| self.all.contains_key(name))
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        if !self.is_kept {
            // What the thread still makes is ended here too.
            if let Some(Thread { jobs, done }) = self.thread.take() {
                drop(jobs);
                done.iter().for_each(drop);
            }
            let _ = sweep_folder(&self.folder, |_| false);
            let _ = self.root.remove_folder(&self.folder_name);
        }
    }
}

/// Whether a folder of pins is one of paths.
pub(super) fn is_folder(name: &str) -> bool {
    name.starts_with(FOLDER)
}

/// Ends the paths of a folder, but for those; goes on to the end all the
/// same, and gives the first error.
pub(super) fn sweep_folder(
    folder: &PinFolder,
    is_kept: impl Fn(&str) -> bool,
) -> Result<(), PathError> {
    let (pins, _) = folder.list()?;
    let mut result = Ok(());
    for pin in pins {
        let name = pin.strip_suffix("-counts").unwrap_or(&pin);
        if !is_kept(name) {
            result = result.and(close_path(name, folder));
        }
    }
    result
}

/// The thread is in the network namespace of the one that starts it.
fn start(folder: Arc<PinFolder>, news: Arc<OwnedFd>) -> io::Result<Thread> {
    let (jobs, todo) = channel();
    let (tell, done) = channel();
    let thread = std::thread::Builder::new().name("weir-paths".into());
    thread.spawn(move || {
        while let Ok(job) = todo.recv() {
            match job {
                Job::Make {
                    token,
                    name,
                    ifindex,
                    rules,
                } => {
                    let made = make(name, ifindex, &rules, &folder);
                    if tell.send((token, made)).is_err() {
                        return;
                    }
                    let _ = write(&*news, &1u64.to_ne_bytes());
                }
                // Gone already, perhaps, with its user.
                Job::Retire(path) => drop(path.retire()),
            }
        }
    })?;
    Ok(Thread { jobs, done })
}

fn make(name: String, ifindex: u32, rules: &SendRules, folder: &PinFolder) -> Made {
    match CheckedPath::open(&name, ifindex, rules, folder) {
        Ok((path, end)) => Ok((path, MadePath { name, end })),
        Err(error) => Err(Refusal::new(ErrorKind::System, error)),
    }
}
