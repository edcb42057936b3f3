//! Listeners: segments without a connection, and connections that are not yet accepted
//! (RFC 9293 §3.10.7.1, §3.10.7.2; RFC 4987).

pub(super) mod bind;
pub(super) mod fastopen;
pub(super) mod handshake;

use super::connections::{CONNECTIONS_MAX, send};
use super::input::{Arrived, Effect, PEER_MSS_MIN, peer_mss};
use super::pcb::Pcb;
use super::seq::Seq;
use super::{ListenerId, Tcp, TcpId, TcpOptions};
use crate::iface::{DropReason, Incoming, Interface};
use crate::links::Interfaces;
use crate::slab::Handle;
use fastopen::{TfoConnect, TfoDecision};
use handshake::{CookieOptions, SYN_QUEUE_ALL_MAX, SYN_QUEUE_MAX};
use std::net::SocketAddr;
use weir_wire::tcp::{Flags, Options, Repr};

impl Tcp {
    /// Processes a segment without a connection (RFC 9293 §3.10.7.2; §3.10.7.1 without a listener).
    pub(super) fn arrives_at_listener(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        incoming: &Incoming<'_>,
        ends: &(SocketAddr, SocketAddr),
        arrived: &Arrived<'_>,
    ) -> Result<(), DropReason> {
        let Some(name) = self.lookup_listener(&ends.0, &ends.1) else {
            self.send_rst(now_ns, host, incoming, arrived);
            return Err(DropReason::SegmentRefused);
        };
        if arrived.has(Flags::RST) {
            return Err(DropReason::SegmentRefused);
        }
        if arrived.has(Flags::ACK) {
            let taken = self.take_cookie(now_ns, host, name, *ends, arrived);
            if taken == Err(DropReason::SegmentRefused) {
                self.send_rst(now_ns, host, incoming, arrived);
            }
            return taken;
        }
        // No host sends a SYN with a FIN: it is dropped, as by Linux.
        if !arrived.has(Flags::SYN) || arrived.has(Flags::FIN) {
            return Err(DropReason::SegmentRefused);
        }
        if peer_mss(&arrived.repr.options) < PEER_MSS_MIN {
            self.send_rst(now_ns, host, incoming, arrived);
            return Err(DropReason::SegmentRefused);
        }
        let left = self.memory_available();
        let is_full = self.connections() >= CONNECTIONS_MAX;
        let listener = self.listeners.get_mut(name).expect("it was found");
        let options = listener.options;
        if listener.accept_queue.len() >= listener.backlog {
            return Err(DropReason::BacklogFull);
        }
        let flooded = listener.half_open >= SYN_QUEUE_MAX || self.half_open >= SYN_QUEUE_ALL_MAX;
        if flooded || is_full {
            listener.cookie_ns = Some(now_ns);
            self.send_cookie(now_ns, host, options, *ends, arrived);
            return Ok(());
        }
        let judged = listener.decide(ends.0.ip(), ends.1.ip(), arrived);
        let taken = matches!(judged, TfoDecision::Taken);
        let (kept, config, secret) = (self.pcb_cache.get(), &self.config, &self.secret);
        let mut pcb = Pcb::connecting(kept, config, secret, host, now_ns, ends);
        pcb.set_options(options);
        pcb.answer(now_ns, arrived);
        pcb.arm();
        pcb.opening.listener = Some(name);
        pcb.receive.set_memory(left);
        match judged {
            TfoDecision::Plain => {}
            TfoDecision::Cookie(cookie) => {
                pcb.opening.tfo = Some(Box::new(TfoConnect::with(cookie)))
            }
            TfoDecision::Taken => pcb.accept_early_data(now_ns, arrived, name),
        }
        pcb.opening.is_half_open = !taken;
        self.half_open += usize::from(!taken);
        listener.half_open += usize::from(!taken);
        listener.tfo_pending += usize::from(taken);
        let connection = self.enter(now_ns, pcb);
        if taken {
            self.queue(name, connection);
        }
        Ok(())
    }

