//! A process dies after each of its writes in turn, and so does its successor in recovery: no chunk
//! is lost or in two places, and no frame arrives twice.
//!
//! The kernel is a model of a page; rings and memory are real ones.
#![allow(unsafe_code)] // Bytes of chunks that the model's kernel has.

use super::reclaim;
use crate::fault_injection::{crash_after, interleave};
use crate::pool::{Frame, Pool};
use crate::queue::{Consumer, Producer};
use crate::robust_lock::LockOwner;
use crate::umem::{Owner, Umem};
use crate::xsk::{Descriptor, MappedRing, XskRings};
use crate::xsk_queue::XskQueue;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

const CHUNKS: u32 = 40;
const ENTRIES: u32 = 8;
const LINK: u16 = 3;

fn rings(file: &OwnedFd, umem: &Umem) -> XskRings {
    let file = file.as_fd();
    XskRings {
        fill: Producer::new(MappedRing::of_file(file, 0, ENTRIES)),
        rx: Consumer::new(MappedRing::of_file(file, 4096, ENTRIES)),
        tx: Producer::new(MappedRing::of_file(file, 8192, ENTRIES)),
        completion: Consumer::new(MappedRing::of_file(file, 12288, ENTRIES)),
        memory: umem.registered().0,
    }
}

/// Which chunks it has, and which frames it has sent.
struct Kernel {
    umem: Umem,
    fill: Consumer<MappedRing<u64>>,
    rx: Producer<MappedRing<Descriptor>>,
    tx: Consumer<MappedRing<Descriptor>>,
    completion: Producer<MappedRing<u64>>,
    has: BTreeSet<u64>,
    next: u64,
    sent: Vec<u64>,
}

impl Kernel {
    /// A frame of this many pieces comes in, if there are chunks and room.
    fn receive(&mut self, pieces: u32) -> bool {
        let room = self.rx.reserve(pieces).unwrap();
        if self.fill.peek(pieces).unwrap() < pieces || room < pieces {
            return false;
        }
        self.next += 1;
        for piece in 1..=pieces {
            let address = self.fill.take() + 256;
            assert!(self.has.insert(address & !2047), "lent twice: {address:#x}");
            let descriptor = Descriptor {
                address,
                len: 8,
                options: 0,
            };
            // SAFETY: the kernel was lent the chunk.
            let bytes = unsafe { self.umem.bytes(&descriptor) };
            bytes.copy_from_slice(&self.next.to_ne_bytes());
            self.rx.put(descriptor.continued(piece < pieces));
        }
        self.fill.release();
        self.rx.submit();
        true
    }

    /// An entry of the rx ring is the program's once it was taken.
    fn released(&mut self, address: u64) {
        assert!(self.has.remove(&(address & !2047)), "not the kernel's");
    }

    /// Sends what is in the tx ring.
    fn send(&mut self) {
        for _ in 0..self.tx.peek(ENTRIES).unwrap() {
            let piece = self.tx.take();
            // SAFETY: the kernel was given the chunk to send.
            let bytes = unsafe { self.umem.bytes(&piece) };
            let number = u64::from_ne_bytes((&*bytes).try_into().unwrap());
            if !piece.is_continued() {
                self.sent.push(number);
            }
            assert!(!self.has.contains(&(piece.address & !2047)));
            assert_eq!(self.completion.reserve(1).unwrap(), 1);
            self.completion.put(piece.address);
        }
        self.tx.release();
        self.completion.submit();
    }
}

struct Process {
    pool: Rc<Pool>,
    queue: XskQueue,
    number: u16,
}

struct World {
    memory: OwnedFd,
    rings: OwnedFd,
    kernel: RefCell<Kernel>,
    alive: RefCell<BTreeSet<u16>>,
    taken: RefCell<Vec<u64>>,
}

