//! IPsec as a stage: what leaves is protected by ESP as policies say, and what
//! enters has to have been.
//!
//! The stage is the last one before the outside, so that no other stage sees
//! ESP. ESP packets do not go on with the frame that they carry: they are the
//! router's to send (see [`Output::route`]), which finds the way to the peer by
//! the outer destination. No frame that the stage has decided on makes an entry
//! in the kernel.

use crate::batch::{Batch, Output};
use crate::flow::Direction;
use crate::layers::{self, ETHERNET};
use crate::packet::Packet;
use crate::reload::RELOAD_INTERVAL;
use crate::stage::Stage;
use std::collections::VecDeque;
use weir_esp::{Config, ConfigError, Gateway, Inner, Inward, Outward};
use weir_wire::EtherType;
use weir_wire::field::{read_u16, write};

/// Packets of an SPI that is not known yet, at most; the oldest one gives way.
const WAITING_MAX: usize = 256;

/// Time for which such a packet waits for its SA, in ns: a peer uses an SA as soon
/// as it has the last message of the key exchange, and the daemon's news of it are
/// on their way then.
const WAIT: u64 = 250_000_000;

/// Interval at which a new configuration is looked for while packets wait, in ns.
const WAITING_INTERVAL: u64 = 1_000_000;

/// Where another thread puts a new configuration for a running stage.
pub type Reload = crate::Reload<Config>;

/// The stage; see the [module](self).
pub struct Ipsec {
    gateway: Gateway,
    reload: Reload,
    reloads: u64,
    reloads_refused: u64,
    /// When a new configuration is looked for next.
    look_at: u64,
    /// Packets of an SPI that is not known yet, and when they came.
    waiting: VecDeque<(u64, Vec<u8>)>,
    waited: u64,
    waited_in_vain: u64,
}

impl Ipsec {
    /// A stage of this configuration, which takes another one from `reload`.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(config: &Config, reload: Reload, seed: u64) -> Result<Ipsec, ConfigError> {
        Ok(Ipsec {
            gateway: Gateway::new(config, 0, seed)?.with_headroom(ETHERNET),
            reload,
            reloads: 0,
            reloads_refused: 0,
            look_at: 0,
            waiting: VecDeque::new(),
            waited: 0,
            waited_in_vain: 0,
        })
    }

    /// For one link, of the hosts and the peers; see [`Gateway::one_armed`].
    #[must_use]
    pub fn one_armed(mut self) -> Ipsec {
        self.gateway = self.gateway.one_armed();
        self
    }

    /// Takes the new configuration, if there is one; returns whether it did.
    fn look(&mut self, now: u64) -> bool {
        self.look_at = now.saturating_add(RELOAD_INTERVAL);
        let Some(config) = self.reload.take() else {
            return false;
        };
        let is_taken = self.gateway.reload(&config, now).is_ok();
        let count = if is_taken {
            &mut self.reloads
        } else {
            &mut self.reloads_refused
        };
        *count += 1;
        is_taken
    }

    /// Processes a packet that enters. If its SPI is not known and a key exchange
    /// may just have made its SA, it waits.
    fn enter(&mut self, now: u64, packet: &mut [u8]) -> Inward {
        let whole = match self.gateway.inward(now, packet) {
            Inward::NoSa(whole) if self.gateway.is_negotiated() => whole,
            entered => return entered,
        };
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
            self.waited_in_vain += 1;
        }
        let packet = whole.unwrap_or_else(|| packet.to_vec());
        self.waiting.push_back((now, packet));
        self.waited += 1;
        self.look_at = now;
        Inward::Consumed
    }

    /// Tries the packets that wait, in order.
    fn try_waiting(&mut self, now: u64, output: &mut Output) {
        for (came, mut packet) in std::mem::take(&mut self.waiting) {
            match self.gateway.inward(now, &mut packet).into_owned(&packet) {
                Inward::Opened(inner) => output.send(Direction::Inward, frame(&inner)),
                Inward::NoSa(_) => self.waiting.push_back((came, packet)),
                _ => self.waited_in_vain += 1,
            }
        }
    }

    /// Drops the packets that have waited too long.
    fn age(&mut self, now: u64) {
        while let Some((came, _)) = self.waiting.front()
            && now.saturating_sub(*came) >= WAIT
        {
            self.waiting.pop_front();
            self.waited_in_vain += 1;
        }
        if !self.waiting.is_empty() {
            self.look_at = now.saturating_add(WAITING_INTERVAL);
        }
    }
}

