//! The threads that wait for the kernel.
//!
//! Inserting a ring into the map of rings, or removing one, waits until no
//! program can be using the old map: 8 to 16 ms, and up to 215 under load.
//! Removals meanwhile are collected into one batch, which waits once: one empty
//! placeholder ring replaces all removed rings, since such a map deletes only
//! one element per call. Programs find an inserted ring from the start of that
//! wait, since its slot belonged to no port before. So the worker reports a
//! ring as soon as a look-up finds it, and the waiting call ends on its own.

use rustix::io::write;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use weir_link::bpf::{BatchError, Map, MapSpec};

/// Largest number of jobs in one batch.
const BATCH_MAX: usize = 1024;

/// Largest number of waiting insert calls, each on a thread of its own, for
/// rings that are already in place.
const MAP_UPDATES_MAX: usize = 32;

/// Interval at which the worker checks whether a ring is in place.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Size of the placeholder ring in bytes: at least a page for every page size.
const PLACEHOLDER_BYTES: u32 = 1 << 16;

/// A job of the worker.
#[derive(Debug)]
pub(super) enum Job {
    /// Make a ring of this size in bytes and insert it at a slot.
    Add { slot: u32, bytes: u32 },
    /// Remove the ring of a slot.
    Remove { slot: u32 },
    /// Report when all frames in transit have passed (grace period).
    Grace { epoch: u64 },
}

/// A finished job.
#[derive(Debug)]
pub(super) enum Done {
    /// The ring is at its slot, or the error.
    Added {
        slot: u32,
        bytes: u32,
        ring: Result<Map, String>,
    },
    /// The slot is free.
    Removed { slot: u32 },
    /// Every frame from before the request has passed.
    Grace { epoch: u64 },
    /// The time of a move has passed.
    Moved(u64),
}

/// The handle of the threads, which end when it is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    adds: Sender<Job>,
    delayed: Sender<Job>,
    done: Receiver<Done>,
    done_tx: Sender<Done>,
    events: Arc<OwnedFd>,
    /// Also held by every thread that makes rings.
    life: Arc<()>,
}

impl Worker {
    /// Starts the threads for a map of rings; they write to `events_fd` when a job
    /// is finished. The slot `spare` belongs to no port.
    pub(super) fn start(rings: Map, spare: u32, events_fd: Arc<OwnedFd>) -> io::Result<Worker> {
        let (tell, done) = channel();
        let rings = Arc::new(rings);
        let (placed, mut puts) = (Arc::clone(&rings), VecDeque::new());
        let nobodys = Map::create("weir_ring", &MapSpec::ring_buf(PLACEHOLDER_BYTES));
        let nobodys = nobodys.map_err(io::Error::other)?;
        let near = || (tell.clone(), Arc::clone(&events_fd));
        let life = Arc::new(());
        let held = Arc::clone(&life);
        Ok(Worker {
            adds: thread("weir-rings", near(), move |jobs| {
                add(&placed, jobs, &mut puts, &held)
            })?,
            delayed: thread("weir-waits", near(), move |jobs| {
                wait(&rings, &nobodys, spare, jobs)
            })?,
            done,
            done_tx: tell,
            events: events_fd,
            life,
        })
    }

    /// A reference that expires when the threads that make rings have ended,
    /// and their rings with them.
    pub(super) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }

    /// Reports `what` after a time.
    pub(super) fn schedule(&self, time: Duration, what: Done) {
        let (tell, events_fd) = (self.done_tx.clone(), Arc::clone(&self.events));
        std::thread::spawn(move || {
            std::thread::sleep(time);
            let _ = tell.send(what);
            let _ = write(&*events_fd, &1u64.to_ne_bytes());
        });
    }

    pub(super) fn submit(&self, job: Job) {
        let jobs = match job {
            Job::Add { .. } => &self.adds,
            Job::Remove { .. } | Job::Grace { .. } => &self.delayed,
        };
        // The threads end only after this sender.
        let _ = jobs.send(job);
    }

    pub(super) fn done(&self) -> impl Iterator<Item = Done> + '_ {
        self.done.try_iter()
    }
}

/// Starts a thread that performs jobs in batches and reports them.
fn thread(
    name: &str,
    (results, events_fd): (Sender<Done>, Arc<OwnedFd>),
    mut work: impl FnMut(Vec<Job>) -> Vec<Done> + Send + 'static,
) -> io::Result<Sender<Job>> {
    let (jobs, todo) = channel();
    Builder::new().name(name.into()).spawn(move || {
        while let Some(batch) = next_batch(&todo) {
            let all_sent = work(batch).into_iter().all(|one| results.send(one).is_ok());
            let _ = write(&*events_fd, &1u64.to_ne_bytes());
            if !all_sent {
                return;
            }
        }
    })?;
    Ok(jobs)
}