impl World {
    fn new() -> (World, Process) {
        let umem = Umem::create(CHUNKS, 2048).unwrap();
        let memory = umem.as_fd().try_clone_to_owned().unwrap();
        let file = memfd_create("rings", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 16384).unwrap();
        let at = |at| MappedRing::of_file(file.as_fd(), at, ENTRIES);
        let pieces = |at| MappedRing::of_file(file.as_fd(), at, ENTRIES);
        let kernel = Kernel {
            // SAFETY: the kernel's, which keeps to what it is lent.
            umem: unsafe { Umem::open(memory.try_clone().unwrap()).unwrap() },
            fill: Consumer::new(at(0)),
            rx: Producer::new(pieces(4096)),
            tx: Consumer::new(pieces(8192)),
            completion: Producer::new(at(12288)),
            has: BTreeSet::new(),
            next: 0,
            sent: Vec::new(),
        };
        let pool = Pool::new(umem, 1, 2);
        pool.share();
        let mut first = Process::new(pool, &file, 1);
        let world = World {
            memory,
            rings: file,
            kernel: RefCell::new(kernel),
            alive: RefCell::new([1].into()),
            taken: RefCell::default(),
        };
        first.takes(&world, 0);
        (world, first)
    }

    fn join(&self, number: u16) -> Process {
        // SAFETY: all have pools of this crate, and numbers of their own.
        let umem = unsafe { Umem::open(self.memory.try_clone().unwrap()).unwrap() };
        self.alive.borrow_mut().insert(number);
        Process::new(Pool::join(umem, number, 2), &self.rings, number)
    }

    fn is_alive(&self) -> impl Fn(u16) -> bool {
        |number| self.alive.borrow().contains(&number)
    }

    /// Dies, and all that is its own with it.
    fn dies(&self, process: Process) {
        self.alive.borrow_mut().remove(&process.number);
        crash_after(0, || drop(process));
    }
}

impl Process {
    fn new(pool: Rc<Pool>, rings_in: &OwnedFd, number: u16) -> Process {
        let generation = pool.umem().next_generation(number);
        let mut queue = XskQueue::new(rings(rings_in, pool.umem()), &pool, LINK);
        queue.share(LockOwner::new(number, generation));
        Process {
            pool,
            queue,
            number,
        }
    }

    /// Takes frames, and lends chunks.
    fn takes(&mut self, world: &World, most: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !self.queue.lock_rx(world.is_alive()).unwrap() {
            return frames;
        }
        let before = self.queue.peek_position().0;
        while frames.len() < most
            && let Some(frame) = self.queue.take().unwrap()
        {
            frames.push(frame);
        }
        self.queue.release();
        interleave(|| {
            for frame in &frames {
                let number = u64::from_ne_bytes(frame.bytes().try_into().unwrap());
                world.taken.borrow_mut().push(number);
                for piece in 0..frame.frags() {
                    let address = frame.at(piece).address;
                    world.kernel.borrow_mut().released(address);
                }
            }
            assert!(frames.is_empty() || before != self.queue.peek_position().0);
        });
        self.queue.refill().unwrap();
        self.queue.unlock_rx();
        frames
    }

    fn sends(&mut self, world: &World, frames: Vec<Frame>) {
        if !self.queue.lock_tx(world.is_alive()).unwrap() {
            return;
        }
        self.queue.reap().unwrap();
        for frame in frames {
            self.queue.put(frame).unwrap();
        }
        self.queue.submit();
        interleave(|| world.kernel.borrow_mut().send());
        self.queue.reap().unwrap();
        self.queue.unlock_tx();
    }

    /// All that it does, once: a frame is dropped, the others are sent.
    fn turn(&mut self, world: &World) {
        let mut frames = self.takes(world, 3);
        frames.pop();
        self.sends(world, frames);
    }

    fn recovers(&mut self, world: &World, dead: &[u16]) {
        for number in dead {
            let umem = self.pool.umem();
            reclaim(umem, *number, [&mut self.queue], world.is_alive()).unwrap();
        }
    }

