//! Cached verdicts: an application says of a frame "and the same for its
//! like, until I say otherwise", and the program in the kernel forwards them
//! by itself.
//!
//! An entry ends when it is [forgotten](FastPath::forget), when none of its
//! frames came for as long as its ageing, when a link is untapped, and when
//! the gate shuts: the program died, hung or ended. Nothing is served that
//! was remembered before. While the program sleeps, entries hold for
//! [`LEASE`] without a sign of it.
//!
//! Frames stay in order: an entry takes effect with the first frame that
//! finds none of its link with the application. Where frames come so thickly
//! that there is no such moment within [`PATIENCE`], more than the program can
//! take, those of the entry are held back, and so lost, until the program has
//! sent what it has; both are counted.

use crate::error::TapError;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;
use weir_link::xdp::{FAST_ENTRIES_MAX, Fast, FastAction, FastKey, FastKind, State};
use weir_wire::ethernet::Address;

/// How long entries hold while the program sleeps and gives no sign.
pub const LEASE: Duration = Duration::from_millis(200);

/// How long an entry waits for a moment without frames under way.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// Frames are held back no longer, whatever becomes of those before them.
const HELD_MAX_NS: u64 = 100_000_000;
/// How often ages are looked at: an entry ends that much late at most.
const LOOK_NS: u64 = 50_000_000;
/// How often it is looked whether drivers take redirected frames.
const LOOK_DRIVERS_NS: u64 = 1_000_000_000;
/// How long the kernel may still count for an entry that was ended.
const REST_NS: u64 = 100_000_000;

/// What cached verdicts are for, and how many there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastConfig {
    /// What frames of an entry are alike in; of several kinds, flows come
    /// before addresses, and those before stations.
    pub kinds: &'static [FastKind],
    /// Most entries, up to [`FAST_ENTRIES_MAX`].
    pub entries_max: u32,
}

impl FastConfig {
    /// For these kinds, 8,192 entries.
    pub fn of(kinds: &'static [FastKind]) -> FastConfig {
        FastConfig {
            kinds,
            entries_max: 8192,
        }
    }
}

/// Frames and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Carried {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Carried {
    fn add_assign(&mut self, more: Carried) {
        self.frames += more.frames;
        self.bytes += more.bytes;
    }
}

/// What became of an answer that was to be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remembered {
    /// It is from now on, or was already.
    Yes,
    /// There is no room; counted.
    Full,
    /// The driver of the link that frames are to go out at takes none that
    /// are redirected (a veth whose other end has neither a program at XDP nor
    /// GRO), or the link is not tapped; counted.
    NotByDriver,
    /// The tap has no cached verdicts of that kind.
    NotOfThisKind,
}

/// What has become of cached verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FastCounts {
    /// Entries there are now.
    pub entries: u64,
    /// Entries made.
    pub remembered: u64,
    /// Entries ended because the application said so.
    pub forgotten: u64,
    /// Entries ended for want of frames.
    pub aged: u64,
    /// Entries ended because the gate had shut, or a link was gone.
    pub flushed: u64,
    /// Entries not made for want of room.
    pub full: u64,
    /// Entries not made because of the driver.
    pub not_by_driver: u64,
    /// Entries whose frames were held back before they took effect.
    pub held: u64,
    /// Frames that were held back, and so lost.
    pub held_frames: u64,
    /// What went by all of them.
    pub carried: Carried,
}

/// An entry, as an application sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastEntry {
    /// What its frames are alike in.
    pub key: FastKey,
    /// What becomes of them.
    pub action: FastAction,
    /// What went by it.
    pub carried: Carried,
    /// When a frame went by it last, or it was made (`CLOCK_MONOTONIC`, ns,
    /// as exactly as ages are looked at).
    pub used_at: u64,
}

#[derive(Debug)]
struct Entry {
    slot: u32,
    action: FastAction,
    /// What the slot had counted before.
    base: Carried,
    seen: Carried,
    ageing_ns: u64,
    used_at: u64,
}

/// An entry that has not taken effect.
#[derive(Debug)]
struct Waiting {
    key: FastKey,
    since: u64,
    /// Its frames are held back, until so many were taken from its link.
    held_until: Option<u64>,
}

/// How far the application is with the frames of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Frames taken from its rings, and sent on.
    pub(crate) taken: u64,
    /// Frames that were handed over, if none of them is under way.
    pub(crate) quiet: Option<u64>,
}

/// Who knows of the links' frames.
pub(crate) trait Links {
    /// How far the application is.
    fn progress(&mut self, link: u32) -> Option<Progress>;
    /// How many of the frames that were handed over have arrived, or will.
    fn arriving(&self, link: u32) -> u64;
}