    /// Records that a connection is open: its listener or its opener is notified.
    pub(super) fn opened(&mut self, now_ns: u64, host: &mut Interface, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name) else {
            return;
        };
        let Some(listener_name) = pcb.opening.listener else {
            return;
        };
        self.half_open -= usize::from(std::mem::take(&mut pcb.opening.is_half_open));
        let Some(listener) = self.listeners.get_mut(listener_name) else {
            // The listener was closed meanwhile: no application will get the connection.
            pcb.user.orphaned = true;
            self.abort(now_ns, host, name, None);
            return;
        };
        listener.half_open -= 1;
        self.queue(listener_name, name);
    }

    /// Adds a connection to a listener's accept queue.
    fn queue(&mut self, listener_name: Handle, name: Handle) {
        let Some(listener) = self.listeners.get_mut(listener_name) else {
            return;
        };
        listener.accept_queue.push_back(TcpId(name));
        if !std::mem::replace(&mut listener.in_notify_queue, true) {
            self.listener_notify_queue.push_back(listener_name);
        }
    }

    /// Answers a SYN by a SYN cookie, without state.
    pub(super) fn send_cookie(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: TcpOptions,
        (local, remote): (SocketAddr, SocketAddr),
        syn: &Arrived<'_>,
    ) {
        host.counters.cookies_out += 1;
        let remembered = CookieOptions::of(syn, &self.config);
        let (kept, config, secret) = (self.pcb_cache.get(), &self.config, &self.secret);
        let ends = (local, remote);
        let mut pcb = Pcb::connecting(kept, config, secret, host, now_ns, &ends);
        pcb.set_options(out);
        pcb.answer(now_ns, syn);
        let cookie = self
            .secret
            .cookie(now_ns, local, remote, syn.seq, remembered.mss);
        let timestamps = pcb.negotiated.timestamps.map(|ours| {
            (
                remembered.timestamp(pcb.negotiated.clock(now_ns)),
                ours.recent,
            )
        });
        // Without timestamps, the cookie encodes the segment size alone.
        let keeps = timestamps.is_some();
        let options = Options {
            mss: Some(pcb.segment_size.advertised),
            window_scale: remembered
                .scale
                .filter(|_| keeps)
                .map(|_| pcb.receive.scale),
            sack_permitted: remembered.sack && keeps,
            timestamps,
            ..Options::default()
        };
        let ecn = if remembered.ecn && keeps {
            Flags::ECE
        } else {
            Flags::default()
        };
        let repr = Repr {
            src_port: local.port(),
            dst_port: remote.port(),
            seq: cookie.0,
            ack: syn.seq.plus(1).0,
            flags: Flags::SYN | Flags::ACK | ecn,
            window: pcb.receive.advertise_on_syn(),
            urgent: 0,
            options,
        };
        send(now_ns, host, out, pcb.pair.addresses(), &repr);
    }

    /// Opens a connection by an acknowledgment of a SYN cookie.
    pub(super) fn take_cookie(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        name: Handle,
        (local, remote): (SocketAddr, SocketAddr),
        arrived: &Arrived<'_>,
    ) -> Result<(), DropReason> {
        let is_full = self.connections() >= CONNECTIONS_MAX;
        let listener = self
            .listeners
            .get_mut(name)
            .ok_or(DropReason::SegmentRefused)?;
        let lately = |given_ns: u64| now_ns.saturating_sub(given_ns) < 128_000_000_000;
        if arrived.has(Flags::SYN) || !listener.cookie_ns.is_some_and(lately) {
            return Err(DropReason::SegmentRefused);
        }
        let (irs, cookie) = (arrived.seq.minus(1), Seq(arrived.repr.ack).minus(1));
        let mss = self.secret.check_cookie(now_ns, local, remote, irs, cookie);
        let mss = mss.ok_or(DropReason::SegmentRefused)?;
        if listener.accept_queue.len() >= listener.backlog || is_full {
            return Err(DropReason::BacklogFull);
        }
        listener.half_open += 1;
        host.counters.cookies_back += 1;
        let out = listener.options;
        let timestamps = arrived
            .repr
            .options
            .timestamps
            .filter(|_| self.config.timestamps);
        let remembered =
            CookieOptions::from_echo(mss, timestamps.map(|(_, echo)| echo), &self.config);
        let ecn = if remembered.ecn {
            Flags::ECE | Flags::CWR
        } else {
            Flags::default()
        };
        let repr = Repr {
            seq: irs.0,
            flags: Flags::SYN | ecn,
            options: remembered.options(timestamps),
            ..*arrived.repr
        };
        let syn = Arrived {
            repr: &repr,
            seq: irs,
            payload: &[],
            ce: false,
        };
        let (config, secret, ends) = (&self.config, &self.secret, (local, remote));
        let mut pcb = Pcb::connecting(None, config, secret, host, now_ns, &ends);
        pcb.set_options(out);
        pcb.answer_cookie(now_ns, &syn, cookie, &self.config);
        pcb.opening.listener = Some(name);
        pcb.opening.is_half_open = true;
        self.half_open += 1;
        pcb.receive.set_memory(self.memory_available());
        let name = self.enter(now_ns, pcb);
        let pcb = self.pcbs.get_mut(name).expect("it was entered");
        if pcb.arrives(now_ns, arrived) == Effect::Opened {
            self.opened(now_ns, host, name);
        }
        self.after_event(now_ns, name);
        Ok(())
    }

    /// Closes a listener, and resets the connections that were not accepted.
    pub(crate) fn close_listener(&mut self, now_ns: u64, hosts: &mut Interfaces, id: ListenerId) {
        let Some(listener) = self.listeners.remove(id.0) else {
            return;
        };
        self.unbind_listener(id.0, listener.local);
        self.listener_notify_queue.retain(|name| *name != id.0);
        for TcpId(name) in listener.accept_queue {
            let Some(pcb) = self.pcbs.get_mut(name) else {
                continue;
            };
            (pcb.opening.listener, pcb.user.orphaned) = (None, true);
            let host = hosts.at_mut(pcb.pair.link);
            self.abort(now_ns, host, name, None);
        }
    }
}
