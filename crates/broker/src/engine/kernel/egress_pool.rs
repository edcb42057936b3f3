//! Egress paths, which check the frames that users send.
//!
//! Making a path (a namespace and a device pair with an attached check) waits
//! for the kernel: some ten milliseconds, and up to 140 under load. A separate
//! thread makes paths in advance: for each kind in use there is one spare path,
//! so that a port that begins to send does not wait.
//!
//! ```text
//!  prepare ─► being made ─► spare ──► make: there at once, and another begun
//!                 └───────────────► make has been waiting for it
//! ```

use super::system;
use crate::engine::MadePath;
use crate::interface::{InterfaceInfo, is_path, path_name};
use crate::protocol::{ErrorKind, Refusal};
use rustix::io::write;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use weir_link::bpf::PinFolder;
use weir_link::live::Privileged;
use weir_link::live::{EgressCounts, EgressError, EgressPath, EgressRules, close_egress};

/// The egress paths of a network namespace. Dropping the pool ends them, unless
/// they are handed over.
#[derive(Debug)]
pub(super) struct EgressPool {
    root: Arc<PinFolder>,
    folder: Arc<PinFolder>,
    pub(super) folder_name: String,
    events: Arc<OwnedFd>,
    privileged: Arc<Privileged>,
    all: BTreeMap<String, Arc<EgressPath>>,
    /// Classes of paths, the most recently requested last.
    classes: Vec<EgressClass>,
    /// The names of the paths that the thread was asked for, including those of
    /// classes that were given up: their devices may exist already.
    in_flight: BTreeSet<String>,
    ready: Vec<(u32, Result<MadePath, Refusal>)>,
    /// Started with the first request.
    thread: Option<Thread>,
    pub(super) is_kept: bool,
}

/// Number of classes with a spare path, and of paths under construction beyond
/// which no spare path is made. Each path takes 2 or 4 MiB.
const KINDS_MAX: usize = 8;

/// The properties that make paths interchangeable.
#[derive(Clone, PartialEq, Eq, Debug)]
struct EgressKey {
    ifindex: u32,
    /// The MTU of the interface and of the path's devices.
    mtu: u32,
    rules: EgressRules,
}

impl EgressKey {
    fn of(facts: &InterfaceInfo, rules: EgressRules) -> EgressKey {
        EgressKey {
            ifindex: facts.ifindex,
            mtu: facts.mtu,
            rules,
        }
    }
}

/// A class of interchangeable paths.
#[derive(Debug)]
struct EgressClass {
    key: EgressKey,
    /// Tokens of the requests that wait for a path.
    waiters: VecDeque<u32>,
    /// Number of paths that the thread was asked for.
    ordered: usize,
    /// A spare path, which belongs to no port.
    spare: Option<MadePath>,
}

#[derive(Debug)]
struct Thread {
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

struct Done {
    name: String,
    key: EgressKey,
    made: Made,
}

type Made = Result<(EgressPath, MadePath), Refusal>;

enum Job {
    Make { name: String, like: EgressKey },
    Retire(Arc<EgressPath>),
    End(MadePath),
}

/// The prefix of the pin folders' names; the namespace's number follows.
const FOLDER: &str = "paths-";

impl EgressPool {
    pub(super) fn of(
        root: &Arc<PinFolder>,
        namespace: u64,
        events_fd: &Arc<OwnedFd>,
        privileged: &Arc<Privileged>,
    ) -> Result<EgressPool, Refusal> {
        let folder_name = format!("{FOLDER}{namespace}");
        Ok(EgressPool {
            folder: Arc::new(root.folder(&folder_name).map_err(system)?),
            root: Arc::clone(root),
            folder_name,
            events: Arc::clone(events_fd),
            privileged: Arc::clone(privileged),
            all: BTreeMap::new(),
            classes: Vec::new(),
            in_flight: BTreeSet::new(),
            ready: Vec::new(),
            thread: None,
            is_kept: false,
        })
    }

