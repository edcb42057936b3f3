//! Drives the tables with the traffic and counts.

use super::traffic::{Arrival, Model, Users};
use super::{Algorithm, Cost, Settings, SettingsError, Workload};
use crate::pcb::{Bsd, Mtf, Sequent};
use std::net::Ipv4Addr;
use weir_stack::pcb::{InsertError, Key, Key4, PcbId, Table, Weir};

/// The simulated model: the equations' assumptions, or the users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The assumptions of §3.
    Model,
    /// The users of §2, or others.
    Users(Workload),
}

/// Segments before counting starts: by then each user has sent several.
const WARM_UP_EACH: u64 = 8;
/// Segments that are counted, at least.
const COUNTED_MIN: u64 = 100_000;
/// Segments that are counted for each user, at least.
const COUNTED_EACH: u64 = 4;

/// The results of an algorithm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Examined a look-up. Move-to-front's do not include one's own PCB, as
    /// in the paper. [`Workload::Trains`] has no acknowledgments: both are
    /// alike.
    pub cost: Cost,
    /// Look-ups that found their PCB as the first they examined, of all: the
    /// hit ratio.
    pub hits: f64,
    /// Segments counted.
    pub segments: u64,
}

/// Sequent's chains as the equations have them: all of the same length.
struct EvenChains(Vec<Bsd>);

impl EvenChains {
    fn chain(&mut self, key: &Key) -> &mut Bsd {
        let chains = self.0.len() as u32;
        &mut self.0[(user_of(key) % chains) as usize]
    }
}

impl Table for EvenChains {
    fn insert(&mut self, key: Key, pcb: PcbId) -> Result<(), InsertError> {
        self.chain(&key).insert(key, pcb)
    }

    fn remove(&mut self, key: &Key) -> Option<PcbId> {
        self.chain(key).remove(key)
    }

    fn find(&mut self, key: &Key) -> Option<PcbId> {
        self.chain(key).find(key)
    }

    fn len(&self) -> usize {
        self.0.iter().map(Table::len).sum()
    }

    fn examined(&self) -> u64 {
        self.0.iter().map(Table::examined).sum()
    }
}

/// Users of one terminal concentrator, which has one address.
const USERS_AN_ADDRESS: u32 = 64;
const FIRST_ADDRESS: u32 = 0x0a00_0000;
const FIRST_TRANSPORT_PORT: u16 = 1024;

fn key(user: u32) -> Key {
    let address = Ipv4Addr::from_bits(FIRST_ADDRESS + user / USERS_AN_ADDRESS);
    let remote_port = FIRST_TRANSPORT_PORT + (user % USERS_AN_ADDRESS) as u16;
    let local = (Ipv4Addr::new(192, 0, 2, 1), 1521);
    Key::V4(Key4::new(local, (address, remote_port)))
}

fn user_of(key: &Key) -> u32 {
    let Key::V4(key) = key else { return 0 };
    let (address, port) = key.remote();
    (address.to_bits() - FIRST_ADDRESS) * USERS_AN_ADDRESS + u32::from(port - FIRST_TRANSPORT_PORT)
}

fn table(algorithm: Algorithm, method: Method, settings: &Settings) -> Box<dyn Table> {
    let seed = u128::from(settings.seed) << 64 | 0x7063_6221;
    match (algorithm, method) {
        (Algorithm::Bsd, _) => Box::new(Bsd::new()),
        (Algorithm::Mtf, _) => Box::new(Mtf::new()),
        (Algorithm::Sequent, Method::Users(_)) => Box::new(Sequent::new(settings.chains, seed)),
        (Algorithm::Sequent, Method::Model) => {
            let chains = (0..settings.chains.get()).map(|_| Bsd::new());
            Box::new(EvenChains(chains.collect()))
        }
        (Algorithm::Weir, _) => Box::new(Weir::new(seed)),
    }
}

/// Counts of one kind of segment.
#[derive(Clone, Copy, Default)]
struct Count {
    segments: u64,
    examined: u64,
    hits: u64,
}

impl Count {
    fn mean(self) -> f64 {
        self.examined as f64 / self.segments as f64
    }
}

/// PCBs examined that the paper does not count: in the list that moves to the
/// front, one's own (§3.2 counts those before it); and in its model of
/// Sequent's acknowledgments, the cached one that is not it (equation 10
/// leaves it out, where equation 7 counts it).
fn uncounted(algorithm: Algorithm, method: Method, arrival: &Arrival, examined: u64) -> u64 {
    match (algorithm, method) {
        (Algorithm::Mtf, _) => 1,
        (Algorithm::Sequent, Method::Model) if !arrival.entry => u64::from(examined > 1),
        _ => 0,
    }
}

/// Simulates an algorithm; `None` if there are too many users for it, as
/// [`Settings::simulates`] says.
///
/// # Errors
/// If a setting is out of its range.
pub fn simulate(
    algorithm: Algorithm,
    method: Method,
    settings: &Settings,
) -> Result<Option<Measured>, SettingsError> {
    settings.check()?;
    if !settings.simulates(algorithm) {
        return Ok(None);
    }
    let run = match method {
        Method::Users(workload) => run(algorithm, method, settings, Users::new(settings, workload)),
        Method::Model => {
            let all = run(algorithm, method, settings, Model::new(settings));
            match algorithm {
                // Equations 1 and 7 have each segment come from any user
                // alike: entries without acknowledgments between them.
                Algorithm::Bsd | Algorithm::Sequent => {
                    let entries = Model::new(settings).filter(|arrival| arrival.entry);
                    let entries = entries.map(|entry| Arrival {
                        counts: true,
                        ..entry
                    });
                    let entries = run(algorithm, method, settings, entries).entries;
                    Run { entries, ..all }
                }
                Algorithm::Mtf | Algorithm::Weir => all,
            }
        }
    };
    let acknowledgments = match run.acknowledgments.segments {
        0 => run.entries,
        _ => run.acknowledgments,
    };
    let segments = run.entries.segments + run.acknowledgments.segments;
    Ok(Some(Measured {
        cost: Cost {
            entry: run.entries.mean(),
            acknowledgment: acknowledgments.mean(),
        },
        hits: (run.entries.hits + run.acknowledgments.hits) as f64 / segments as f64,
        segments,
    }))
}

/// The counts of one run.
struct Run {
    entries: Count,
    acknowledgments: Count,
}

fn run(
    algorithm: Algorithm,
    method: Method,
    settings: &Settings,
    arrivals: impl Iterator<Item = Arrival>,
) -> Run {
    let mut table = table(algorithm, method, settings);
    for user in 0..settings.users {
        let entered = table.insert(key(user), PcbId(user));
        entered.expect("each user's connection is new");
    }
    let users = u64::from(settings.users);
    let warm_up = WARM_UP_EACH * users;
    let counted = COUNTED_MIN.max(COUNTED_EACH * users);
    let mut run = Run {
        entries: Count::default(),
        acknowledgments: Count::default(),
    };
    let mut before = table.examined();
    for (number, arrival) in (0..warm_up + counted).zip(arrivals) {
        let found = table.find(&key(arrival.user));
        assert_eq!(found, Some(PcbId(arrival.user)), "a table finds its PCBs");
        let examined = table.examined() - before;
        before += examined;
        if arrival.counts && number >= warm_up {
            let count = if arrival.entry {
                &mut run.entries
            } else {
                &mut run.acknowledgments
            };
            count.segments += 1;
            count.examined += examined - uncounted(algorithm, method, &arrival, examined);
            count.hits += u64::from(examined == 1);
        }
    }
    run
}