/// A link, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Out {
    ifindex: u32,
    takes: bool,
    carried_in: Carried,
    carried_out: Carried,
}

/// The cached verdicts of a tap.
#[derive(Debug)]
pub struct FastPath {
    kernel: Fast,
    config: FastConfig,
    entries: HashMap<FastKey, Entry>,
    /// Stations of entries, to find those of one that has moved.
    stations: BTreeSet<(Address, FastKey)>,
    /// Entries that have not taken effect.
    waiting: Vec<Waiting>,
    /// Some of them found frames under way.
    is_pressed: bool,
    free: Vec<u32>,
    /// Slots that the kernel may still count in: until when, and of what.
    resting: VecDeque<(u64, FastKey, Entry)>,
    links: Vec<Option<Out>>,
    counts: FastCounts,
    next_look: u64,
    next_drivers: u64,
    now: u64,
    held_frames: u64,
}

impl FastPath {
    pub(crate) fn new(config: FastConfig) -> Result<FastPath, TapError> {
        let entries = config.entries_max;
        if !(1..=FAST_ENTRIES_MAX).contains(&entries) {
            return Err(TapError::Setting {
                what: "a table of cached verdicts",
                value: entries.into(),
                range: "1 to 65536 entries",
            });
        }
        let kernel = Fast::new(config.kinds, entries).map_err(weir_link::xdp::GateError::from)?;
        Ok(FastPath {
            kernel,
            config,
            entries: HashMap::new(),
            stations: BTreeSet::new(),
            waiting: Vec::new(),
            is_pressed: false,
            free: (0..entries).rev().collect(),
            resting: VecDeque::new(),
            links: Vec::new(),
            counts: FastCounts::default(),
            next_look: 0,
            next_drivers: 0,
            now: 0,
            held_frames: 0,
        })
    }

    pub(crate) fn kernel(&self) -> &Fast {
        &self.kernel
    }

    /// A link is tapped.
    pub(crate) fn add_link(&mut self, link: usize, ifindex: u32) {
        while self.links.len() <= link {
            self.links.push(None);
        }
        self.links[link] = Some(Out {
            ifindex,
            takes: takes(ifindex),
            carried_in: Carried::default(),
            carried_out: Carried::default(),
        });
    }

    /// A link is no longer tapped.
    pub(crate) fn remove_link(&mut self, link: usize) {
        let number = link as u32;
        let gone = |key: &FastKey, action: &FastAction| {
            key.link() == number || action.link() == Some(number)
        };
        self.counts.flushed += self.end_if(gone);
        if let Some(place) = self.links.get_mut(link) {
            *place = None;
        }
    }

    /// Has frames of a key go on by themselves, until none came for so long.
    /// What was remembered of the key before, is replaced where it differs.
    pub fn remember(&mut self, key: FastKey, action: FastAction, ageing: Duration) -> Remembered {
        if let Some(known) = self.entries.get(&key) {
            if known.action == action {
                return Remembered::Yes;
            }
            self.forget(&key);
        }
        if !self.config.kinds.contains(&key.kind()) {
            return Remembered::NotOfThisKind;
        }
        let links = [Some(key.link()), action.link()];
        let takes = |link: u32| {
            let out = self.links.get(link as usize).copied().flatten();
            out.is_some_and(|out| out.takes || Some(link) != action.link())
        };
        if !links.into_iter().flatten().all(takes) {
            self.counts.not_by_driver += 1;
            return Remembered::NotByDriver;
        }
        let Some(slot) = self.free.pop() else {
            self.counts.full += 1;
            return Remembered::Full;
        };
        self.kernel.hand_over(slot);
        match self.kernel.insert(&key, slot, &action) {
            Ok(true) => {}
            Ok(false) | Err(_) => {
                self.free.push(slot);
                self.counts.full += 1;
                return Remembered::Full;
            }
        }
        let ageing_ns = u64::try_from(ageing.as_nanos()).unwrap_or(u64::MAX);
        self.kernel
            .set_until(slot, self.now.saturating_add(ageing_ns));
        self.enter(key, action, slot, ageing_ns);
        Remembered::Yes
    }

    fn enter(&mut self, key: FastKey, action: FastAction, slot: u32, ageing_ns: u64) {
        let base = self.counted(slot);
        if let FastKey::Stations { src, dst, .. } = key {
            self.stations.extend([(src, key), (dst, key)]);
        }
        let entry = Entry {
            slot,
            action,
            base,
            seen: base,
            ageing_ns,
            used_at: self.now,
        };
        self.entries.insert(key, entry);
        self.waiting.push(Waiting {
            key,
            since: self.now,
            held_until: None,
        });
        self.is_pressed = true;
        self.counts.remembered += 1;
    }