    /// Goes on alone, until all is through; then nothing may be missing.
    fn finishes(mut self, world: &World, what: &str) {
        for pieces in [1, 2, 1, 1] {
            let received = world.kernel.borrow_mut().receive(pieces);
            assert!(received, "{what}: the link comes back");
            let frames = self.takes(world, 8);
            assert!(!frames.is_empty(), "{what}");
            self.sends(world, frames);
        }
        let umem = self.pool.umem();
        let census = umem.chunk_counts();
        let places = (census.process, census.tx, census.total());
        assert_eq!(places, (0, 0, CHUNKS), "{what}: {census:?}");
        assert_eq!(census.fill, ENTRIES, "{what}: the fill ring is full");
        let mut sent = world.kernel.borrow().sent.clone();
        let count = sent.len();
        sent.sort_unstable();
        sent.dedup();
        assert_eq!(sent.len(), count, "{what}: sent twice");
        let mut taken = world.taken.borrow().clone();
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), count, "{what}: taken twice");
        assert_eq!(self.queue.ring_errors().invalid, 0, "{what}");
    }
}

/// Chunks in entries that died with their taker have no owner in the model either: entries behind
/// the ring's position are not the kernel's.
fn settle(world: &World, process: &mut Process) {
    assert!(process.queue.lock_rx(world.is_alive()).unwrap());
    process.queue.unlock_rx();
    let mut kernel = world.kernel.borrow_mut();
    let lent = |address: &u64| {
        let chunk = kernel.umem.chunk(*address).unwrap();
        kernel.umem.owner(chunk) == Owner::Fill(LINK)
    };
    let has: BTreeSet<u64> = kernel.has.iter().copied().filter(lent).collect();
    kernel.has = has;
}

fn frames_come(world: &World) {
    let mut kernel = world.kernel.borrow_mut();
    for pieces in [1, 2, 1, 1] {
        assert!(kernel.receive(pieces));
    }
}

/// A world in which process 1 died after this many writes; `None` once it gets
/// to the end of its turn.
fn died_after(writes: u64) -> Option<World> {
    let (world, mut first) = World::new();
    first.turn(&world);
    frames_come(&world);
    let died = crash_after(writes, || first.turn(&world));
    world.dies(first);
    died.then_some(world)
}

#[test]
fn a_process_dies_after_each_of_its_writes() {
    let mut writes = 0;
    while let Some(world) = died_after(writes) {
        let mut second = world.join(2);
        second.recovers(&world, &[1]);
        settle(&world, &mut second);
        second.finishes(&world, &format!("died after {writes} writes"));
        writes += 1;
    }
    println!("died after each of {writes} writes");
    assert!(writes > 40, "{writes}");
}

#[test]
fn the_successor_dies_too_after_each_of_its_writes() {
    let (mut writes, mut worlds) = (0, 0);
    while died_after(writes).is_some() {
        for later in 0.. {
            let world = died_after(writes).expect("as just before");
            let mut second = world.join(2);
            let died = crash_after(later, || {
                // Locks change owners before the check.
                second.turn(&world);
                second.recovers(&world, &[1]);
            });
            world.dies(second);
            let mut third = world.join(3);
            third.recovers(&world, &[1, 2]);
            settle(&world, &mut third);
            let what = format!("died after {writes} writes, then after {later}");
            third.finishes(&world, &what);
            worlds += 1;
            if !died {
                break;
            }
        }
        // All of them takes long in a debug build.
        writes += if cfg!(debug_assertions) { 7 } else { 1 };
    }
    println!("{worlds} pairs of deaths");
    assert!(worlds > 150, "{worlds}");
}

#[test]
fn no_process_takes_what_a_living_process_has() {
    let (world, mut first) = World::new();
    let mut second = world.join(2);
    frames_come(&world);
    assert!(first.queue.lock_rx(world.is_alive()).unwrap());
    assert!(second.takes(&world, 8).is_empty());
    assert!(
        second.queue.lock_tx(world.is_alive()).unwrap(),
        "the other side"
    );
    second.queue.unlock_tx();
    first.queue.unlock_rx();
    let frames = second.takes(&world, 8);
    assert_eq!(frames.len(), 4);
    drop(frames);
    second.finishes(&world, "two live");
}

