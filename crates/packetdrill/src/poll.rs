//! Readiness of sockets: `poll` and `epoll`.

use crate::simulation::{Inner, Simulation};
use crate::socket::{Kind, SocketPhase};
use crate::{Answer, Errno, user_memory};
use weir_stack::tcp::{State, TcpInfo};

/// Bytes of a `struct pollfd`, and of a `struct epoll_event`.
const POLLFD: usize = 8;
const EPOLL_EVENT: usize = size_of::<libc::epoll_event>();
/// Largest number of descriptors in one call.
const FDS_MAX: usize = 1024;

const IN: u32 = libc::POLLIN as u32;
const OUT: u32 = libc::POLLOUT as u32;
const ERR: u32 = libc::POLLERR as u32;
const HUP: u32 = libc::POLLHUP as u32;
const RDNORM: u32 = libc::POLLRDNORM as u32;
const WRNORM: u32 = libc::POLLWRNORM as u32;
const RDHUP: u32 = libc::POLLRDHUP as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;

/// The descriptors of an epoll instance.
#[derive(Default)]
pub(crate) struct Epoll {
    watched: Vec<Watched>,
}

struct Watched {
    fd: i32,
    events: u32,
    data: u64,
    /// The event count at the last report, for edge-triggered waits.
    seen: Option<u64>,
    disarmed: bool,
}

impl Epoll {
    /// Removes a closed descriptor.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.watched.retain(|watched| watched.fd != fd);
    }

    fn control(&mut self, operation: i32, fd: i32, events: u32, data: u64) -> Answer {
        let place = self.watched.iter().position(|watched| watched.fd == fd);
        let watched = Watched {
            fd,
            events,
            data,
            seen: None,
            disarmed: false,
        };
        match (operation, place) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
            (libc::EPOLL_CTL_ADD, None) => self.watched.push(watched),
            (libc::EPOLL_CTL_MOD, Some(place)) => self.watched[place] = watched,
            (libc::EPOLL_CTL_DEL, Some(place)) => {
                self.watched.remove(place);
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno(libc::ENOENT)),
            _ => return Err(Errno(libc::EINVAL)),
        }
        Ok(0)
    }
}

/// The end of a time-out; `None` for no limit.
fn until(now_ns: u64, timeout_ms: i32) -> Option<u64> {
    let timeout_ms = u64::try_from(timeout_ms).ok()?;
    Some(now_ns + timeout_ms * 1_000_000)
}

impl Simulation {
    pub(crate) fn poll(&self, fds: usize, count: u64, timeout_ms: i32) -> Answer {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > FDS_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let mut bytes = user_memory::take(fds, count * POLLFD)?;
        let until_ns = until(self.lock().now_ns, timeout_ms);
        let attempt = |inner: &mut Inner| {
            let mut ready = 0;
            for entry in bytes.chunks_exact_mut(POLLFD) {
                let fd = i32::from_ne_bytes(entry[..4].try_into().expect("four bytes"));
                let wanted = u16::from_ne_bytes([entry[4], entry[5]]);
                let events = match inner.readiness(fd) {
                    _ if fd < 0 => 0,
                    Ok((events, _)) => events & (u32::from(wanted) | ERR | HUP),
                    Err(_) => libc::POLLNVAL as u32,
                };
                entry[6..].copy_from_slice(&(events as u16).to_ne_bytes());
                ready += i64::from(events != 0);
            }
            (ready > 0).then_some(ready)
        };
        let ready = self.wait(until_ns, attempt).unwrap_or(0);
        user_memory::give(fds, &bytes)?;
        Ok(ready)
    }

    pub(crate) fn epoll_ctl(&self, epoll: i32, operation: i32, fd: i32, event: usize) -> Answer {
        let (events, data) = match operation {
            libc::EPOLL_CTL_DEL => (0, 0),
            _ => {
                let bytes = user_memory::take(event, EPOLL_EVENT)?;
                let events = u32::from_ne_bytes(bytes[..4].try_into().expect("four bytes"));
                let data = &bytes[EPOLL_EVENT - 8..];
                (events, u64::from_ne_bytes(data.try_into().expect("eight")))
            }
        };
        let mut inner = self.lock();
        inner.socket(fd)?;
        inner.epoll(epoll)?.control(operation, fd, events, data)
    }