    fn request(&mut self, job: Job) -> io::Result<()> {
        if self.thread.is_none() {
            let (folder, events) = (Arc::clone(&self.folder), Arc::clone(&self.events));
            self.thread = Some(start(folder, events, Arc::clone(&self.privileged))?);
        }
        // The thread ends only after this sender.
        let sent = self.thread.as_ref().map(|thread| thread.jobs.send(job));
        sent.and_then(Result::ok)
            .ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Has a spare path made for a port that may send; if too many are under
    /// construction, the path is made on demand.
    pub(super) fn prepare(
        &mut self,
        facts: &InterfaceInfo,
        rules: EgressRules,
    ) -> Result<(), Refusal> {
        if self.in_flight.len() >= KINDS_MAX {
            return Ok(());
        }
        let at = self.kind(EgressKey::of(facts, rules));
        self.order(at)
    }

    /// Assigns a path to the request with this token, or has one made.
    pub(super) fn make(
        &mut self,
        token: u32,
        facts: &InterfaceInfo,
        rules: EgressRules,
    ) -> Result<(), Refusal> {
        let at = self.kind(EgressKey::of(facts, rules));
        match self.classes[at].spare.take() {
            Some(made) => {
                self.ready.push((token, Ok(made)));
                // The spare path for the next request, which reports the error
                // if it fails.
                let _ = self.order(at);
                Ok(())
            }
            None => {
                self.classes[at].waiters.push_back(token);
                let ordered = self.order(at);
                ordered.inspect_err(|_| self.classes[at].waiters.retain(|one| *one != token))
            }
        }
    }

    /// Cancels the request with this token. A path under construction for it
    /// goes to the next request: so an application that requests and closes
    /// repeatedly cannot have more paths made than it waits for at a time.
    pub(super) fn cancel(&mut self, token: u32) {
        for kind in &mut self.classes {
            kind.waiters.retain(|one| *one != token);
        }
    }

    /// The index of a class, which moves to the end. Beyond the limit, the
    /// least recently requested class with no path under construction is given
    /// up.
    fn kind(&mut self, like: EgressKey) -> usize {
        let known = self.classes.iter().position(|kind| kind.key == like);
        let kind = match known {
            Some(at) => self.classes.remove(at),
            None => EgressClass {
                key: like,
                waiters: VecDeque::new(),
                ordered: 0,
                spare: None,
            },
        };
        self.classes.push(kind);
        if self.classes.len() > KINDS_MAX {
            let is_idle = |kind: &EgressClass| kind.waiters.is_empty() && kind.ordered == 0;
            let idle = self.classes.iter().position(is_idle);
            let idle = idle.filter(|at| *at + 1 < self.classes.len());
            if let Some(spare) = idle.and_then(|at| self.classes.remove(at).spare) {
                self.close(spare);
            }
        }
        self.classes.len() - 1
    }

    /// Has as many paths of a class made as requests wait for, and a spare one.
    fn order(&mut self, at: usize) -> Result<(), Refusal> {
        let kind = &self.classes[at];
        let like = kind.key.clone();
        let ahead = kind.spare.is_none() && self.in_flight.len() < KINDS_MAX;
        let wanted = kind.waiters.len() + usize::from(ahead);
        for _ in kind.ordered..wanted {
            let name = path_name(super::random() as u64);
            let like = like.clone();
            let job = Job::Make {
                name: name.clone(),
                like,
            };
            self.request(job).map_err(system)?;
            self.classes[at].ordered += 1;
            self.in_flight.insert(name);
        }
        Ok(())
    }

    pub(super) fn made(&mut self) -> Vec<(u32, Result<MadePath, Refusal>)> {
        let done = self.thread.iter().flat_map(|thread| thread.done.try_iter());
        for Done {
            name,
            key: like,
            made,
        } in done.collect::<Vec<_>>()
        {
            self.in_flight.remove(&name);
            let made = made.map(|(path, made)| {
                self.all.insert(made.name.clone(), Arc::new(path));
                made
            });
            let kind = self.classes.iter_mut().find(|kind| kind.key == like);
            if let Some(kind) = kind {
                // Some may belong to a class that was given up.
                kind.ordered = kind.ordered.saturating_sub(1);
                if let Some(token) = kind.waiters.pop_front() {
                    self.ready.push((token, made));
                    continue;
                }
                // The next request for a path gets the error.
                if kind.spare.is_none() {
                    kind.spare = made.ok();
                    continue;
                }
            }
            // No request needs the path any more.
            if let Ok(made) = made {
                self.close(made);
            }
        }
        std::mem::take(&mut self.ready)
    }

    /// Ends the spare paths of an interface.
    pub(super) fn end_spares(&mut self, ifindex: u32) {
        let of = |kind: &mut EgressClass| kind.key.ifindex == ifindex;
        let gone: Vec<EgressClass> = self.classes.extract_if(.., of).collect();
        let spares = gone.into_iter().filter_map(|kind| kind.spare);
        spares.for_each(|spare| self.close(spare));
    }

    /// Ends a path that belongs to no port.
    fn close(&mut self, spare: MadePath) {
        self.all.remove(&spare.name);
        // Without a thread the path goes with its socket, and its pins with the
        // next sweep.
        let _ = self.request(Job::End(spare));
    }

    pub(super) fn adopt(&mut self, name: &str) -> bool {
        match EgressPath::adopt(name, &self.folder) {
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
            if self.request(job).is_err() {
                self.end(name);
            }
        }
    }

    /// Forgets the path whose device is gone, if it was one.
    pub(super) fn device_gone(&mut self, name: &str) {
        if self.all.contains_key(name) {
            self.end(name);
        }
    }

    fn end(&mut self, name: &str) {
        let _ = close_egress(name, &self.folder);
        self.all.remove(name);
        for kind in &mut self.classes {
            kind.spare.take_if(|spare| spare.name == name);
        }
    }

    /// Whether a path of that name exists or is under construction.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all.contains_key(name) || self.in_flight.contains(name)
    }

