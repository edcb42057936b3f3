//! The entries of a chain in the flow cache: the kernel repeats what stages and
//! router did to the first packets of a flow.
//!
//! The stages remember with an entry what it stands for (a session). They end
//! entries at once by that, and learn when the kernel last used one, so that
//! both directions of a session age as one.

use crate::router::engine::{LinkId, NextHop, Router};
use ahash::RandomState;
use griddle::HashMap;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::time::Duration;
use weir_chain::{Chain, Composed, Direction};
use weir_tap::{FlowAction, FlowCache, FlowKey, InsertOutcome, Rewrite, Translation};
use weir_wire::ethernet::Address;

/// Time after which an entry without packets is removed.
const AGEING: Duration = Duration::from_secs(30);

/// An entry in the kernel, or one that has ended and whose slot no other has.
#[derive(Debug)]
struct Known {
    key: FlowKey,
    composed: Composed,
}

/// All entries of a chain.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// By slot of the flow cache.
    known: Vec<Option<Known>>,
    /// The slots of entries of what a stage remembered. Grows a few places at a time: while a million
    /// of them move, frames would wait for longer than the gate allows.
    by_cookie: HashMap<(usize, u64), SmallVec<[u32; 4]>, RandomState>,
    /// `CLOCK_MONOTONIC` at time 0 of the stages, in ns.
    offset: u64,
}

/// An entry that is to be inserted.
#[derive(Debug)]
pub(super) struct Fresh {
    key: FlowKey,
    action: FlowAction,
    composed: Composed,
}

impl Fresh {
    /// The entry for frames that come to `station` on a link; `None` if the
    /// kernel cannot do what it says.
    pub(super) fn of(link: LinkId, station: Address, composed: Composed) -> Option<Fresh> {
        let flow = &composed.flow;
        let action = if composed.is_drop {
            FlowAction::DropFlow
        } else {
            let edits = &composed.edits;
            let (src, dst) = edits.stations?;
            if edits.ttl != 1 || edits.mtu == 0 {
                return None;
            }
            let translation = if composed.translates() {
                Some(translation(&composed)?)
            } else {
                None
            };
            FlowAction::Rewrite(Rewrite {
                link: edits.output?.into(),
                station,
                src,
                dst,
                mtu: edits.mtu,
                dscp: edits.dscp,
                translation,
            })
        };
        Some(Fresh {
            key: FlowKey::FiveTuple {
                link: link.into(),
                protocol: flow.protocol.0,
                src: (flow.src, flow.src_port),
                dst: (flow.dst, flow.dst_port),
            },
            action,
            composed,
        })
    }
}

fn translation(composed: &Composed) -> Option<Translation> {
    let (flow, edits) = (&composed.flow, &composed.edits);
    let end = |new: Option<IpAddr>, old: IpAddr, port: Option<u16>, old_port: u16| match new
        .unwrap_or(old)
    {
        IpAddr::V4(address) => Some((address, port.unwrap_or(old_port))),
        IpAddr::V6(_) => None,
    };
    Some(Translation {
        src: end(edits.source, flow.src, edits.source_port, flow.src_port)?,
        dst: end(
            edits.destination,
            flow.dst,
            edits.destination_port,
            flow.dst_port,
        )?,
        header: edits.header,
        transport: edits.transport,
    })
}

impl Entries {
    /// No entries; `offset` is `CLOCK_MONOTONIC` at time 0 of the stages, in ns.
    pub(super) fn new(offset: u64) -> Entries {
        Entries {
            offset,
            ..Entries::default()
        }
    }

    /// Adds entries to the kernel's table.
    pub(super) fn insert(&mut self, fast: &mut FlowCache, fresh: impl Iterator<Item = Fresh>) {
        for Fresh {
            key,
            action,
            composed,
        } in fresh
        {
            let InsertOutcome::Yes(slot) = fast.insert(key, action, AGEING) else {
                continue;
            };
            let at = slot as usize;
            if self.known.len() <= at {
                self.known.resize_with(at + 1, || None);
            }
            if let Some(before) = self.known[at].take() {
                self.leave(slot, &before.composed);
            }
            for place in cookies(&composed) {
                self.by_cookie.entry(place).or_default().push(slot);
            }
            self.known[at] = Some(Known { key, composed });
        }
    }

    fn leave(&mut self, slot: u32, composed: &Composed) {
        for place in cookies(composed) {
            if let Some(slots) = self.by_cookie.get_mut(&place) {
                slots.retain(|other| *other != slot);
                if slots.is_empty() {
                    self.by_cookie.remove(&place);
                }
            }
        }
    }

    /// Ends the entries of what a stage remembered.
    pub(super) fn withdraw(&mut self, fast: &mut FlowCache, stage: usize, cookie: u64) {
        let Some(slots) = self.by_cookie.remove(&(stage, cookie)) else {
            return;
        };
        for slot in slots {
            if let Some(known) = self.known[slot as usize].take() {
                fast.forget(&known.key);
                self.leave(slot, &known.composed);
            }
        }
    }

    /// Informs the stages of an entry's use; returns whether it still holds.
    pub(super) fn holds(
        &mut self,
        chain: &mut Chain,
        router: &mut Router,
        now: u64,
        slot: u32,
        (action, used_at): (&FlowAction, u64),
    ) -> bool {
        let Some(Some(known)) = self.known.get(slot as usize) else {
            return false;
        };
        let (key, composed) = (&known.key, &known.composed);
        if !chain.used(composed, used_at.saturating_sub(self.offset)) {
            return false;
        }
        let FlowAction::Rewrite(rewrite) = action else {
            return true;
        };
        let (src, dst) = match composed.direction {
            Direction::Outward => (composed.flow.src, composed.flow.dst),
            Direction::Inward => (
                composed.edits.source.unwrap_or(composed.flow.src),
                composed.edits.destination.unwrap_or(composed.flow.dst),
            ),
        };
        let dst = composed.edits.next_hop.map_or(dst, IpAddr::V4);
        let hop = router.next_hop(now, key.link() as LinkId, src, dst);
        hop.is_some_and(|hop| is_way(rewrite, &hop))
    }
}

fn is_way(rewrite: &Rewrite, hop: &NextHop) -> bool {
    let mtu = u32::try_from(hop.mtu).unwrap_or(u32::MAX);
    let link = u32::from(hop.link);
    (rewrite.link, rewrite.src, rewrite.dst, rewrite.mtu) == (link, hop.src, hop.dst, mtu)
}

fn cookies(composed: &Composed) -> impl Iterator<Item = (usize, u64)> {
    let cookies = composed.cookies.into_iter().enumerate();
    cookies.filter(|(_, cookie)| *cookie != 0)
}
