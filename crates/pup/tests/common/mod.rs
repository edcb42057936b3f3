//! Two hosts and a network in virtual time that loses, repeats and reorders Pups,
//! by a seed.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::time::Duration;
use weir_pup::Host;
use weir_wire::rng::SplitMix64;

/// What the network does to each Pup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Pups in 1,000 that are lost.
    pub(crate) loss: u64,
    /// Pups in 1,000 that come twice.
    pub(crate) twice: u64,
    /// Longest delay, in microseconds; a Pup's own is random.
    pub(crate) delay_us: u64,
}

pub(crate) const CALM: Weather = Weather {
    loss: 0,
    twice: 0,
    delay_us: 1,
};
pub(crate) const STORM: Weather = Weather {
    loss: 50,
    twice: 50,
    delay_us: 3000,
};

pub(crate) struct Sim {
    pub(crate) now: Duration,
    pub(crate) weather: Weather,
    pub(crate) hosts: [Host; 2],
    rng: SplitMix64,
    flights: BTreeMap<(Duration, u64), (usize, Vec<u8>)>,
    pub(crate) sent: u64,
}

impl Sim {
    pub(crate) fn new(seed: u64, weather: Weather) -> Sim {
        Sim {
            now: Duration::ZERO,
            weather,
            hosts: [Host::new(1, 2, seed as u32), Host::new(1, 3, !seed as u32)],
            rng: SplitMix64::new(seed),
            flights: BTreeMap::new(),
            sent: 0,
        }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.rng.bits() % limit.max(1)
    }

    /// Sends what a host has to send, at most this many Pups.
    pub(crate) fn transmit(&mut self) {
        for from in 0..2 {
            loop {
                let mut bytes = Vec::new();
                if self.hosts[from]
                    .poll_transmit(self.now, &mut bytes)
                    .is_none()
                {
                    break;
                }
                self.sent += 1;
                let lost = self.below(1000) < self.weather.loss;
                let twice = self.below(1000) < self.weather.twice;
                let copies = if lost { 0 } else { 1 + u64::from(twice) };
                for copy in 0..copies {
                    let delay = Duration::from_micros(1 + self.below(self.weather.delay_us));
                    let key = (self.now + delay, self.sent * 2 + copy);
                    self.flights.insert(key, (1 - from, bytes.clone()));
                }
            }
        }
    }

    /// Goes on to the next thing that happens; `false` if nothing will.
    pub(crate) fn step(&mut self) -> bool {
        self.transmit();
        let flight = self.flights.first_key_value().map(|((time, _), _)| *time);
        let timers = self.hosts.iter().filter_map(Host::next_timeout);
        let Some(next) = timers.chain(flight).min() else {
            return false;
        };
        self.now = self.now.max(next);
        if flight == Some(next) {
            let (_, (to, bytes)) = self.flights.pop_first().unwrap();
            self.hosts[to].handle_bytes(self.now, &bytes);
        } else {
            for host in &mut self.hosts {
                host.handle_timeout(self.now);
            }
        }
        true
    }

    /// Goes on until `done`, or fails.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Sim) -> bool) {
        let end = self.now + Duration::from_secs(3600);
        while !done(self) {
            assert!(self.step(), "{what}: nothing happens any more");
            assert!(self.now < end, "{what}: takes too long");
        }
    }
}
