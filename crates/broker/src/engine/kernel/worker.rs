//! The thread that waits for the kernel.
//!
//! Putting a ring into the map of rings, or taking it out, waits until no
//! program can be using the map as it was: 8 to 16 ms, and up to 215 under
//! load. Whatever has come meanwhile is done in one batch, which waits once.

use rustix::io::write;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;
use weir_link::bpf::{Map, MapSpec};

/// Jobs of one batch.
const BATCH_MAX: usize = 1024;

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

/// The thread's near end. The thread ends with it.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    tell: Sender<Done>,
    news: Arc<OwnedFd>,
}

impl Worker {
    /// Starts the thread, for a map of rings; `news` is written to when
    /// something is done. `spare` is a slot that is no port's.
    pub(super) fn start(rings: Map, spare: u32, news: Arc<OwnedFd>) -> io::Result<Worker> {
        let (jobs, todo) = channel();
        let (tell, done) = channel();
        let near = (tell.clone(), Arc::clone(&news));
        let thread = std::thread::Builder::new().name("weir-rings".into());
        thread.spawn(move || {
            while let Some(batch) = next_batch(&todo) {
                let told = work(&rings, spare, batch)
                    .into_iter()
                    .all(|one| tell.send(one).is_ok());
                let _ = write(&*news, &1u64.to_ne_bytes());
                if !told {
                    return;
                }
            }
        })?;
        let (tell, news) = near;
        Ok(Worker {
            jobs,
            done,
            tell,
            news,
        })
    }

    /// Says so after a time.
    pub(super) fn later(&self, time: Duration, what: Done) {
        let (tell, news) = (self.tell.clone(), Arc::clone(&self.news));
        std::thread::spawn(move || {
            std::thread::sleep(time);
            let _ = tell.send(what);
            let _ = write(&*news, &1u64.to_ne_bytes());
        });
    }

    pub(super) fn ask(&self, job: Job) {
        // The thread ends only after this end.
        let _ = self.jobs.send(job);
    }

    pub(super) fn done(&self) -> impl Iterator<Item = Done> + '_ {
        self.done.try_iter()
    }
}

/// What there is to do, up to a bound; `None` at the end.
fn next_batch(todo: &Receiver<Job>) -> Option<VecDeque<Job>> {
    let mut batch = VecDeque::from([todo.recv().ok()?]);
    while batch.len() < BATCH_MAX {
        match todo.try_recv() {
            Ok(job) => batch.push_back(job),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    Some(batch)
}

fn work(rings: &Map, spare: u32, batch: VecDeque<Job>) -> Vec<Done> {
    let (mut all, mut added, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for job in batch {
        match job {
            Job::Add { slot, bytes } => match Map::create("weir_ring", &MapSpec::ring_buf(bytes)) {
                Ok(ring) => added.push((slot, bytes, ring)),
                Err(error) => all.push(Done::Added {
                    slot,
                    bytes,
                    ring: Err(error.to_string()),
                }),
            },
            Job::Remove { slot } => removed.push(slot),
            Job::Grace { epoch } => all.push(Done::Grace { epoch }),
        }
    }
    let keys: Vec<u8> = added
        .iter()
        .flat_map(|(slot, ..)| slot.to_ne_bytes())
        .collect();
    let fds: Vec<BorrowedFd<'_>> = added.iter().map(|(_, _, ring)| ring.as_fd()).collect();
    let put = if fds.is_empty() {
        Ok(())
    } else {
        rings.put_batch(&keys, &fds)
    };
    if added.is_empty() && removed.is_empty() {
        // Any change waits.
        if let Ok(ring) = Map::create("weir_ring", &MapSpec::ring_buf(1 << 16)) {
            let _ = rings.put(&spare.to_ne_bytes(), &ring);
        }
    }
    let done = put.as_ref().err().map_or(added.len(), |error| error.done);
    for (place, (slot, bytes, ring)) in added.into_iter().enumerate() {
        let ring = match &put {
            Err(error) if place >= done => Err(error.to_string()),
            _ => Ok(ring),
        };
        all.push(Done::Added { slot, bytes, ring });
    }
    if !removed.is_empty() {
        let keys: Vec<u8> = removed.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        // One that is not there stops a batch: then each by itself.
        if rings.delete_batch(&keys).is_err() {
            for slot in &removed {
                let _ = rings.delete(&slot.to_ne_bytes());
            }
        }
        all.extend(removed.into_iter().map(|slot| Done::Removed { slot }));
    }
    all
}