/// A frame of an IP packet; the output sets the MAC addresses.
fn frame(packet: &[u8]) -> Vec<u8> {
    let kind = layers::ether_type(packet);
    let mut frame = Vec::with_capacity(ETHERNET + packet.len());
    frame.extend_from_slice(&[0; 12]);
    frame.extend_from_slice(&kind.0.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

/// Makes the packet behind the headroom a frame, as [`frame`] does.
fn framed(mut sealed: Vec<u8>) -> Vec<u8> {
    let kind = layers::ether_type(&sealed[ETHERNET..]);
    write(&mut sealed, ETHERNET - 2, &kind.0.to_be_bytes());
    sealed
}

/// The offset of the IP header, or the outcome of a frame without one: of
/// others, only ARP may pass.
fn ip(packet: &Packet<'_>) -> Result<usize, Option<&'static str>> {
    if let Some(layers) = packet.layers() {
        return Ok(layers.ip);
    }
    let bytes = packet.bytes();
    if bytes.len() >= ETHERNET && EtherType(read_u16(bytes, 12)) == EtherType::ARP {
        Err(None)
    } else {
        Err(Some("not-ip"))
    }
}

impl Stage for Ipsec {
    fn kind(&self) -> &'static str {
        "ipsec"
    }

    fn outward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        let spent = output.spent.drain(..);
        spent.for_each(|frame| self.gateway.recycle(frame));
        for packet in batch.packets() {
            let at = match ip(packet) {
                Ok(at) => at,
                Err(None) => continue,
                Err(Some(reason)) => {
                    packet.drop(reason);
                    continue;
                }
            };
            let gateway = &mut self.gateway;
            match packet.raw(|bytes| gateway.outward(now, &mut bytes[at..])) {
                Outward::Pass => {}
                Outward::Protected(sealed) => {
                    let frames = sealed.into_iter().map(framed);
                    frames.for_each(|frame| output.route(frame));
                    packet.consume();
                }
                Outward::Drop(reason, error) => {
                    packet.drop(reason);
                    if let Some(error) = error {
                        output.send(Direction::Inward, frame(&error));
                    }
                }
            }
        }
    }

    fn inward(&mut self, now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        for packet in batch.packets() {
            let at = match ip(packet) {
                Ok(at) => at,
                Err(None) => continue,
                Err(Some(reason)) => {
                    packet.drop(reason);
                    continue;
                }
            };
            match packet.raw(|bytes| self.enter(now, &mut bytes[at..])) {
                Inward::Pass => {}
                Inward::Opened(Inner::InPlace(len)) => packet.keep(at, len),
                Inward::Opened(Inner::Own(inner)) => {
                    let mut opened = frame(&inner);
                    opened[..12].copy_from_slice(&packet.bytes()[..12]);
                    packet.replace(opened);
                }
                Inward::Consumed => packet.consume(),
                Inward::Drop(reason) => packet.drop(reason),
                Inward::NoSa(_) => packet.drop("no-sa"),
            }
        }
    }

    fn poll(&mut self, now: u64, output: &mut Output) {
        if now >= self.look_at {
            // Without a new configuration an SPI that was not known is still not known.
            if self.look(now) {
                self.try_waiting(now, output);
            }
            self.age(now);
        }
        for packet in self.gateway.poll(now) {
            output.route(frame(&packet));
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let due = self.gateway.next_deadline();
        Some(due.unwrap_or(u64::MAX).min(self.look_at))
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let counters = self.gateway.counters();
        each("sealed", counters.sealed);
        each("sealed_bytes", counters.sealed_bytes);
        each("opened", counters.opened);
        each("opened_bytes", counters.opened_bytes);
        each("bypassed", counters.bypassed);
        each("fragmented", counters.fragmented);
        each("too_big", counters.too_big);
        each("reassembled", counters.reassembled);
        each("path_mtu_lowered", counters.path_mtu_lowered);
        each("keepalives_sent", counters.keepalives_sent);
        each("keepalives_received", counters.keepalives_received);
        each("dummies", counters.dummies);
        each("reloads", self.reloads);
        each("reloads_refused", self.reloads_refused);
        each("refused", counters.refused);
        each("waited", self.waited);
        each("waited_in_vain", self.waited_in_vain);
    }

    fn may_bypass(&self) -> bool {
        false
    }
}
