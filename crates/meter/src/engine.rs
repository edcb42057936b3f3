//! The engine: counts every frame for exactly one owner and service.
//!
//! ```text
//!  frame ─► Headers ─► direction ─► owner: session, or unattributed ─► block ─► row (service, direction)
//!                                                                      └─► totals of the link, apart
//! ```
//!
//! An owner's *block* of counters is allocated with its first frame of a period and ends with the
//! period, so what is kept grows with the owners that are active in a period, up to the sessions of
//! the table and the limit of unattributed keys.
//!
//! # Unattributed traffic
//!
//! A frame of no session counts for the key by which a session could have claimed it: the address on
//! the subscribers' side, if any kind of address or prefix is looked up and the frame is IP; else the
//! first of the kinds that are looked up which the frame has; else all such frames together, as an
//! owner without keys. Beyond [`Settings::unattributed_max`] keys in a period, frames of further keys
//! count together as [`OwnerKind::Overflow`].
//!
//! A session that begins, or gains a key, *adopts* the unattributed traffic of that key, or of the
//! addresses in that prefix, of the current period: if adoption is configured and the first such
//! frame is not older than the adoption time. The records are the session's, marked
//! [`Flags::ADOPTED`]. Each key is adopted as a whole or not at all; earlier periods do not change.

use crate::measure::{Measurement, Sample};
use crate::parse::{Addresses, Headers};
use crate::period::{CHUNK_RECORDS, ChunkWriter, Cut, Moment};
use crate::services::{Filters, Services, compile};
use crate::sessions::{Applied, SessionError, Sessions, Slot};
use crate::{
    Chunk, Direction, Flags, Key, KeyKind, Measure, Owner, OwnerKind, SessionEvent, SessionInfo,
    Totals,
};
use ahash::RandomState;
use std::net::IpAddr;
use weir_filter::backend::Runner;
use weir_filter::lang::expr::{self, Names};
use weir_wire::LinkType;

/// Link types for which filters are compiled, at most; on further ones no filter accepts a frame.
pub const LINKTYPES_MAX: usize = 64;

/// The unit in which bytes are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of IP packets: [`Headers::ip_bytes`]; frames without IP count 0.
    #[default]
    Ip,
    /// Bytes of frames: [`Headers::wire_bytes`].
    Wire,
}

/// How the direction of a frame is found if the caller does not give it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Inside {
    /// A frame whose source address is in one of these goes up.
    Prefixes(Vec<Key>),
    /// A frame that this expression accepts goes up.
    From(String),
    /// A frame whose source belongs to a session goes up.
    #[default]
    Sessions,
}

/// The settings of an engine.
#[derive(Debug)]
pub struct Settings {
    /// The counter's name.
    pub counter: String,
    /// The boot epoch of the records.
    pub boot_epoch: u64,
    /// The unit of bytes.
    pub unit: Unit,
    /// How directions are found; a frame that does not go up goes down.
    pub inside: Inside,
    /// Kinds of keys that are looked up.
    pub keys: Vec<KeyKind>,
    /// The services.
    pub services: Services,
    /// The measures beside packets and bytes.
    pub measures: Vec<Box<dyn Measurement>>,
    /// Sessions at most.
    pub capacity: usize,
    /// Keys of unattributed traffic in a period, at most.
    pub unattributed_max: usize,
    /// How old unattributed traffic may be that a session adopts, nanoseconds; 0 for none.
    pub adoption_ns: u64,
    /// Whether each address of [`Inside::Prefixes`] becomes a session of its own with its first
    /// frame, its subscriber being the address.
    pub each_address: bool,
    /// Records of a chunk at most.
    pub chunk_records: usize,
    /// A random number, against keys that are chosen to collide.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            counter: String::from("counter"),
            boot_epoch: 0,
            unit: Unit::Ip,
            inside: Inside::Sessions,
            keys: vec![KeyKind::Ipv4, KeyKind::Ipv6, KeyKind::Prefix],
            services: Services::new(Vec::new()),
            measures: Vec::new(),
            capacity: 1 << 20,
            unattributed_max: 1 << 16,
            adoption_ns: 0,
            each_address: false,
            chunk_records: CHUNK_RECORDS,
            seed: 0,
        }
    }
}

