//! A gateway between links.

use super::link::{Link, LinkError};
use super::node::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};
use weir_pup::Host;
use weir_pup::datagram::{Port, Pup, kind, socket};
use weir_pup::gateway::{ANNOUNCE_INTERVAL, Forward, Gateway, Route};

/// How often a gateway checks its links, the time of day, and its routes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often a gateway looks whether the policy lets its Pups be sent.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pups that one link receives before the others have their turn.
const BATCH: usize = 64;

/// Counts of the Pups that came to a gateway, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passed {
    /// Pups that went on to another link, or were lost because its queue was full.
    pub forwarded: u64,
    /// Pups for the gateway itself.
    pub own: u64,
    /// Pups that were refused by an error Pup: no route, or too many hops.
    pub refused: u64,
    /// Pups that were dropped: damaged, or from host to host of one link.
    pub dropped: u64,
}

/// A gateway and its links, driven by one thread. On each link it is a host, too, with the
/// services of every host.
#[derive(Debug)]
pub struct GatewayNode {
    gateway: Gateway,
    links: Vec<Link>,
    hosts: Vec<Host>,
    passed: Passed,
    began: Instant,
    next_poll: Duration,
    next_check: Duration,
    next_advertisement: Duration,
}

impl GatewayNode {
    /// A gateway with these hosts' addresses, each on its link.
    pub fn new(on: Vec<(Host, Link)>) -> GatewayNode {
        let (mut hosts, mut links): (Vec<Host>, Vec<Link>) = on.into_iter().unzip();
        for (host, link) in hosts.iter_mut().zip(&mut links) {
            link.set_batch(BATCH);
            host.ask_for_routes();
        }
        let own: Vec<Port> = hosts.iter().map(|host| host.port(0)).collect();
        GatewayNode {
            gateway: Gateway::new(&own),
            links,
            hosts,
            passed: Passed::default(),
            began: Instant::now(),
            next_poll: Duration::ZERO,
            next_check: Duration::ZERO,
            next_advertisement: Duration::ZERO,
        }
    }

    /// Counts of Pups, by outcome.
    pub fn passed(&self) -> Passed {
        self.passed
    }

    /// The routes that the gateway advertises now.
    pub fn routes(&self) -> Vec<Route> {
        self.gateway.routes(self.began.elapsed())
    }

    /// Waits at most `timeout` for Pups, and forwards or answers those that come.
    ///
    /// # Errors
    /// If a link fails.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.do_due()?;
        let ready = self.wait(timeout.min(POLL_INTERVAL));
        for (number, is_ready) in ready.into_iter().enumerate() {
            if is_ready {
                self.receive(number)?;
            }
        }
        self.send_own()?;
        for link in &mut self.links {
            link.flush()?;
        }
        Ok(())
    }

    /// Does what is due by the clock.
    fn do_due(&mut self) -> Result<(), LinkError> {
        let now = self.began.elapsed();
        if now < self.next_poll {
            return Ok(());
        }
        self.next_poll = now + POLL_INTERVAL;
        let routes = self.gateway.routes(now);
        for (host, link) in self.hosts.iter_mut().zip(&mut self.links) {
            link.check()?;
            host.set_clock(clock());
            host.set_routes(routes.clone());
        }
        if now >= self.next_check {
            self.next_check = now + CHECK_INTERVAL;
            for link in &mut self.links {
                link.check_refusals()?;
            }
        }
        if now >= self.next_advertisement {
            self.next_advertisement = now + ANNOUNCE_INTERVAL;
            for host in &mut self.hosts {
                host.advertise_routes();
            }
        }
        self.send_own()
    }

    /// Waits until a link has Pups; which do.
    fn wait(&mut self, timeout: Duration) -> Vec<bool> {
        // A link that cannot be armed has Pups.
        let mut ready: Vec<bool> = self.links.iter_mut().map(|link| !link.arm()).collect();
        let timeout = if ready.contains(&true) {
            Duration::ZERO
        } else {
            timeout
        };
        let timeout = Timespec::try_from(timeout).expect("a short time");
        let mut fds: Vec<PollFd<'_>> = self
            .links
            .iter()
            .map(|link| PollFd::new(link, PollFlags::IN))
            .collect();
        // A signal ends it: the caller looks for that.
        if poll(&mut fds, Some(&timeout)).is_ok() {
            for (is_ready, fd) in ready.iter_mut().zip(&fds) {
                *is_ready |= !fd.revents().is_empty();
            }
        }
        ready
    }

    fn receive(&mut self, number: usize) -> Result<(), LinkError> {
        let mut came = Vec::new();
        self.links[number].receive(Duration::ZERO, |bytes| came.push(Pup::parse(bytes)))?;
        for pup in came {
            match pup {
                Some(pup) => self.handle(number, pup)?,
                None => self.passed.dropped += 1,
            }
        }
        Ok(())
    }

    fn handle(&mut self, number: usize, pup: Pup) -> Result<(), LinkError> {
        let now = self.began.elapsed();
        match self.gateway.forward(now, number, pup) {
            Forward::Here(pup) => {
                self.passed.own += 1;
                self.answer(now, number, pup);
                Ok(())
            }
            Forward::Out { link, host, pup } => {
                self.passed.forwarded += 1;
                self.queue(link, host, &pup)
            }
            Forward::Error(error) => {
                self.passed.refused += 1;
                self.route(now, &error)
            }
            Forward::Drop => {
                self.passed.dropped += 1;
                Ok(())
            }
        }
    }

    /// Takes a Pup for the gateway itself.
    fn answer(&mut self, now: Duration, number: usize, pup: Pup) {
        let Port { net, host, socket } = pup.head.dst;
        if socket == socket::GATEWAY && pup.head.pup_type == kind::GATEWAY_INFORMATION {
            if pup.head.src.net == self.gateway.links()[number].net {
                self.gateway
                    .learn(now, number, pup.head.src.host, &pup.payload);
            }
            return;
        }
        // It may be for the address that the gateway has on another link.
        let mut own = self.gateway.links().iter();
        let asked = own.position(|own| own.net == net && own.host == host);
        self.hosts[asked.unwrap_or(number)].handle(now, pup);
    }

    /// Sends what the gateway's own hosts have to send.
    fn send_own(&mut self) -> Result<(), LinkError> {
        for number in 0..self.hosts.len() {
            let now = self.began.elapsed();
            let mut bytes = Vec::new();
            while let Some(dst) = self.hosts[number].poll_transmit(now, &mut bytes) {
                let hop = match dst.net {
                    0 => Some((number, dst.host)),
                    _ => self.gateway.next_hop(now, dst),
                };
                if let Some((link, host)) = hop {
                    self.links[link].queue_with(|out| {
                        out.extend_from_slice(&bytes);
                        Some(host)
                    })?;
                }
                bytes.clear();
            }
        }
        Ok(())
    }

    fn route(&mut self, now: Duration, pup: &Pup) -> Result<(), LinkError> {
        match self.gateway.next_hop(now, pup.head.dst) {
            Some((link, host)) => self.queue(link, host, pup),
            None => Ok(()),
        }
    }

    fn queue(&mut self, link: usize, host: u8, pup: &Pup) -> Result<(), LinkError> {
        self.links[link].queue_with(|out| {
            pup.emit(out);
            Some(host)
        })?;
        Ok(())
    }
}
