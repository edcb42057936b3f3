//! Routes imported from the kernel's tables, which FRR, BIRD and others fill.

use crate::router::engine::{HOPS_MAX, Hop, LinkId, Origin, Router, Target};
use std::collections::{HashSet, hash_set};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use weir_link::net::{Route, RouteEvent, RouteKind, RouteMonitor};
use weir_stack::Prefix;

/// Number of changes applied at once, between frames.
const CHANGES_PER_TURN: usize = 64;

/// Imports the kernel's routes.
#[derive(Debug)]
pub(crate) struct RouteImporter {
    monitor: RouteMonitor,
    tables: Vec<u32>,
    /// The ifindex of each link.
    links: Vec<u32>,
    /// Routes seen since the start of a resync; `None` outside a resync.
    seen: Option<HashSet<(Prefix, u32)>>,
    known: HashSet<(Prefix, u32)>,
    /// Routes known before the last resync, which may be gone.
    stale: hash_set::IntoIter<(Prefix, u32)>,
    /// Number of routes that lead to interfaces outside the router.
    elsewhere: u64,
    refused: u64,
}

impl RouteImporter {
    /// Starts in the calling thread's network namespace.
    pub(crate) fn open(tables: &[u32], links: Vec<u32>) -> io::Result<RouteImporter> {
        Ok(RouteImporter {
            monitor: RouteMonitor::open()?,
            tables: tables.to_vec(),
            links,
            seen: None,
            known: HashSet::new(),
            stale: HashSet::new().into_iter(),
            elsewhere: 0,
            refused: 0,
        })
    }

    /// The descriptor that is readable when there are changes.
    pub(crate) fn fd(&self) -> io::Result<OwnedFd> {
        self.monitor.as_fd().try_clone_to_owned()
    }

    /// Requests a full dump of the kernel's routes.
    pub(crate) fn resync(&mut self) -> io::Result<()> {
        self.monitor.begin()
    }

    /// Number of kernel routes that the router does not have, since the start:
    /// those to other interfaces, and those without room.
    pub(crate) fn skipped(&self) -> (u64, u64) {
        (self.elsewhere, self.refused)
    }

    /// Applies some changes; returns whether there may be more.
    pub(crate) fn work(&mut self, router: &mut Router) -> io::Result<bool> {
        for _ in 0..CHANGES_PER_TURN {
            match self.monitor.next_event()? {
                None => return Ok(self.sweep(router)),
                Some(RouteEvent::Begin) => self.seen = Some(HashSet::new()),
                Some(RouteEvent::Set(route)) => self.set(router, &route),
                Some(RouteEvent::Gone(route)) => self.remove(router, &route),
                Some(RouteEvent::Complete) => self.complete(),
            }
        }
        Ok(true)
    }

    fn name(&self, route: &Route) -> Option<(Prefix, u32)> {
        let prefix = Prefix::new(route.prefix, route.prefix_len)?;
        let wanted = self.tables.contains(&route.table);
        wanted.then_some((prefix, route.metric))
    }

    fn set(&mut self, router: &mut Router, route: &Route) {
        let Some((prefix, metric)) = self.name(route) else {
            return;
        };
        let Some(target) = self.target(route) else {
            self.elsewhere += 1;
            // The route it replaces led to a link of the router.
            return self.remove(router, route);
        };
        let origin = Origin::Learned(metric);
        match router.routes_mut().insert(prefix, origin, target) {
            Ok(()) => {
                self.known.insert((prefix, metric));
                if let Some(seen) = &mut self.seen {
                    seen.insert((prefix, metric));
                }
            }
            Err(_) => self.refused += 1,
        }
    }

    fn remove(&mut self, router: &mut Router, route: &Route) {
        let Some((prefix, metric)) = self.name(route) else {
            return;
        };
        if self.known.remove(&(prefix, metric)) {
            router.routes_mut().remove(prefix, Origin::Learned(metric));
        }
    }

    /// Ends a resync: routes known before are checked in small steps.
    fn complete(&mut self) {
        if let Some(seen) = self.seen.take() {
            self.stale = std::mem::replace(&mut self.known, seen).into_iter();
        }
    }

    /// Removes some routes that the resync did not report; returns whether
    /// there may be more.
    fn sweep(&mut self, router: &mut Router) -> bool {
        for _ in 0..CHANGES_PER_TURN {
            let Some((prefix, metric)) = self.stale.next() else {
                return false;
            };
            if !self.known.contains(&(prefix, metric)) {
                router.routes_mut().remove(prefix, Origin::Learned(metric));
            }
        }
        true
    }

    /// The target of a route over the router's links; `None` if it leads over
    /// no link.
    fn target(&self, route: &Route) -> Option<Target> {
        match route.kind {
            RouteKind::Blackhole => return Some(Target::Blackhole),
            RouteKind::Unreachable => return Some(Target::Unreachable),
            RouteKind::Prohibit => return Some(Target::Prohibit),
            RouteKind::Unicast => {}
        }
        let ours = route.hops.iter().filter_map(|hop| {
            let link = self.links.iter().position(|index| *index == hop.ifindex)?;
            let gateway = hop.gateway;
            let link = link as LinkId;
            Some(Hop { link, gateway })
        });
        let hops: Box<[Hop]> = ours.take(HOPS_MAX).collect();
        (!hops.is_empty()).then_some(Target::Forward(hops))
    }
}