    pub(crate) fn epoll_wait(
        &self,
        epoll: i32,
        events: usize,
        count: i32,
        timeout_ms: i32,
    ) -> Answer {
        let count = usize::try_from(count).unwrap_or(0);
        if count == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let until_ns = until(self.lock().now_ns, timeout_ms);
        let attempt = |inner: &mut Inner| match inner.events(epoll, count) {
            Ok(events) if events.is_empty() => None,
            answer => Some(answer),
        };
        let found = self.wait(until_ns, attempt).unwrap_or(Ok(Vec::new()))?;
        let mut bytes = Vec::new();
        for (events, data) in &found {
            bytes.extend_from_slice(&events.to_ne_bytes());
            bytes.resize(bytes.len() + EPOLL_EVENT - 12, 0);
            bytes.extend_from_slice(&data.to_ne_bytes());
        }
        user_memory::give(events, &bytes)?;
        Ok(found.len() as i64)
    }
}

impl Inner {
    fn epoll(&mut self, fd: i32) -> Answer<&mut Epoll> {
        match self.entries.get_mut(&fd).map(|entry| &mut entry.kind) {
            Some(Kind::Epoll(epoll)) => Ok(epoll),
            Some(Kind::Socket(_)) => Err(Errno(libc::EINVAL)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    /// The events that an epoll instance reports, with their user data.
    fn events(&mut self, epoll: i32, count: usize) -> Answer<Vec<(u32, u64)>> {
        let mut watched = std::mem::take(&mut self.epoll(epoll)?.watched);
        let mut found = Vec::new();
        for one in &mut watched {
            let (events, happened) = self.readiness(one.fd).unwrap_or((0, 0));
            let events = events & (one.events | ERR | HUP);
            let is_edge = one.events & EDGE != 0;
            let stale = is_edge && one.seen == Some(happened);
            if events == 0 || one.disarmed || stale || found.len() == count {
                continue;
            }
            one.seen = Some(happened);
            one.disarmed = one.events & ONESHOT != 0;
            found.push((events, one.data));
        }
        self.epoll(epoll)?.watched = watched;
        Ok(found)
    }

    /// A socket's readiness, and a count that changes with each event that
    /// would wake a waiter.
    pub(crate) fn readiness(&mut self, fd: i32) -> Answer<(u32, u64)> {
        let now_ns = self.now_ns;
        let socket = self.socket(fd)?;
        let happened = socket.happened;
        let errors = if socket.notices.is_empty() { 0 } else { ERR };
        let events = match socket.phase {
            SocketPhase::New(_) if socket.deferred.is_some() => OUT | WRNORM,
            SocketPhase::New(_) => OUT | WRNORM | HUP,
            SocketPhase::Listens(id) => match self.stack.tcp_accept_queue_len(id) {
                0 => 0,
                _ => IN | RDNORM,
            },
            SocketPhase::Stream(id) => match self.stack.tcp_info(now_ns, id) {
                Some(info) => self.stream_readiness(fd, &info)?,
                None => IN | OUT | HUP,
            },
        };
        Ok((events | errors, happened))
    }

    /// Whether a waiting writer would be woken: a third of the buffer is free,
    /// as in Linux, and not too much data is unsent.
    pub(crate) fn can_write(&mut self, fd: i32, info: &TcpInfo) -> Answer<bool> {
        let all = self.settings.notsent_lowat();
        let socket = self.socket(fd)?;
        let lowat = match socket.options.notsent_lowat {
            0 => all,
            own => own,
        };
        let waits = info.unacknowledged + info.unsent;
        let room = 3 * waits < 2 * info.send_limit && info.unsent < lowat as usize;
        let open = matches!(
            info.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        Ok(room && (open || info.syn_data_acked && info.state == State::SynReceived))
    }

    fn stream_readiness(&mut self, fd: i32, info: &TcpInfo) -> Answer<u32> {
        let can_write = self.can_write(fd, info)?;
        let socket = self.socket(fd)?;
        let ended = info.peer_closed || socket.deaf;
        let mut events = 0;
        let mut set = |bits: u32, when: bool| events |= if when { bits } else { 0 };
        set(IN | RDNORM, info.readable > 0 || ended);
        set(RDHUP, ended);
        set(OUT | WRNORM, can_write);
        if info.state == State::Closed {
            let failed = info.error.is_some() && socket.reported.is_none();
            set(IN | RDNORM | OUT | WRNORM | HUP | RDHUP, true);
            set(ERR, failed);
        }
        Ok(events)
    }
}