/// A frame to count.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its captured bytes.
    pub bytes: &'a [u8],
    /// Its length on the wire.
    pub wire_len: u32,
    /// Its link type, as [`Engine::prepare`] numbers it.
    pub link: LinkIndex,
    /// Its direction; `None` to have it found by [`Settings::inside`].
    pub direction: Option<Direction>,
    /// The monotonic time, nanoseconds. A time before that of an earlier frame counts as the same.
    pub now_ns: u64,
}

/// The number of a link type in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkIndex(usize);

/// An expression that means nothing on a link type: there it accepts no frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The owner of the expression, as in "service `onnet`".
    pub of: String,
    /// Why it is refused; `None` if there are too many link types.
    pub error: Option<expr::Error>,
}

/// The programs for a link type.
#[derive(Debug)]
struct Link {
    linktype: LinkType,
    filters: Filters,
    inside: Option<Runner>,
}

/// Unattributed traffic of a key.
#[derive(Debug)]
struct Unattributed {
    key: Option<Key>,
    block: Block,
    first_ns: u64,
    adopted_by: Option<Slot>,
}

/// The index of a block of counters plus one; 0 for none.
type Block = u32;

/// The places of owners that always exist in the list of unattributed ones.
const OVERFLOW: usize = 0;
const KEYLESS: usize = 1;

/// Where a measure's words lie in a row, and how many they are.
#[derive(Clone, Copy, Debug)]
struct Words {
    columns: usize,
    column_count: usize,
    state: usize,
    state_count: usize,
}

/// Counts frames.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    sessions: Sessions,
    links: Vec<Link>,
    columns: Vec<Measure>,
    /// For each measure of the settings.
    words: Vec<Words>,
    /// Where the flags lie in a row; the row has none if there is no measure.
    flags_at: usize,
    row_words: usize,
    /// All blocks, one behind the other; each has a row for each service and direction.
    counters: Vec<u64>,
    /// The block of each session.
    blocks: Vec<Block>,
    unattributed: Vec<Unattributed>,
    unattributed_of: hashbrown::HashMap<Key, u32, RandomState>,
    /// Counted apart from rows.
    link: Totals,
    period: u64,
    began: Moment,
    now_ns: u64,
}

impl Engine {
    /// An engine whose first period begins at `began`.
    pub fn new(settings: Settings, began: Moment) -> Engine {
        let mut columns: Vec<Measure> = ["packets", "bytes"]
            .map(|name| Measure {
                name: name.into(),
                additive: true,
            })
            .into();
        let mut words = Vec::new();
        for measure in &settings.measures {
            let own = measure.columns();
            words.push(Words {
                columns: columns.len(),
                column_count: own.len(),
                state: 0,
                state_count: measure.state_words(),
            });
            columns.extend(own);
        }
        let flags_at = columns.len();
        let mut row_words = columns.len() + usize::from(!words.is_empty());
        for words in &mut words {
            words.state = row_words;
            row_words += words.state_count;
        }
        let hash = RandomState::with_seed(settings.seed as usize);
        let mut engine = Engine {
            sessions: Sessions::new(settings.capacity, &settings.keys, settings.seed),
            settings,
            links: Vec::new(),
            columns,
            words,
            flags_at,
            row_words,
            counters: Vec::new(),
            blocks: Vec::new(),
            unattributed: Vec::new(),
            unattributed_of: hashbrown::HashMap::with_hasher(hash),
            link: Totals::default(),
            period: 0,
            began,
            now_ns: began.monotonic_ns,
        };
        engine.forget_unattributed();
        engine
    }