/// The pending jobs, up to a bound; `None` at the end.
fn next_batch(todo: &Receiver<Job>) -> Option<Vec<Job>> {
    let mut batch = vec![todo.recv().ok()?];
    while batch.len() < BATCH_MAX {
        match todo.try_recv() {
            Ok(job) => batch.push(job),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    Some(batch)
}

/// A ring and its slot.
#[derive(Debug)]
struct Ring {
    slot: u32,
    bytes: u32,
    /// The kernel's id of the ring's map.
    id: u32,
    map: Map,
}

impl Ring {
    fn new(slot: u32, bytes: u32) -> Result<Ring, String> {
        let map = Map::create("weir_ring", &MapSpec::ring_buf(bytes));
        let map = map.map_err(|error| error.to_string())?;
        let id = map.info().map_err(|error| error.to_string())?.id;
        Ok(Ring {
            slot,
            bytes,
            id,
            map,
        })
    }

    fn is_in(&self, rings: &Map) -> bool {
        let found = rings.lookup(&self.slot.to_ne_bytes());
        found.is_ok_and(|id| id.as_deref() == Some(&self.id.to_ne_bytes()))
    }
}

/// Makes rings and inserts them at their slots.
fn add(
    rings: &Arc<Map>,
    jobs: Vec<Job>,
    puts: &mut VecDeque<JoinHandle<()>>,
    life: &Arc<()>,
) -> Vec<Done> {
    let (mut all, mut made) = (Vec::new(), Vec::new());
    for job in jobs {
        let Job::Add { slot, bytes } = job else {
            continue;
        };
        match Ring::new(slot, bytes) {
            Ok(ring) => made.push(ring),
            Err(error) => all.push(Done::Added {
                slot,
                bytes,
                ring: Err(error),
            }),
        }
    }
    if made.is_empty() {
        return all;
    }
    puts.retain(|put| !put.is_finished());
    if puts.len() >= MAP_UPDATES_MAX
        && let Some(first) = puts.pop_front()
    {
        let _ = first.join();
    }
    let made = Arc::new(made);
    let (sender, results) = channel();
    let (map, placed) = (Arc::clone(rings), Arc::clone(&made));
    let life = Arc::clone(life);
    let put = move || {
        drop(sender.send(put(&map, &placed)));
        drop((placed, life));
    };
    // Without a thread the report never comes, and the receiver sees that.
    puts.extend(Builder::new().name("weir-put".into()).spawn(put));
    let end = placed_or_ended(rings, &made, &results);
    all.extend(made.iter().enumerate().map(|(place, ring)| Done::Added {
        slot: ring.slot,
        bytes: ring.bytes,
        ring: match &end {
            Err((done, error)) if place >= *done => Err(error.clone()),
            _ => ring.map.try_clone().map_err(|error| error.to_string()),
        },
    }));
    all
}

fn put(rings: &Map, made: &[Ring]) -> Result<(), BatchError> {
    let slots = made.iter().flat_map(|ring| ring.slot.to_ne_bytes());
    let fds: Vec<BorrowedFd<'_>> = made.iter().map(|ring| ring.map.as_fd()).collect();
    rings.put_batch(&slots.collect::<Vec<u8>>(), &fds)
}

/// Waits until all rings are in place, or the inserting call has ended. Returns
/// the number of rings in place, and the error of the others.
fn placed_or_ended(
    rings: &Map,
    made: &[Ring],
    results: &Receiver<Result<(), BatchError>>,
) -> Result<(), (usize, String)> {
    // They are inserted in order: once the last is in place, all are.
    while !made.last().is_none_or(|last| last.is_in(rings)) {
        match results.recv_timeout(POLL_INTERVAL) {
            Ok(result) => return result.map_err(|error| (error.done, error.to_string())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err((0, "no thread to put it in place".into()));
            }
        }
    }
    Ok(())
}

/// Removes rings, and waits for frames in transit.
fn wait(rings: &Map, nobodys: &Map, spare: u32, jobs: Vec<Job>) -> Vec<Done> {
    let (mut all, mut removed) = (Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Remove { slot } => removed.push(slot),
            Job::Grace { epoch } => all.push(Done::Grace { epoch }),
            Job::Add { .. } => {}
        }
    }
    if removed.is_empty() {
        // Any change of the map waits for a grace period.
        let _ = rings.put(&spare.to_ne_bytes(), nobodys);
        return all;
    }
    let keys: Vec<u8> = removed.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
    if let Err(error) = rings.put_batch(&keys, &vec![nobodys.as_fd(); removed.len()]) {
        // If the batch stops, remove each ring by itself: some memory may be
        // free again.
        for slot in removed.iter().skip(error.done) {
            let _ = rings.put(&slot.to_ne_bytes(), nobodys);
        }
    }
    all.extend(removed.into_iter().map(|slot| Done::Removed { slot }));
    all
}