/// A member that writes what it likes, where it likes.
struct Vandal<'a> {
    world: &'a World,
    seed: u64,
}

impl Vandal<'_> {
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn scribbles(&mut self) {
        for _ in 0..1 + self.random(8) {
            let chunk = self.random(CHUNKS.into()) as u32;
            let owner = match self.random(6) {
                0 | 1 => Owner::Free,
                2 => Owner::Cached(1),
                3 => Owner::Process(1),
                4 => Owner::Fill(LINK),
                _ => Owner::Tx(LINK),
            };
            self.world.kernel.borrow().umem.set_owner(chunk, owner);
        }
        // Positions, and entries that name chunks.
        let ring = 4096 * self.random(4);
        let (at, value) = match self.random(3) {
            0 => (ring + 64 * self.random(2), self.random(16)),
            _ => (
                ring + 128 + 8 * self.random(2 * u64::from(ENTRIES)),
                2048 * self.random(CHUNKS.into()) + 256,
            ),
        };
        rustix::io::pwrite(&self.world.rings, &value.to_ne_bytes(), at).unwrap();
    }
}

/// Every chunk of these frames is in one of them, once, and in no list.
fn check_apart(pool: &Pool, frames: &[Frame], seed: u64) {
    let pieces = frames
        .iter()
        .flat_map(|frame| (0..frame.frags()).map(|piece| frame.at(piece).address));
    let chunks = pieces.map(|address| pool.umem().chunk(address).unwrap());
    let mut all: Vec<u32> = chunks.chain(pool.free_chunks()).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(
        all.len(),
        count,
        "a chunk is in two places, seed {seed:#x}: {all:?}"
    );
}

#[test]
fn no_member_has_a_chunk_handed_out_twice() {
    for seed in 1..=60_u64 {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (world, mut honest) = World::new();
        let mut vandal = Vandal {
            world: &world,
            seed,
        };
        let mut frames: Vec<Frame> = Vec::new();
        for _ in 0..80 {
            vandal.scribbles();
            let queue = &mut honest.queue;
            if queue.lock_rx(|_| true).is_ok_and(|locked| locked) {
                for _ in 0..4 {
                    frames.extend(queue.take().ok().flatten());
                }
                queue.release();
                let _ = queue.refill();
                queue.unlock_rx();
            }
            check_apart(&honest.pool, &frames, seed);
            frames.extend(honest.pool.alloc());
            check_apart(&honest.pool, &frames, seed);
            let queue = &mut honest.queue;
            if queue.lock_tx(|_| true).is_ok_and(|locked| locked) {
                let _ = queue.reap();
                if let Some(frame) = frames.pop() {
                    frames.extend(queue.put(frame).ok().flatten());
                }
                for index in 0..queue.unsubmitted_len().unwrap_or_default() {
                    let _ = queue.unsubmitted_at(index);
                }
                if vandal.random(2) == 0 {
                    let count = queue.unsubmitted_len().unwrap_or_default();
                    queue.pop_unsubmitted(count);
                }
                queue.submit();
                let _ = queue.reclaim_unsent();
                queue.unlock_tx();
            }
            check_apart(&honest.pool, &frames, seed);
            while frames.len() > 6 {
                frames.swap_remove(vandal.random(6) as usize);
            }
        }
    }
}

#[test]
#[should_panic(expected = "memory of another process is joined")]
fn no_process_makes_a_second_pool_of_all_chunks() {
    let umem = Umem::create(CHUNKS, 2048).unwrap();
    let file = umem.as_fd().try_clone_to_owned().unwrap();
    let _pool = Pool::new(umem, 1, 0);
    // SAFETY: what is tested is that no pool comes of it.
    let second = unsafe { Umem::open(file).unwrap() };
    let _ = Pool::new(second, 2, 0);
}