    /// The sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The services.
    pub fn services(&self) -> &Services {
        &self.settings.services
    }

    /// The columns of records.
    pub fn measures(&self) -> &[Measure] {
        &self.columns
    }

    /// Totals of the link in the current period.
    pub fn link(&self) -> Totals {
        self.link
    }

    /// Number of the current period.
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Begin of the current period.
    pub fn began(&self) -> Moment {
        self.began
    }

    /// Prepares for frames of a link type; also returns the expressions that mean nothing there.
    pub fn prepare(&mut self, linktype: LinkType, names: &dyn Names) -> (LinkIndex, Vec<Refusal>) {
        let same = |link: &Link| link.linktype == linktype;
        if let Some(found) = self.links.iter().position(same) {
            return (LinkIndex(found), Vec::new());
        }
        let mut refusals = Vec::new();
        let mut link = Link {
            linktype,
            filters: Filters::default(),
            inside: None,
        };
        if self.links.len() >= LINKTYPES_MAX {
            let of = format!("every expression, for link type {linktype}");
            refusals.push(Refusal { of, error: None });
        } else {
            let (filters, refused) = self.settings.services.compile_each(linktype, names);
            link.filters = filters;
            for (number, error) in refused {
                let of = format!("service `{}`", self.settings.services.list()[number].name);
                refusals.push(Refusal {
                    of,
                    error: Some(error),
                });
            }
            if let Inside::From(text) = &self.settings.inside {
                match compile(text, linktype, names) {
                    Ok(program) => link.inside = Some(Runner::new(program)),
                    Err(error) => refusals.push(Refusal {
                        of: "`from-inside`".into(),
                        error: Some(error),
                    }),
                }
            }
            for measure in &mut self.settings.measures {
                if let Err(error) = measure.prepare(linktype, names) {
                    let name = measure.columns().first().map(|column| column.name.clone());
                    let of = format!("measure `{}`", name.unwrap_or_default());
                    refusals.push(Refusal {
                        of,
                        error: Some(error),
                    });
                }
            }
        }
        self.links.push(link);
        (LinkIndex(self.links.len() - 1), refusals)
    }

    /// Applies an event of a session at `now_ns`, and adopts unattributed traffic.
    ///
    /// # Errors
    /// As [`Sessions::apply`].
    pub fn apply(&mut self, event: &SessionEvent, now_ns: u64) -> Result<Applied, SessionError> {
        self.now_ns = self.now_ns.max(now_ns);
        let applied = self.sessions.apply(event)?;
        self.adopt(&applied);
        Ok(applied)
    }

    /// A session begins or changes without an event, as with a list of subscribers.
    ///
    /// # Errors
    /// As [`Sessions::up`].
    pub fn up(
        &mut self,
        info: &SessionInfo,
        started_unix_ns: i64,
        now_ns: u64,
    ) -> Result<Applied, SessionError> {
        self.now_ns = self.now_ns.max(now_ns);
        let applied = self.sessions.up(info, started_unix_ns)?;
        self.adopt(&applied);
        Ok(applied)
    }

    fn adopt(&mut self, applied: &Applied) {
        let Some(slot) = applied.slot else {
            return;
        };
        if self.settings.adoption_ns == 0 || self.unattributed_of.is_empty() {
            return;
        }
        for gained in &applied.gained {
            if gained.kind() == KeyKind::Prefix {
                let keys = self.unattributed_of.keys();
                let inside = keys.filter(|key| address_of(key).is_some_and(|ip| gained.covers(ip)));
                for key in inside.copied().collect::<Vec<Key>>() {
                    self.adopt_key(&key, slot);
                }
            } else {
                self.adopt_key(gained, slot);
            }
        }
    }

    fn adopt_key(&mut self, key: &Key, slot: Slot) {
        let Some(&index) = self.unattributed_of.get(key) else {
            return;
        };
        let entry = &mut self.unattributed[index as usize];
        if self.now_ns - entry.first_ns <= self.settings.adoption_ns {
            entry.adopted_by = Some(slot);
            self.unattributed_of.remove(key);
        }
    }