    fn counted(&self, slot: u32) -> Carried {
        let (frames, bytes) = self.kernel.counted(slot);
        Carried { frames, bytes }
    }

    /// What an entry has carried since it was made.
    fn carried(&self, entry: &Entry) -> Carried {
        let now = self.counted(entry.slot);
        Carried {
            frames: now.frames - entry.base.frames,
            bytes: now.bytes - entry.base.bytes,
        }
    }

    /// Ends an entry: frames that come from now on are the application's.
    /// Tells what went by it; what is in the kernel's hands at this instant
    /// still counts in [`counts`](Self::counts).
    pub fn forget(&mut self, key: &FastKey) -> Option<Carried> {
        let carried = self.end(key)?;
        self.counts.forgotten += 1;
        Some(carried)
    }

    /// Ends all entries for which `which` holds; how many.
    pub fn forget_if(&mut self, which: impl Fn(&FastKey, &FastAction) -> bool) -> u64 {
        let count = self.end_if(which);
        self.counts.forgotten += count;
        count
    }

    /// Ends all entries to or from a station of a VLAN: it has moved.
    pub fn forget_station(&mut self, vlan: u16, station: Address) -> u64 {
        let from = FastKey::Stations {
            link: 0,
            vlan: 0,
            src: Address([0; 6]),
            dst: Address([0; 6]),
        };
        let of_it = self.stations.range((station, from)..);
        let of_it = of_it.take_while(|(other, _)| *other == station);
        let keys: Vec<FastKey> = of_it
            .map(|(_, key)| *key)
            .filter(|key| matches!(key, FastKey::Stations { vlan: v, .. } if *v == vlan))
            .collect();
        let ended = self.end_all(&keys);
        self.counts.forgotten += ended;
        ended
    }

    fn end_if(&mut self, which: impl Fn(&FastKey, &FastAction) -> bool) -> u64 {
        let entries = self.entries.iter();
        let keys: Vec<FastKey> = entries
            .filter(|(key, entry)| which(key, &entry.action))
            .map(|(key, _)| *key)
            .collect();
        self.end_all(&keys)
    }

    fn end_all(&mut self, keys: &[FastKey]) -> u64 {
        keys.iter().filter(|key| self.end(key).is_some()).count() as u64
    }

    fn end(&mut self, key: &FastKey) -> Option<Carried> {
        let entry = self.entries.remove(key)?;
        self.kernel.set_until(entry.slot, 0);
        // It does nothing any more; one that stays in the table takes room.
        let _ = self.kernel.remove(key);
        if let FastKey::Stations { src, dst, .. } = *key {
            self.stations.remove(&(src, *key));
            self.stations.remove(&(dst, *key));
        }
        self.waiting.retain(|waiting| waiting.key != *key);
        let carried = self.carried(&entry);
        self.resting
            .push_back((self.now.saturating_add(REST_NS), *key, entry));
        Some(carried)
    }

    /// The gate has shut: nothing remembered holds any more.
    pub(crate) fn flush(&mut self) {
        self.counts.flushed += self.end_if(|_, _| true);
    }

    /// Looks at ages, now and then. Gives the time until which entries hold
    /// if the program sleeps.
    #[inline]
    pub(crate) fn work(&mut self, now: u64, state: &State) {
        self.now = now;
        state.set_lease(now.saturating_add(LEASE.as_nanos() as u64));
        if now >= self.next_look {
            self.held_frames = state.held();
            self.look(now);
        }
    }

    #[cold]
    fn look(&mut self, now: u64) {
        self.next_look = now + LOOK_NS;
        let mut old = Vec::new();
        for (key, entry) in &mut self.entries {
            let (frames, bytes) = self.kernel.counted(entry.slot);
            let seen = Carried { frames, bytes };
            if seen != entry.seen {
                (entry.seen, entry.used_at) = (seen, now);
                self.kernel
                    .set_until(entry.slot, now.saturating_add(entry.ageing_ns));
            } else if now.saturating_sub(entry.used_at) >= entry.ageing_ns {
                old.push(*key);
            }
        }
        self.counts.aged += self.end_all(&old);
        while self
            .resting
            .front()
            .is_some_and(|(until, ..)| *until <= now)
        {
            if let Some((_, key, entry)) = self.resting.pop_front() {
                let carried = self.carried(&entry);
                self.free.push(entry.slot);
                self.settle(&key, &entry.action, carried);
            }
        }
        if now >= self.next_drivers {
            self.next_drivers = now + LOOK_DRIVERS_NS;
            self.look_at_drivers();
        }
    }

