//! Gateways: routing tables from gateway information, and forwarding of Pups
//! (Pup paper 1980, §III; Gateway Information Protocol).

use crate::datagram::{HOPS_MAX, Port, Pup, error};
use std::collections::BTreeMap;
use std::time::Duration;

/// A route that is not renewed ends after this time: gateways announce their tables
/// each 30 seconds.
pub const ROUTE_LIFE: Duration = Duration::from_secs(90);
/// Interval at which a gateway announces its table.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(30);

/// The announcement of one network: four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The network.
    pub net: u8,
    /// The gateway to it.
    pub gateway_net: u8,
    /// The gateway to it.
    pub gateway_host: u8,
    /// Gateways on the way, without the announcing one.
    pub hops: u8,
}

impl Route {
    /// Reads the routes of a gateway information Pup; a rest is ignored.
    pub fn parse_all(payload: &[u8]) -> impl Iterator<Item = Route> + '_ {
        payload.as_chunks::<4>().0.iter().map(|bytes| Route {
            net: bytes[0],
            gateway_net: bytes[1],
            gateway_host: bytes[2],
            hops: bytes[3],
        })
    }

    /// The route's four bytes.
    pub fn bytes(&self) -> [u8; 4] {
        [self.net, self.gateway_net, self.gateway_host, self.hops]
    }
}

/// The outcome of a Pup at a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forward {
    /// The Pup is for the gateway itself.
    Here(Pup),
    /// It goes out by a link, to this host.
    Out {
        /// Index of the link.
        link: usize,
        /// The next host; 0 is every host of the link.
        host: u8,
        /// The Pup, with one hop more.
        pup: Pup,
    },
    /// It goes no further; its sender gets an error Pup.
    Error(Pup),
    /// It goes no further, silently.
    Drop,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    link: usize,
    gateway: u8,
    hops: u8,
    until: Duration,
}

/// A gateway between links.
#[derive(Debug)]
pub struct Gateway {
    /// The gateway's net and host on each link.
    links: Vec<Port>,
    /// Networks that other gateways reach: at most 255.
    table: BTreeMap<u8, Entry>,
}

impl Gateway {
    /// A gateway with these addresses on its links.
    pub fn new(links: &[Port]) -> Gateway {
        Gateway {
            links: links.to_vec(),
            table: BTreeMap::new(),
        }
    }

    /// The gateway's net and host on each link.
    pub fn links(&self) -> &[Port] {
        &self.links
    }

    /// Takes the routes that another gateway, a host on this link, has announced.
    pub fn learn(&mut self, now: Duration, link: usize, from: u8, payload: &[u8]) {
        self.table.retain(|_, entry| entry.until > now);
        if from == 0 || self.links[link].host == from {
            return;
        }
        for route in Route::parse_all(payload) {
            let is_direct = self.links.iter().any(|own| own.net == route.net);
            let hops = route.hops.saturating_add(1);
            if is_direct || route.net == 0 {
                continue;
            }
            let known = self.table.get(&route.net);
            let same = known.is_some_and(|entry| entry.gateway == from && entry.link == link);
            // Its own gateway may make a route longer, or say that it has ended.
            if hops > HOPS_MAX {
                if same {
                    self.table.remove(&route.net);
                }
            } else if same || known.is_none_or(|entry| hops < entry.hops) {
                let until = now + ROUTE_LIFE;
                let entry = Entry {
                    link,
                    gateway: from,
                    hops,
                    until,
                };
                self.table.insert(route.net, entry);
            }
        }
    }

    /// The gateway's announcement on a link.
    pub fn routes(&self, now: Duration) -> Vec<Route> {
        let direct = self.links.iter().map(|own| Route {
            net: own.net,
            gateway_net: own.net,
            gateway_host: own.host,
            hops: 0,
        });
        let fresh = self.table.iter().filter(|(_, entry)| entry.until > now);
        let learnt = fresh.map(|(net, entry)| Route {
            net: *net,
            gateway_net: self.links[entry.link].net,
            gateway_host: entry.gateway,
            hops: entry.hops,
        });
        direct.chain(learnt).collect()
    }

    /// The link by which a Pup goes to `dst`, and the host there that takes it next: the
    /// destination, or a gateway; `None` without a route.
    pub fn next_hop(&self, now: Duration, dst: Port) -> Option<(usize, u8)> {
        if let Some(link) = self.links.iter().position(|own| own.net == dst.net) {
            return Some((link, dst.host));
        }
        let route = self.table.get(&dst.net);
        let route = route.filter(|entry| entry.until > now)?;
        Some((route.link, route.gateway))
    }