    /// Counts a frame.
    ///
    /// # Panics
    /// If the frame's link type is of another engine.
    #[inline]
    pub fn count(&mut self, frame: &Frame<'_>) {
        // Measures calculate with differences of times.
        self.now_ns = self.now_ns.max(frame.now_ns.min(i64::MAX as u64));
        let link = &self.links[frame.link.0];
        let headers = Headers::parse(frame.bytes, frame.wire_len, link.linktype);
        let (direction, owner) = self.attribute(frame, &headers);
        let link = &self.links[frame.link.0];
        let services = &self.settings.services;
        let service =
            link.filters
                .classify(services, headers.transport, frame.bytes, frame.wire_len);
        let bytes = match self.settings.unit {
            Unit::Ip => headers.ip_bytes.into(),
            Unit::Wire => headers.wire_bytes.into(),
        };
        self.link.packets[direction as usize] += 1;
        self.link.bytes[direction as usize] += bytes;
        let linktype = link.linktype;
        let block = match owner {
            Some(slot) => self.block_of(slot),
            None => self.block_of_unattributed(&headers, direction),
        };
        let row = self.row_of(block, service, direction);
        let row = &mut self.counters[row..row + self.row_words];
        row[0] += 1;
        row[1] += bytes;
        if self.words.is_empty() {
            return;
        }
        let sample = Sample {
            now_ns: self.now_ns,
            frame: frame.bytes,
            linktype,
            headers: &headers,
            bytes,
            direction,
            service,
        };
        for (measure, words) in self.settings.measures.iter_mut().zip(&self.words) {
            let (columns, state) = row.split_at_mut(self.flags_at + 1);
            let state_at = words.state - (self.flags_at + 1);
            let flags = measure.add(
                &sample,
                &mut columns[words.columns..][..words.column_count],
                &mut state[state_at..][..words.state_count],
            );
            columns[self.flags_at] |= u64::from(flags.0);
        }
    }

    /// The direction of a frame, and the session that it belongs to.
    #[inline]
    fn attribute(&mut self, frame: &Frame<'_>, headers: &Headers) -> (Direction, Option<Slot>) {
        let up = match (frame.direction, &self.settings.inside) {
            (Some(direction), _) => direction == Direction::Up,
            (None, Inside::Prefixes(prefixes)) => is_in(prefixes, headers, Direction::Up),
            (None, Inside::From(_)) => {
                let filter = self.links[frame.link.0].inside.as_ref();
                filter.is_some_and(|filter| filter.run(frame.bytes, frame.wire_len) != 0)
            }
            (None, Inside::Sessions) => {
                let of_source = self.sessions.owner(headers, Direction::Up);
                if of_source.is_some() {
                    return (Direction::Up, of_source);
                }
                false
            }
        };
        let direction = if up { Direction::Up } else { Direction::Down };
        let owner = self.sessions.owner(headers, direction);
        if owner.is_none() && self.settings.each_address {
            return (direction, self.new_address(headers, direction));
        }
        (direction, owner)
    }

    /// Makes an address of the inside a session.
    #[cold]
    fn new_address(&mut self, headers: &Headers, direction: Direction) -> Option<Slot> {
        let Inside::Prefixes(prefixes) = &self.settings.inside else {
            return None;
        };
        if !is_in(prefixes, headers, direction) {
            return None;
        }
        let address = side(headers.addresses?, direction);
        let info = SessionInfo {
            id: address.to_string(),
            subscriber: address.to_string(),
            keys: vec![key_of(address)],
            ..SessionInfo::default()
        };
        let started = self.began.at(self.now_ns).unix_ns;
        // Without room it stays unattributed.
        let applied = self.sessions.up(&info, started).ok()?;
        let slot = applied.slot?;
        // A kind of address that is not looked up would never be found.
        (self.sessions.of_key(&info.keys[0]) == Some(slot)).then_some(slot)
    }