    /// Adds to a link's counts what an entry carried.
    fn settle(&mut self, key: &FastKey, action: &FastAction, carried: Carried) {
        self.counts.carried += carried;
        if let Some(Some(link)) = self.links.get_mut(key.link() as usize) {
            link.carried_in += carried;
        }
        let out = action
            .link()
            .and_then(|out| self.links.get_mut(out as usize));
        if let Some(Some(link)) = out {
            link.carried_out += carried;
        }
    }

    fn look_at_drivers(&mut self) {
        for number in 0..self.links.len() {
            let Some(link) = self.links[number].as_mut() else {
                continue;
            };
            let before = std::mem::replace(&mut link.takes, takes(link.ifindex));
            if before && !link.takes {
                let out = Some(number as u32);
                self.counts.flushed += self.end_if(|_, action| action.link() == out);
            }
        }
    }

    /// Whether entries wait to take effect.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether they do, and it is soon to be looked again.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Has entries take effect, after all has been sent, by how far the
    /// application is with a link.
    #[cold]
    pub(crate) fn arm(&mut self, now: u64, links: &mut impl Links) {
        let kernel = &self.kernel;
        let (entries, counts) = (&self.entries, &mut self.counts);
        let mut is_pressed = false;
        self.waiting.retain_mut(|waiting| {
            let slot = entries.get(&waiting.key).map(|entry| entry.slot);
            let Some(slot) = slot.filter(|slot| !kernel.has_begun(*slot)) else {
                return false;
            };
            is_pressed |= waiting.held_until.is_some();
            let Some(progress) = links.progress(waiting.key.link()) else {
                return true;
            };
            if let Some(target) = waiting.held_until {
                let is_late = now.saturating_sub(waiting.since) > HELD_MAX_NS;
                let is_sent = progress.taken >= target || progress.quiet.is_some() || is_late;
                if is_sent {
                    kernel.begin(slot);
                }
                return !is_sent;
            }
            match progress.quiet {
                Some(handed) => kernel.begin_after(slot, handed),
                None => {
                    is_pressed = true;
                    if now.saturating_sub(waiting.since) > PATIENCE.as_nanos() as u64 {
                        counts.held += 1;
                        kernel.hold(slot);
                        waiting.held_until = Some(links.arriving(waiting.key.link()));
                    }
                }
            }
            true
        });
        self.is_pressed = is_pressed;
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = FastEntry> {
        self.entries.iter().map(|(key, entry)| FastEntry {
            key: *key,
            action: entry.action,
            carried: self.carried(entry),
            used_at: entry.used_at,
        })
    }

    /// One entry.
    pub fn entry(&self, key: &FastKey) -> Option<FastEntry> {
        let entry = self.entries.get(key)?;
        Some(FastEntry {
            key: *key,
            action: entry.action,
            carried: self.carried(entry),
            used_at: entry.used_at,
        })
    }

    /// What has become of all.
    pub fn counts(&self) -> FastCounts {
        let mut counts = self.counts;
        counts.entries = self.entries.len() as u64;
        counts.held_frames = self.held_frames;
        for (_, _, carried) in self.unsettled() {
            counts.carried += carried;
        }
        counts
    }

    /// What came in at a link and what went out there, past the application.
    pub fn link_carried(&self, link: usize) -> (Carried, Carried) {
        let Some(Some(found)) = self.links.get(link) else {
            return <(Carried, Carried)>::default();
        };
        let (mut rx, mut tx) = (found.carried_in, found.carried_out);
        let number = link as u32;
        for (key, action, carried) in self.unsettled() {
            if key.link() == number {
                rx += carried;
            }
            if action.link() == Some(number) {
                tx += carried;
            }
        }
        (rx, tx)
    }

    fn unsettled(&self) -> impl Iterator<Item = (&FastKey, &FastAction, Carried)> {
        let live = self.entries.iter();
        let resting = self.resting.iter().map(|(_, key, entry)| (key, entry));
        live.chain(resting)
            .map(|(key, entry)| (key, &entry.action, self.carried(entry)))
    }

    /// Whether a link takes frames that go on by themselves.
    pub fn takes(&self, link: usize) -> bool {
        let out = self.links.get(link).copied().flatten();
        out.is_some_and(|out| out.takes)
    }
}

fn takes(ifindex: u32) -> bool {
    // A kernel that does not tell checks nothing either: leave it alone.
    weir_link::xdp::takes_redirected(ifindex).unwrap_or(false)
}
