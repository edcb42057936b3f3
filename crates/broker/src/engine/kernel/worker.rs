//! The threads that wait for the kernel.
//!
//! Putting a ring into the map of rings, or taking it out, waits until no
//! program can be using the map as it was: 8 to 16 ms, and up to 215 under
//! load. Whatever is to be taken out meanwhile is done in one batch, which
//! waits once: one empty ring takes the place of all that go, since a map of
//! this kind empties only one place in a call. A ring that is put in is found
//! by programs from the start of that time, since what was there before it is
//! nobody's: so it is said to be there as soon as a look-up finds it, and the
//! call that waits ends on its own.

use rustix::io::write;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use weir_link::bpf::{BatchError, Map, MapSpec};

/// Jobs of one batch.
const BATCH_MAX: usize = 1024;

/// Calls that wait at one time, each on a thread of its own, for rings that
/// are in their places.
const MAP_UPDATES_MAX: usize = 32;

/// How often it is looked whether a ring is in its place.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Bytes of the ring that stands where nobody's does any more: a page, of
/// whatever size pages are.
const PLACEHOLDER_BYTES: u32 = 1 << 16;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// Make a ring of so many bytes and put it at a slot.
    Add { slot: u32, bytes: u32 },
    /// Take the ring of a slot out.
    Remove { slot: u32 },
    /// Tell when all frames that are under way are through.
    Grace { epoch: u64 },
}

/// What was done.
#[derive(Debug)]
pub(super) enum Done {
    /// The ring is at its slot.
    Added {
        slot: u32,
        bytes: u32,
        ring: Result<Map, String>,
    },
    /// The slot is free.
    Removed { slot: u32 },
    /// Every frame of before is through.
    Grace { epoch: u64 },
    /// The time of a move is over.
    Moved(u64),
}

/// The threads' near end. They end with it.
#[derive(Debug)]
pub(super) struct Worker {
    adds: Sender<Job>,
    delayed: Sender<Job>,
    done: Receiver<Done>,
    done_tx: Sender<Done>,
    events: Arc<OwnedFd>,
    /// Held by every thread that makes rings, too.
    life: Arc<()>,
}

impl Worker {
    /// Starts the threads, for a map of rings; `events` is written to when
    /// something is done. `spare` is a slot that is no port's.
    pub(super) fn start(rings: Map, spare: u32, news: Arc<OwnedFd>) -> io::Result<Worker> {
        let (tell, done) = channel();
        let rings = Arc::new(rings);
        let (placed, mut puts) = (Arc::clone(&rings), VecDeque::new());
        let nobodys = Map::create("weir_ring", &MapSpec::ring_buf(PLACEHOLDER_BYTES));
        let nobodys = nobodys.map_err(io::Error::other)?;
        let near = || (tell.clone(), Arc::clone(&news));
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
            events: news,
            life,
        })
    }

    /// Is gone when the threads that make rings have ended, and their rings
    /// with them.
    pub(super) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }

    /// Says so after a time.
    pub(super) fn schedule(&self, time: Duration, what: Done) {
        let (tell, news) = (self.done_tx.clone(), Arc::clone(&self.events));
        std::thread::spawn(move || {
            std::thread::sleep(time);
            let _ = tell.send(what);
            let _ = write(&*news, &1u64.to_ne_bytes());
        });
    }

    pub(super) fn submit(&self, job: Job) {
        let jobs = match job {
            Job::Add { .. } => &self.adds,
            Job::Remove { .. } | Job::Grace { .. } => &self.delayed,
        };
        // The threads end only after this end.
        let _ = jobs.send(job);
    }

    pub(super) fn done(&self) -> impl Iterator<Item = Done> + '_ {
        self.done.try_iter()
    }
}

/// A thread that does what it is asked for, in batches, and tells.
fn thread(
    name: &str,
    (tell, news): (Sender<Done>, Arc<OwnedFd>),
    mut work: impl FnMut(Vec<Job>) -> Vec<Done> + Send + 'static,
) -> io::Result<Sender<Job>> {
    let (jobs, todo) = channel();
    Builder::new().name(name.into()).spawn(move || {
        while let Some(batch) = next_batch(&todo) {
            let told = work(batch).into_iter().all(|one| tell.send(one).is_ok());
            let _ = write(&*news, &1u64.to_ne_bytes());
            if !told {
                return;
            }
        }
    })?;
    Ok(jobs)
}

/// What there is to do, up to a bound; `None` at the end.
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
    /// The kernel's number of it.
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

/// Makes rings and puts them at their slots.
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
    let (tell, told) = channel();
    let (map, placed) = (Arc::clone(rings), Arc::clone(&made));
    let life = Arc::clone(life);
    let put = move || {
        drop(tell.send(put(&map, &placed)));
        drop((placed, life));
    };
    // Without a thread the answer never comes, and says so.
    puts.extend(Builder::new().name("weir-put".into()).spawn(put));
    let end = placed_or_ended(rings, &made, &told);
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

/// Waits until all rings are in their places, or the call that puts them
/// there has ended; gives how many are, and why the others are not.
fn placed_or_ended(
    rings: &Map,
    made: &[Ring],
    told: &Receiver<Result<(), BatchError>>,
) -> Result<(), (usize, String)> {
    // They come in order: the last is there when all are.
    while !made.last().is_none_or(|last| last.is_in(rings)) {
        match told.recv_timeout(POLL_INTERVAL) {
            Ok(result) => return result.map_err(|error| (error.done, error.to_string())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err((0, "no thread to put it in place".into()));
            }
        }
    }
    Ok(())
}

/// Takes rings out, and waits for frames that are under way.
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
        // Any change waits.
        let _ = rings.put(&spare.to_ne_bytes(), nobodys);
        return all;
    }
    let keys: Vec<u8> = removed.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
    if let Err(error) = rings.put_batch(&keys, &vec![nobodys.as_fd(); removed.len()]) {
        // Where a batch stops, each by itself: some memory may be free again.
        for slot in removed.iter().skip(error.done) {
            let _ = rings.put(&slot.to_ne_bytes(), nobodys);
        }
    }
    all.extend(removed.into_iter().map(|slot| Done::Removed { slot }));
    all
}
