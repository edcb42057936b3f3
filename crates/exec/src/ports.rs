//! Addresses that `bind(2)` has taken: weir's sockets take theirs when they listen or connect.

use libc::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{MutexGuard, PoisonError};

/// The ports that the system chooses from (Linux' `ip_local_port_range`).
const LOCAL_PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// How a socket shares its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sharing {
    /// `SO_REUSEADDR`: with others that have it, none of which listens.
    pub(crate) address: bool,
    /// `SO_REUSEPORT`: with others that have it.
    pub(crate) port: bool,
    /// An IPv6 wildcard without `IPV6_V6ONLY`, which is IPv4's too.
    pub(crate) both_versions: bool,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    at: SocketAddr,
    sharing: Sharing,
    listens: bool,
    /// Values of [`Reserved`].
    holders: usize,
}

/// The addresses that the process's sockets have.
#[derive(Debug)]
pub(crate) struct Taken {
    next: u64,
    entries: Vec<Entry>,
}

fn lock() -> MutexGuard<'static, Taken> {
    let taken = &crate::host::process().taken;
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address that is taken as long as this value lives.
#[derive(Debug)]
pub(crate) struct Reserved {
    place: Place,
    at: SocketAddr,
    sharing: Sharing,
    /// Whether the system has chosen the port: the socket has it until its connection or listener ends.
    is_chosen: bool,
}

/// Where an address was taken, and by which number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Here(u64),
    /// In the process that owns the sockets.
    Owner(u64),
    /// Nowhere any more.
    Gone,
}

/// Whether a packet could be for either address.
fn overlap(a: SocketAddr, a_both: bool, b: SocketAddr, b_both: bool) -> bool {
    let covers = |any: IpAddr, both: bool, other: IpAddr| {
        any.is_unspecified() && (any.is_ipv4() == other.is_ipv4() || both)
    };
    a.port() == b.port()
        && (a.ip() == b.ip() || covers(a.ip(), a_both, b.ip()) || covers(b.ip(), b_both, a.ip()))
}

impl Taken {
    pub(crate) const fn new() -> Taken {
        Taken {
            next: 0,
            entries: Vec::new(),
        }
    }

    fn is_free(&self, at: SocketAddr, sharing: Sharing, listens: bool, own: Option<u64>) -> bool {
        self.entries.iter().all(|entry| {
            let both = (sharing.both_versions, entry.sharing.both_versions);
            own == Some(entry.id)
                || !overlap(at, both.0, entry.at, both.1)
                || sharing.port && entry.sharing.port
                || sharing.address && entry.sharing.address && !entry.listens && !listens
        })
    }

    /// A free port, from a random one on.
    fn free_port(&self, ip: IpAddr, sharing: Sharing) -> Option<u16> {
        let mut bytes = [0; 2];
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let count = LOCAL_PORTS.end() - LOCAL_PORTS.start() + 1;
        let first = u16::from_ne_bytes(bytes) % count;
        let alone = Sharing {
            address: false,
            port: false,
            ..sharing
        };
        let mut ports = (0..count).map(|step| {
            let at = (u32::from(first) + u32::from(step)) % u32::from(count);
            LOCAL_PORTS.start() + at as u16
        });
        ports.find(|port| self.is_free(SocketAddr::new(ip, *port), alone, false, None))
    }
}

impl Reserved {
    /// Takes an address, with a free port for port 0.
    ///
    /// # Errors
    /// `EADDRINUSE` if another socket has it and does not share it.
    pub(crate) fn take(mut at: SocketAddr, sharing: Sharing) -> Result<Reserved, c_int> {
        let mut taken = lock();
        if at.port() == 0 {
            let port = taken.free_port(at.ip(), sharing);
            at.set_port(port.ok_or(libc::EADDRINUSE)?);
        } else if !taken.is_free(at, sharing, false, None) {
            return Err(libc::EADDRINUSE);
        }
        let id = taken.next;
        taken.next += 1;
        taken.entries.push(Entry {
            id,
            at,
            sharing,
            listens: false,
            holders: 1,
        });
        Ok(Reserved {
            place: Place::Here(id),
            at,
            sharing,
            is_chosen: false,
        })
    }

    /// The same address once more: it is taken as long as one of both values lives. What another process has
    /// taken stays the first value's.
    pub(crate) fn share(&self) -> Reserved {
        let place = match self.place {
            Place::Here(id) => {
                if let Some(entry) = lock().entries.iter_mut().find(|entry| entry.id == id) {
                    entry.holders += 1;
                }
                self.place
            }
            Place::Owner(_) | Place::Gone => Place::Gone,
        };
        Reserved { place, ..*self }
    }

    /// An address that the owner of the sockets has taken for this process.
    pub(crate) fn of_owner(number: u64, at: SocketAddr, sharing: Sharing) -> Reserved {
        Reserved {
            place: Place::Owner(number),
            at,
            sharing,
            is_chosen: false,
        }
    }

    /// The number of an address that was taken at the owner, or else 0.
    pub(crate) fn number(&self) -> u64 {
        match self.place {
            Place::Owner(number) => number,
            Place::Here(_) | Place::Gone => 0,
        }
    }

    /// Leaves the address taken: another socket has it now.
    pub(crate) fn forget(mut self) {
        self.place = Place::Gone;
    }

    /// The address of a socket that has not named the port: it has the port until its connection or listener
    /// ends.
    pub(crate) fn chosen(self) -> Reserved {
        let mut chosen = self;
        chosen.is_chosen = true;
        chosen
    }

    /// Whether the port lasts only as long as the socket's connection or listener.
    pub(crate) fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// The address, with its port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.at
    }

    /// How the address is shared.
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Records that the socket listens.
    ///
    /// # Errors
    /// `EADDRINUSE` if another socket listens at the address.
    pub(crate) fn listen(&self) -> Result<(), c_int> {
        let Place::Here(id) = self.place else {
            return Ok(());
        };
        let mut taken = lock();
        let listener = |entry: &&Entry| {
            let both = (self.sharing.both_versions, entry.sharing.both_versions);
            entry.id != id
                && entry.listens
                && overlap(self.at, both.0, entry.at, both.1)
                && !(self.sharing.port && entry.sharing.port)
        };
        if taken.entries.iter().any(|entry| listener(&entry)) {
            return Err(libc::EADDRINUSE);
        }
        if let Some(entry) = taken.entries.iter_mut().find(|entry| entry.id == id) {
            entry.listens = true;
        }
        Ok(())
    }

    /// Records that the socket listens no more.
    pub(crate) fn stop_listening(&self) {
        if let Place::Here(id) = self.place
            && let Some(entry) = lock().entries.iter_mut().find(|entry| entry.id == id)
        {
            entry.listens = false;
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        match self.place {
            Place::Here(id) => lock().entries.retain_mut(|entry| {
                entry.holders -= usize::from(entry.id == id);
                entry.holders > 0
            }),
            Place::Owner(number) => crate::relay::guest::release(number),
            Place::Gone => {}
        }
    }
}