    /// Decides about a Pup that came by a link.
    pub fn forward(&self, now: Duration, link: usize, mut pup: Pup) -> Forward {
        // A host that does not know its net means the link's.
        let here = self.links[link];
        if pup.head.src.net == 0 {
            pup.head.src.net = here.net;
        }
        if pup.head.dst.net == 0 {
            pup.head.dst.net = here.net;
        }
        let dst = pup.head.dst;
        let is_own = |own: &Port| own.net == dst.net && own.host == dst.host;
        if self.links.iter().any(is_own) || dst.net == here.net && dst.host == 0 {
            return Forward::Here(pup);
        }
        if dst.net == here.net {
            // From host to host of one link: not the gateway's.
            return Forward::Drop;
        }
        if pup.hops() >= HOPS_MAX {
            return self.refuse(&pup, error::HOPS, "too many hops");
        }
        let Some((out, host)) = self.next_hop(now, dst) else {
            return self.refuse(&pup, error::NO_ROUTE, "no route to network");
        };
        pup.head.control = pup.head.control & 0xf | (pup.hops() + 1) << 4;
        Forward::Out {
            link: out,
            host,
            pup,
        }
    }

    fn refuse(&self, pup: &Pup, code: u16, text: &str) -> Forward {
        if pup.head.pup_type == crate::datagram::kind::ERROR || pup.head.src.host == 0 {
            return Forward::Drop;
        }
        Forward::Error(pup.error(code, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::kind;

    fn port(net: u8, host: u8) -> Port {
        Port {
            net,
            host,
            socket: 5,
        }
    }

    fn pup(src: Port, dst: Port) -> Pup {
        Pup::new(kind::ECHO_ME, 1, dst, src, b"x")
    }

    #[test]
    fn pups_go_to_their_net_with_a_hop_more() {
        let gateway = Gateway::new(&[port(1, 9), port(2, 9)]);
        let now = Duration::ZERO;
        let Forward::Out { link, host, pup } = gateway.forward(now, 0, pup(port(0, 3), port(2, 4)))
        else {
            panic!("not forwarded");
        };
        assert_eq!((link, host, pup.hops(), pup.head.src.net), (1, 4, 1, 1));
        let here = gateway.forward(now, 0, self::pup(port(1, 3), port(2, 9)));
        assert!(matches!(here, Forward::Here(_)));
        let local = gateway.forward(now, 0, self::pup(port(1, 3), port(1, 4)));
        assert_eq!(local, Forward::Drop);
    }

    #[test]
    fn routes_are_learnt_and_end() {
        let mut gateway = Gateway::new(&[port(1, 9), port(2, 9)]);
        let far = pup(port(1, 3), port(7, 4));
        let Forward::Error(error) = gateway.forward(Duration::ZERO, 0, far.clone()) else {
            panic!("there is no route yet");
        };
        assert_eq!(error.error_reason().unwrap().0, error::NO_ROUTE);
        let route = |hops| {
            let route = Route {
                net: 7,
                gateway_net: 2,
                gateway_host: 5,
                hops,
            };
            route.bytes()
        };
        gateway.learn(Duration::ZERO, 1, 5, &route(3));
        // A longer one of another gateway does not count, a shorter one does.
        gateway.learn(Duration::ZERO, 1, 6, &route(4));
        assert_eq!(gateway.routes(Duration::ZERO)[2].hops, 4);
        gateway.learn(Duration::ZERO, 1, 6, &route(0));
        let forwarded = gateway.forward(Duration::ZERO, 0, far.clone());
        assert!(matches!(
            forwarded,
            Forward::Out {
                link: 1,
                host: 6,
                ..
            }
        ));
        // Unreachable, says its gateway; or nothing any more.
        gateway.learn(Duration::ZERO, 1, 5, &route(16));
        assert_eq!(gateway.routes(Duration::ZERO).len(), 3);
        assert_eq!(gateway.routes(ROUTE_LIFE).len(), 2);
        gateway.learn(Duration::ZERO, 1, 6, &route(16));
        let refused = gateway.forward(Duration::ZERO, 0, far);
        assert!(matches!(refused, Forward::Error(_)));
    }

    #[test]
    fn a_pup_that_goes_in_circles_ends() {
        let gateway = Gateway::new(&[port(1, 9), port(2, 9)]);
        let mut old = pup(port(1, 3), port(2, 4));
        old.head.control = HOPS_MAX << 4;
        let Forward::Error(error) = gateway.forward(Duration::ZERO, 0, old) else {
            panic!("forwarded");
        };
        assert_eq!(error.error_reason().unwrap().0, error::HOPS);
        let mut old = error;
        old.head.control = HOPS_MAX << 4;
        (old.head.src, old.head.dst) = (port(1, 3), port(2, 4));
        assert_eq!(gateway.forward(Duration::ZERO, 0, old), Forward::Drop);
    }
}
