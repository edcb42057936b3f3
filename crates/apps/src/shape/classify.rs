//! The class of a frame, by filters, and its flow, by addresses.

use super::config::{FlowBy, LinkConfig};
use ahash::RandomState;
use std::hash::Hash;
use std::sync::Arc;
use weir_chain::Layers;
use weir_chain::config::ConfigError;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};
use weir_wire::field::read_u16;

/// Finds classes and flows of a link's frames.
pub(super) struct Classifier {
    /// The filters of all classes that have one.
    plan: Plan,
    verdict: Verdict,
    /// The class of frames that no filter accepts.
    rest: usize,
    keys: Vec<FlowBy>,
    /// Peers cannot choose flows that share a number: they do not know the seed.
    hasher: RandomState,
}

impl Classifier {
    pub(super) fn new(config: &LinkConfig, seed: u64) -> Result<Classifier, ConfigError> {
        let mut plan = Plan::new(seed.into());
        for (number, class) in config.classes.iter().enumerate() {
            let Some(program) = &class.filter else {
                continue;
            };
            let bound = plan.bind(Binding {
                filter: Filter::new(Arc::new(program.clone())),
                // The first class whose filter accepts a frame gets it.
                priority: u16::MAX - number as u16,
                copy: false,
                target: Target::Port(0),
                tag: number as u32,
            });
            bound.map_err(|error| ConfigError {
                at: Some(class.at),
                message: error.to_string(),
            })?;
        }
        Ok(Classifier {
            plan,
            verdict: Verdict::new(),
            rest: config.rest,
            keys: config.classes.iter().map(|class| class.by).collect(),
            hasher: RandomState::with_seeds(seed, !seed, seed.rotate_left(32), 1),
        })
    }

    /// The class of a frame of `len` bytes that begins with `bytes`.
    pub(super) fn class(&mut self, bytes: &[u8], len: usize) -> usize {
        if self.plan.is_empty() {
            return self.rest;
        }
        self.plan.run(bytes, len as u32, &mut self.verdict);
        let taker = self.verdict.taker();
        taker.map_or(self.rest, |taker| taker.tag as usize)
    }

    /// A number that frames of the same flow in a class share.
    pub(super) fn flow(&self, class: usize, bytes: &[u8]) -> u64 {
        let by = self.keys[class];
        let Some(layers) = Layers::of(bytes) else {
            return self.of_stations(by, bytes);
        };
        let (src, dst) = layers.addresses(bytes);
        match by {
            FlowBy::None => 0,
            FlowBy::Source => self.hash(src),
            FlowBy::Destination => self.hash(dst),
            FlowBy::Flow => {
                // The fragments of a packet stay together: only the first has ports.
                let has_ports = layers.has_ports() && layers.fragment.is_none();
                let ports = has_ports.then(|| {
                    let at = layers.payload;
                    (read_u16(bytes, at), read_u16(bytes, at + 2))
                });
                self.hash((src, dst, layers.protocol.0, ports))
            }
        }
    }

    /// The same of a frame that is not IP: stations stand for addresses.
    fn of_stations(&self, by: FlowBy, bytes: &[u8]) -> u64 {
        let (dst, src) = (bytes.get(..6), bytes.get(6..12));
        match by {
            FlowBy::None => 0,
            FlowBy::Source => self.hash(src),
            FlowBy::Destination => self.hash(dst),
            FlowBy::Flow => self.hash((src, dst, bytes.get(12..14))),
        }
    }

    fn hash(&self, key: impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }
}