    #[inline]
    fn block_of(&mut self, slot: Slot) -> Block {
        if let Some(&block) = self.blocks.get(slot as usize)
            && block != 0
        {
            return block;
        }
        let slot = slot as usize;
        if self.blocks.len() <= slot {
            self.blocks.resize(slot + 1, 0);
        }
        let words = self.block_words();
        let block = new_block(&mut self.counters, words);
        self.blocks[slot] = block;
        block
    }

    fn block_of_unattributed(&mut self, headers: &Headers, direction: Direction) -> Block {
        let index = match self.unattributed_key(headers, direction) {
            None => KEYLESS,
            Some(key) => match self.unattributed_of.get(&key) {
                Some(index) => *index as usize,
                None if self.unattributed_of.len() >= self.settings.unattributed_max
                    || self.unattributed.len() > 2 * self.settings.unattributed_max + KEYLESS =>
                {
                    OVERFLOW
                }
                None => self.new_unattributed(key),
            },
        };
        let block_words = self.block_words();
        let entry = &mut self.unattributed[index];
        if entry.block == 0 {
            entry.block = new_block(&mut self.counters, block_words);
        }
        entry.block
    }

    fn new_unattributed(&mut self, key: Key) -> usize {
        let index = self.unattributed.len();
        self.unattributed.push(Unattributed {
            key: Some(key),
            block: 0,
            first_ns: self.now_ns,
            adopted_by: None,
        });
        self.unattributed_of.insert(key, index as u32);
        index
    }

    /// The key that traffic of no session counts for.
    fn unattributed_key(&self, headers: &Headers, direction: Direction) -> Option<Key> {
        let used = |kind| self.sessions.looks_up(kind);
        if let Some(addresses) = headers.addresses
            && (used(KeyKind::Ipv4) || used(KeyKind::Ipv6) || used(KeyKind::Prefix))
        {
            return Some(key_of(side(addresses, direction)));
        }
        let mac = match direction {
            Direction::Up => headers.src_mac,
            Direction::Down => headers.dst_mac,
        };
        let pppoe = headers
            .pppoe
            .filter(|_| used(KeyKind::Pppoe))
            .map(Key::Pppoe);
        let vlan = headers.vlan.filter(|_| used(KeyKind::Vlan));
        let vlan = vlan.map(|(outer, inner)| Key::Vlan(outer, inner));
        let mac = mac.filter(|_| used(KeyKind::Mac)).map(Key::Mac);
        pppoe.or(vlan).or(mac)
    }

    fn block_words(&self) -> usize {
        self.settings.services.len() * 2 * self.row_words
    }

    #[inline]
    fn row_of(&self, block: Block, service: u16, direction: Direction) -> usize {
        let row = usize::from(service) * 2 + direction as usize;
        (block as usize - 1) * self.block_words() + row * self.row_words
    }

    /// Ends the period at `ended`: hands its chunks over, and begins the next one.
    pub fn cut(
        &mut self,
        ended: Moment,
        lost_inside: u64,
        gap_unix_ns: Option<[i64; 2]>,
        emit: &mut dyn FnMut(Chunk),
    ) {
        let cut = Cut {
            period: self.period,
            began: self.began,
            ended,
            link: self.link,
            lost_inside,
            gap_unix_ns,
            interfaces: Vec::new(),
        };
        self.write(&cut, emit);
        self.counters.clear();
        self.blocks.clear();
        self.forget_unattributed();
        self.sessions.release_ended();
        self.link = Totals::default();
        self.period += 1;
        self.began = ended;
        self.now_ns = self.now_ns.max(ended.monotonic_ns);
    }

