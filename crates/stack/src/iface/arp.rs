//! ARP (RFC 826, RFC 5227): requests for the host's addresses are answered.

use super::address::AddrState;
use super::{DropReason, Interface};
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::arp::{Operation, Packet, Repr};
use weir_wire::ethernet::Address;
use weir_wire::{EtherType, ethernet};

impl Interface {
    pub(super) fn arp(&mut self, now_ns: u64, bytes: &[u8]) -> Result<(), DropReason> {
        let packet = Packet::new(bytes).map_err(|_| DropReason::Malformed)?;
        let arp = Repr::parse(&packet);
        let sender: IpAddr = arp.sender_ip.into();
        if arp.sender.is_multicast() || arp.sender == self.hardware {
            return Err(DropReason::NeighbourRefused);
        }
        // Another station has one of the host's addresses, or probes for the
        // same address at the same time (RFC 5227 §2.1.1, §2.4).
        let taken = if arp.sender_ip.is_unspecified() {
            arp.target_ip.into()
        } else {
            sender
        };
        let stage = self.addr_state(taken);
        if stage.is_some() && (taken == sender || stage == Some(AddrState::Tentative)) {
            self.conflict(now_ns, taken, Some(arp.sender));
            return Err(DropReason::NeighbourRefused);
        }
        let to_us = self.routes.is_ours(arp.target_ip.into());
        let waited = match arp.operation {
            // A probe contains no address of its sender.
            Operation::REQUEST if arp.sender_ip.is_unspecified() => Vec::new(),
            Operation::REQUEST if !self.is_near(sender) => {
                return Err(DropReason::NeighbourRefused);
            }
            Operation::REQUEST if to_us || self.neighbours.knows(sender) => {
                self.neighbours.update(sender, arp.sender)
            }
            Operation::REQUEST => Vec::new(),
            Operation::REPLY => {
                let waited = self.neighbours.answered(now_ns, sender, arp.sender);
                let waited = waited.ok_or(DropReason::NeighbourRefused)?;
                self.routes.promote(sender);
                waited
            }
            _ => return Err(DropReason::NeighbourRefused),
        };
        self.release(arp.sender, waited);
        if to_us && arp.operation == Operation::REQUEST {
            self.send_arp(
                arp.sender,
                Operation::REPLY,
                arp.target_ip,
                (arp.sender, arp.sender_ip),
            );
        }
        Ok(())
    }

    /// Whether an address is in a network of the link.
    pub(super) fn is_near(&self, address: IpAddr) -> bool {
        !self.routes.is_broadcast(address) && self.routes.next_hop(address) == Some(address)
    }

    /// Sends an ARP request for a neighbour's address: unicast to the known MAC
    /// address, or broadcast.
    pub(super) fn send_arp_request(&mut self, target: Ipv4Addr, known: Option<Address>) {
        let Some(IpAddr::V4(sender)) = self.routes.source_for(target.into()) else {
            return;
        };
        let dst = known.unwrap_or(Address::BROADCAST);
        self.send_arp(
            dst,
            Operation::REQUEST,
            sender,
            (Address::default(), target),
        );
    }

    /// Sends an ARP probe for an address (RFC 5227 §2.1.1).
    pub(super) fn probe_arp(&mut self, address: Ipv4Addr) {
        let target = (Address::default(), address);
        self.send_arp(
            Address::BROADCAST,
            Operation::REQUEST,
            Ipv4Addr::UNSPECIFIED,
            target,
        );
    }

    pub(super) fn send_arp(
        &mut self,
        dst: Address,
        operation: Operation,
        sender_ip: Ipv4Addr,
        (target, target_ip): (Address, Ipv4Addr),
    ) {
        let mut frame = vec![0; ethernet::Repr::LEN + Repr::LEN];
        let arp = Repr {
            operation,
            sender: self.hardware,
            sender_ip,
            target,
            target_ip,
        };
        arp.emit(&mut frame[ethernet::Repr::LEN..]);
        self.queue_frame(dst, EtherType::ARP, frame);
    }
}