    pub(super) fn counts(&self, name: &str) -> EgressCounts {
        let path = self.all.get(name);
        path.map_or_else(EgressCounts::default, |path| path.counts())
    }

    /// Ends the paths of this namespace that the pool does not know.
    pub(super) fn sweep(&self) -> Result<(), EgressError> {
        sweep_folder(&self.folder, |name| self.all.contains_key(name))
    }
}

impl Drop for EgressPool {
    fn drop(&mut self) {
        for kind in std::mem::take(&mut self.classes) {
            kind.spare.into_iter().for_each(|spare| self.close(spare));
        }
        if !self.is_kept {
            // Paths that the thread is still making end here, too.
            if let Some(Thread { jobs, done }) = self.thread.take() {
                drop(jobs);
                done.iter().for_each(drop);
            }
            let _ = sweep_folder(&self.folder, |_| false);
            let _ = self.root.remove_folder(&self.folder_name);
        }
    }
}

/// Whether a pin folder's name is that of egress paths.
pub(super) fn is_folder(name: &str) -> bool {
    name.starts_with(FOLDER)
}

/// Ends the paths of a folder, except those that `is_kept` selects. Continues
/// after an error, and returns the first one.
pub(super) fn sweep_folder(
    folder: &PinFolder,
    is_kept: impl Fn(&str) -> bool,
) -> Result<(), EgressError> {
    let (pins, _) = folder.list()?;
    let mut result = Ok(());
    for pin in pins {
        let name = pin.strip_suffix("-counts").unwrap_or(&pin);
        if is_kept(name) {
            continue;
        }
        // No other device is removed, whatever a pin was renamed to.
        let ended = if is_path(name) {
            close_egress(name, folder)
        } else {
            folder.unpin(&pin).map(drop).map_err(EgressError::from)
        };
        result = result.and(ended);
    }
    result
}

/// Starts the thread in the network namespace of the calling thread.
fn start(
    folder: Arc<PinFolder>,
    events_fd: Arc<OwnedFd>,
    privileged: Arc<Privileged>,
) -> io::Result<Thread> {
    let (jobs, todo) = channel();
    let (tell, done) = channel();
    let thread = std::thread::Builder::new().name("weir-paths".into());
    thread.spawn(move || {
        while let Ok(job) = todo.recv() {
            match job {
                Job::Make { name, like } => {
                    let made = make(name.clone(), &like, &folder, &privileged);
                    if tell
                        .send(Done {
                            name,
                            key: like,
                            made,
                        })
                        .is_err()
                    {
                        return;
                    }
                    let _ = write(&*events_fd, &1u64.to_ne_bytes());
                }
                Job::End(spare) => drop(close_egress(&spare.name, &folder)),
                // The path may be gone already, with its user.
                Job::Retire(path) => drop(path.retire()),
            }
        }
    })?;
    Ok(Thread { jobs, done })
}

fn make(name: String, like: &EgressKey, folder: &PinFolder, privileged: &Privileged) -> Made {
    match EgressPath::open(&name, like.ifindex, &like.rules, folder, privileged) {
        Ok((path, end)) => Ok((path, MadePath { name, end })),
        Err(error) => Err(Refusal::new(ErrorKind::System, error)),
    }
}

#[cfg(test)]
mod tests;