    fn write(&self, cut: &Cut, emit: &mut dyn FnMut(Chunk)) {
        let settings = &self.settings;
        let mut writer = ChunkWriter::new(
            &settings.counter,
            settings.boot_epoch,
            cut,
            self.columns.clone(),
            settings.services.names(),
            settings.chunk_records,
            emit,
        );
        for (slot, block) in self.blocks.iter().enumerate() {
            if *block != 0 {
                writer.owner(self.session_owner(slot as Slot));
                self.write_block(*block, Flags::default(), &mut writer);
            }
        }
        for entry in self.unattributed.iter().filter(|entry| entry.block != 0) {
            if let Some(slot) = entry.adopted_by {
                writer.owner(self.session_owner(slot));
                self.write_block(entry.block, Flags::ADOPTED, &mut writer);
            }
        }
        for (index, entry) in self.unattributed.iter().enumerate() {
            if entry.block != 0 && entry.adopted_by.is_none() {
                writer.owner(unattributed_owner(index, entry));
                self.write_block(entry.block, Flags::default(), &mut writer);
            }
        }
        writer.finish();
    }

    fn write_block(&self, block: Block, flags: Flags, writer: &mut ChunkWriter<'_>) {
        for service in 0..self.settings.services.len() as u16 {
            for direction in [Direction::Up, Direction::Down] {
                let at = self.row_of(block, service, direction);
                let row = &self.counters[at..at + self.row_words];
                let own = if self.words.is_empty() {
                    Flags::default()
                } else {
                    Flags(row[self.flags_at] as u8)
                };
                let counts = &row[..self.columns.len()];
                writer.record(service, direction, flags.with(own), counts);
            }
        }
    }

    fn session_owner(&self, slot: Slot) -> Owner {
        let session = self.sessions.get(slot);
        let session = session.expect("a session with counters is released after the cut");
        let info = &session.info;
        Owner {
            kind: OwnerKind::Session,
            subscriber: info.subscriber.clone(),
            session: info.id.clone(),
            keys: info.keys.clone(),
            class: info.class.clone(),
            chargeable_user: info.chargeable_user.clone(),
            started_unix_ns: session.started_unix_ns,
            reported: info.reported,
        }
    }

    fn forget_unattributed(&mut self) {
        self.unattributed_of.clear();
        self.unattributed.clear();
        for _ in [OVERFLOW, KEYLESS] {
            self.unattributed.push(Unattributed {
                key: None,
                block: 0,
                first_ns: 0,
                adopted_by: None,
            });
        }
    }
}

fn unattributed_owner(index: usize, entry: &Unattributed) -> Owner {
    let kind = match index {
        OVERFLOW => OwnerKind::Overflow,
        _ => OwnerKind::Unattributed,
    };
    Owner::unattributed(kind, entry.key)
}

fn new_block(counters: &mut Vec<u64>, words: usize) -> Block {
    counters.resize(counters.len() + words, 0);
    (counters.len() / words) as Block
}

/// The address on the subscribers' side.
#[inline]
fn side(addresses: Addresses, direction: Direction) -> IpAddr {
    match (addresses, direction) {
        (Addresses::V4(src, _), Direction::Up) => src.into(),
        (Addresses::V4(_, dst), Direction::Down) => dst.into(),
        (Addresses::V6(src, _), Direction::Up) => src.into(),
        (Addresses::V6(_, dst), Direction::Down) => dst.into(),
    }
}

#[inline]
fn is_in(prefixes: &[Key], headers: &Headers, direction: Direction) -> bool {
    let Some(addresses) = headers.addresses else {
        return false;
    };
    let address = side(addresses, direction);
    prefixes.iter().any(|prefix| prefix.covers(address))
}

fn key_of(address: IpAddr) -> Key {
    match address {
        IpAddr::V4(address) => Key::Ipv4(address),
        IpAddr::V6(address) => Key::Ipv6(address),
    }
}

fn address_of(key: &Key) -> Option<IpAddr> {
    match *key {
        Key::Ipv4(address) => Some(address.into()),
        Key::Ipv6(address) => Some(address.into()),
        _ => None,
    }
}
