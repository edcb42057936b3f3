//! IPv6 neighbour discovery (RFC 4861): solicitations and advertisements.

use super::address::AddrState;
use super::routes::{ALL_NODES, solicited_node};
use super::{DropReason, Header, Incoming, Interface};
use std::net::{IpAddr, Ipv6Addr};
use weir_wire::ethernet::Address;
use weir_wire::icmp::Message;
use weir_wire::nd::{self, Kind, Repr};
use weir_wire::{AddrPair, Protocol};

impl Interface {
    /// Handles a neighbour message with a correct checksum; `None` for another
    /// message.
    pub(super) fn neighbour_message(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'_>,
        message: &Message<'_>,
    ) -> Option<Result<(), DropReason>> {
        let AddrPair::V6(src, dst) = incoming.addresses else {
            return None;
        };
        let parsed = Repr::parse(message)?;
        let Ok(neighbour) = parsed else {
            return Some(Err(DropReason::Malformed));
        };
        let group = neighbour.hardware.is_some_and(Address::is_multicast);
        if incoming.hop_limit != nd::HOP_LIMIT || group {
            return Some(Err(DropReason::NeighbourRefused));
        }
        Some(match neighbour.kind {
            Kind::Solicitation => self.solicited(now_ns, (src, dst), &neighbour),
            Kind::Advertisement {
                router,
                solicited,
                replaces,
            } => {
                // A multicast advertisement cannot be solicited (RFC 4861
                // §7.1.2).
                let refused = (solicited && dst.is_multicast()) || src.is_unspecified();
                let target = neighbour.target.into();
                if refused || self.addr_state(target).is_some() {
                    if !refused {
                        self.unsure_conflict(now_ns, target, neighbour.hardware);
                    }
                    return Some(Err(DropReason::NeighbourRefused));
                }
                let done = self.advertised(now_ns, &neighbour, (solicited, replaces));
                if !router && done.is_ok() {
                    self.no_router(target);
                }
                done
            }
        })
    }

    fn solicited(
        &mut self,
        now_ns: u64,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        neighbour: &Repr,
    ) -> Result<(), DropReason> {
        let target = neighbour.target;
        // A solicitation from the unspecified address is a duplicate address
        // probe (RFC 4862 §5.4).
        let probe = src.is_unspecified();
        if probe && (neighbour.hardware.is_some() || dst != solicited_node(target)) {
            return Err(DropReason::NeighbourRefused);
        }
        if probe {
            self.unsure_conflict(now_ns, target.into(), None);
        }
        if !self.routes.is_ours(target.into()) {
            return Err(DropReason::NotOurAddress);
        }
        if let Some(hardware) = neighbour.hardware {
            let waited = self.neighbours.update(src.into(), hardware);
            self.release(hardware, waited);
        }
        let to = if probe { ALL_NODES } else { src };
        // RFC 4429 §3.3: an advertisement of an optimistic address has no
        // override flag.
        let sure = self.addr_state(target.into()) == Some(AddrState::Assigned);
        let answer = Repr {
            kind: Kind::Advertisement {
                router: false,
                solicited: !probe,
                replaces: sure,
            },
            target,
            hardware: Some(self.hardware),
        };
        self.send_neighbour(now_ns, &answer, target, to, None);
        Ok(())
    }

    fn advertised(
        &mut self,
        now_ns: u64,
        neighbour: &Repr,
        flags: (bool, bool),
    ) -> Result<(), DropReason> {
        let target = neighbour.target.into();
        let waited = self
            .neighbours
            .advertised(now_ns, target, neighbour.hardware, flags);
        let waited = waited.ok_or(DropReason::NeighbourRefused)?;
        self.routes.promote(target);
        if let Some(hardware) = neighbour.hardware {
            self.release(hardware, waited);
        }
        Ok(())
    }

    /// Sends a neighbour solicitation: unicast to the known MAC address, or to
    /// the solicited-node group.
    pub(super) fn ask_nd(&mut self, now_ns: u64, target: Ipv6Addr, known: Option<Address>) {
        let Some(IpAddr::V6(src)) = self.routes.source_for(target.into()) else {
            return;
        };
        // RFC 4429 §3.2: an optimistic address sends no source link-layer
        // address.
        let sure = self.addr_state(src.into()) == Some(AddrState::Assigned);
        let question = Repr {
            kind: Kind::Solicitation,
            target,
            hardware: sure.then_some(self.hardware),
        };
        let to = if known.is_some() {
            target
        } else {
            solicited_node(target)
        };
        self.send_neighbour(now_ns, &question, src, to, known);
    }

    /// Handles a conflict: another station has, or probes for, a tentative or
    /// optimistic address.
    fn unsure_conflict(&mut self, now_ns: u64, address: IpAddr, by: Option<Address>) {
        if self
            .addr_state(address)
            .is_some_and(|stage| stage != AddrState::Assigned)
        {
            self.conflict(now_ns, address, by);
        }
    }

    /// Sends a duplicate address probe (RFC 4862 §5.4.2).
    pub(super) fn probe_nd(&mut self, now_ns: u64, target: Ipv6Addr) {
        let question = Repr {
            kind: Kind::Solicitation,
            target,
            hardware: None,
        };
        let to = solicited_node(target);
        self.send_neighbour(now_ns, &question, Ipv6Addr::UNSPECIFIED, to, None);
    }

    fn send_neighbour(
        &mut self,
        now_ns: u64,
        message: &Repr,
        src: Ipv6Addr,
        to: Ipv6Addr,
        hardware: Option<Address>,
    ) {
        let addresses = AddrPair::V6(src, to);
        let mut payload = vec![0; message.len()];
        message.emit(&mut payload, addresses);
        let header = Header {
            hop_limit: nd::HOP_LIMIT,
            ..Header::new(addresses, Protocol::ICMPV6)
        };
        match hardware {
            // A solicitation must not need resolution itself.
            Some(hardware) => self.send_to_hardware(&header, hardware, &payload),
            None => self.send(now_ns, &header, &payload),
        }
    }
}
