//! The simulation: clock, stack, and the link between them and packetdrill.
//!
//! Time is virtual. It advances when packetdrill sleeps (`usleep`), waits for a
//! packet (`netdev_receive`), or reads the clock (`gettimeofday`, one
//! microsecond for each read). Timers on the way run at their own time.
//!
//! packetdrill makes blocking calls from a second thread. Such a call waits
//! here for the stack; after each event, the thread that advances the clock
//! first lets the call check its condition, so that the call ends at the right
//! time.

use crate::socket::Entry;
use crate::sysctl::Settings;
use crate::{Answer, Errno, user_memory};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;
use weir_stack::iface::{Offload, TxMeta};
use weir_stack::{Config, Prefix, Stack, TxSink};
use weir_wire::ethernet::Address;
use weir_wire::{EtherType, ethernet};

/// Start of the clock: late enough that times before it are positive.
const START_NS: u64 = 1_000_000_000_000_000;
/// Largest advance of the clock while a call waits.
const ADVANCE_MAX_NS: u64 = 600_000_000_000;
/// Time limit, in real time, for a blocked thread to check its condition.
const BLOCKED_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit, in real time, for a thread to report that its call has ended.
const RETURN_TIMEOUT: Duration = Duration::from_millis(3);
const OURS: Address = Address([2, 0, 0, 0, 0, 1]);
const PEER: Address = Address([2, 0, 0, 0, 0, 2]);

/// A simulation, as one packetdrill process uses it.
pub(crate) struct Simulation {
    inner: Mutex<Inner>,
    /// Signalled after each event.
    happened: Condvar,
    /// Signalled when a blocked call has checked its condition.
    checked: Condvar,
    /// packetdrill's main thread, on which no call blocks.
    main: ThreadId,
}

pub(crate) struct Inner {
    pub(crate) now_ns: u64,
    pub(crate) stack: Stack,
    pub(crate) settings: Settings,
    pub(crate) entries: HashMap<i32, Entry>,
    /// When the stack must be polled.
    next_ns: Option<u64>,
    /// Packets sent, with their times.
    sent: VecDeque<(u64, Vec<u8>)>,
    blocked: Vec<Blocked>,
    /// Number of events.
    event: u64,
    /// A blocked call has ended, and its thread may not have reported it yet.
    ended: bool,
}

/// A call that blocks.
struct Blocked {
    thread: ThreadId,
    /// Its time limit.
    until_ns: Option<u64>,
    /// The event count at its last check.
    event: u64,
}

thread_local! {
    /// The time at which a blocked call ended, until its thread reads the
    /// clock.
    static ENDED_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

pub(crate) type Guard<'a> = MutexGuard<'a, Inner>;

impl Simulation {
    pub(crate) fn new(flags: &str) -> Result<Simulation, String> {
        let config = configure(flags)?;
        let stack = Stack::new(&config, 0x5eed).map_err(|error| error.to_string())?;
        Ok(Simulation {
            inner: Mutex::new(Inner {
                now_ns: START_NS,
                stack,
                settings: Settings::default(),
                entries: HashMap::new(),
                next_ns: None,
                sent: VecDeque::new(),
                blocked: Vec::new(),
                event: 0,
                ended: false,
            }),
            happened: Condvar::new(),
            checked: Condvar::new(),
            main: std::thread::current().id(),
        })
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        // A panic elsewhere is reported there; this state is consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a descriptor belongs to the simulation.
    pub(crate) fn owns(&self, fd: i32) -> bool {
        self.lock().entries.contains_key(&fd)
    }

    /// Runs an action after which the stack may send and blocked calls may
    /// continue.
    pub(crate) fn act<T>(&self, what: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let answer = what(&mut inner);
        inner.pump();
        drop(self.settle(inner));
        answer
    }

    /// Repeats an attempt until it has a result; `None` after `until_ns`.
    pub(crate) fn wait<T>(
        &self,
        until_ns: Option<u64>,
        mut attempt: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.lock();
        let me = std::thread::current().id();
        if me == self.main {
            return self.wait_alone(inner, until_ns, attempt);
        }
        ENDED_NS.set(None);
        let answer = loop {
            let answer = attempt(&mut inner);
            inner.pump();
            let late = until_ns.is_some_and(|until_ns| until_ns <= inner.now_ns);
            if answer.is_some() || late {
                break answer;
            }
            let event = inner.event;
            match inner.blocked.iter_mut().find(|other| other.thread == me) {
                Some(blocked) => blocked.event = event,
                None => inner.blocked.push(Blocked {
                    thread: me,
                    until_ns,
                    event,
                }),
            }
            self.checked.notify_all();
            let woken = self.happened.wait(inner);
            inner = woken.unwrap_or_else(PoisonError::into_inner);
        };
        inner.blocked.retain(|other| other.thread != me);
        inner.ended = true;
        ENDED_NS.set(Some(inner.now_ns));
        self.checked.notify_all();
        answer
    }

    /// As [`wait`](Self::wait) on the main thread: no other thread would
    /// advance the clock.
    fn wait_alone<'a, T>(
        &'a self,
        mut inner: Guard<'a>,
        until_ns: Option<u64>,
        mut attempt: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Option<T> {
        let limit_ns = inner.now_ns + ADVANCE_MAX_NS;
        let until_ns = until_ns.unwrap_or(limit_ns).min(limit_ns);
        loop {
            let answer = attempt(&mut inner);
            inner.pump();
            inner = self.settle(inner);
            if answer.is_some() || inner.now_ns >= until_ns {
                return answer;
            }
            let next_ns = inner.next_ns.unwrap_or(until_ns).min(until_ns);
            inner = self.advance(inner, next_ns);
        }
    }

    /// Advances the clock, and runs the timers on the way.
    fn advance<'a>(&'a self, mut inner: Guard<'a>, to_ns: u64) -> Guard<'a> {
        loop {
            let given_up = inner.blocked.iter().filter_map(|blocked| blocked.until_ns);
            let due_ns = given_up.chain(inner.next_ns).min();
            let Some(due_ns) = due_ns.filter(|due_ns| *due_ns <= to_ns) else {
                break;
            };
            inner.now_ns = inner.now_ns.max(due_ns);
            inner.pump();
            inner = self.settle(inner);
        }
        inner.now_ns = inner.now_ns.max(to_ns);
        inner
    }

    /// Lets blocked calls check their conditions.
    fn settle<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        inner.event += 1;
        self.happened.notify_all();
        let me = std::thread::current().id();
        let event = inner.event;
        let behind = |inner: &mut Inner| {
            let mut others = inner.blocked.iter().filter(|other| other.thread != me);
            others.any(|other| other.event < event)
        };
        let waited = self
            .checked
            .wait_timeout_while(inner, BLOCKED_CALL_TIMEOUT, behind);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn netdev_send(&self, packet: usize, len: usize) -> Answer {
        let packet = user_memory::take(packet, len)?;
        self.act(|inner| inner.receive(&packet));
        Ok(0)
    }

    /// The next packet sent. If there will be none, an empty packet, which
    /// packetdrill reports as an error.
    pub(crate) fn netdev_receive(&self, packet: usize, len: usize, time_us: usize) -> Answer {
        let mut inner = self.lock();
        let limit_ns = inner.now_ns + ADVANCE_MAX_NS;
        while inner.sent.is_empty() {
            let next_ns = inner.next_ns.filter(|next_ns| *next_ns <= limit_ns);
            let Some(next_ns) = next_ns else {
                break;
            };
            inner = self.advance(inner, next_ns);
        }
        let (at_ns, bytes) = inner.sent.pop_front().unwrap_or((inner.now_ns, Vec::new()));
        let room = user_memory::take(len, size_of::<usize>())?;
        let room = usize::from_ne_bytes(room.try_into().expect("as many as asked for"));
        let bytes = &bytes[..bytes.len().min(room)];
        user_memory::give(packet, bytes)?;
        user_memory::give(len, &bytes.len().to_ne_bytes())?;
        user_memory::give(time_us, &((at_ns / 1000) as i64).to_ne_bytes())?;
        Ok(0)
    }

    pub(crate) fn usleep(&self, us: u32) -> Answer {
        ENDED_NS.set(None);
        if std::mem::take(&mut self.lock().ended) {
            // packetdrill has released its own lock, which that thread needs.
            std::thread::sleep(RETURN_TIMEOUT);
        }
        let inner = self.lock();
        let to_ns = inner.now_ns + u64::from(us) * 1000;
        drop(self.advance(inner, to_ns));
        Ok(0)
    }

    pub(crate) fn gettimeofday(&self, time: usize, _zone: usize) -> Answer {
        let now_ns = ENDED_NS.take().unwrap_or_else(|| {
            let inner = self.lock();
            let to_ns = inner.now_ns + 1000;
            self.advance(inner, to_ns).now_ns
        });
        let seconds = (now_ns / 1_000_000_000) as i64;
        let us = (now_ns / 1000 % 1_000_000) as i64;
        user_memory::give(time, &seconds.to_ne_bytes())?;
        user_memory::give(time + 8, &us.to_ne_bytes())?;
        Ok(0)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        for (_, entry) in self.lock().entries.drain() {
            // packetdrill has closed the descriptor by close(2).
            entry.forget();
        }
    }
}

impl Inner {
    /// Passes a packet from the network to the stack.
    fn receive(&mut self, packet: &[u8]) {
        let ether_type = match packet.first().map(|byte| byte >> 4) {
            Some(6) => EtherType::IPV6,
            _ => EtherType::IPV4,
        };
        self.hand(ether_type, packet);
    }

    fn hand(&mut self, ether_type: EtherType, packet: &[u8]) {
        let mut frame = vec![0; ethernet::Repr::LEN + packet.len()];
        let header = ethernet::Repr {
            dst: OURS,
            src: PEER,
            ether_type,
        };
        header.emit(&mut frame);
        frame[ethernet::Repr::LEN..].copy_from_slice(packet);
        self.stack.receive(self.now_ns, &frame);
    }

    /// Polls the stack and takes the frames that it sends.
    pub(crate) fn pump(&mut self) {
        loop {
            let mut frames = Frames::default();
            self.next_ns = self.stack.poll(self.now_ns, &mut frames);
            if frames.0.is_empty() {
                break;
            }
            for frame in frames.0 {
                self.leaves(&frame);
            }
        }
        self.poll_sockets();
    }

    /// Handles a frame of the stack: a neighbour solicitation is answered at
    /// once.
    fn leaves(&mut self, frame: &[u8]) {
        let packet = &frame[ethernet::Repr::LEN..];
        match u16::from_be_bytes([frame[12], frame[13]]) {
            0x0806 => {
                if let Some(answer) = arp_answer(packet) {
                    self.hand(EtherType::ARP, &answer);
                }
            }
            0x86dd if is_solicitation(packet) => {
                if let Some(answer) = advertisement(packet) {
                    self.hand(EtherType::IPV6, &answer);
                }
            }
            0x86dd if packet.get(6) == Some(&58) && is_nd(packet) => {}
            _ => self.sent.push_back((self.now_ns, packet.to_vec())),
        }
    }
}

/// A sink that stores frames.
#[derive(Default)]
struct Frames(Vec<Vec<u8>>);

impl TxSink for Frames {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.push(vec![0; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }

    fn submit(&mut self) {}

    /// Completes the checksum. A segment with pending segmentation stays
    /// unsegmented, as Linux shows it to packetdrill.
    fn submit_partial(&mut self, partial: TxMeta, payload: [&[u8]; 2]) {
        let Some(frame) = self.0.last_mut() else {
            return;
        };
        frame.extend_from_slice(&payload.concat());
        let start = usize::from(partial.checksum_start);
        let at = start + usize::from(partial.checksum_offset);
        let checksum = weir_wire::checksum::internet_checksum(&frame[start..]);
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The reply to an ARP request (RFC 826), for any address.
fn arp_answer(packet: &[u8]) -> Option<Vec<u8>> {
    let is_question = packet.len() >= 28 && packet[6..8] == [0, 1];
    is_question.then(|| {
        let mut answer = packet[..8].to_vec();
        answer[7] = 2;
        answer.extend_from_slice(&PEER.0);
        answer.extend_from_slice(&packet[24..28]);
        answer.extend_from_slice(&packet[8..18]);
        answer
    })
}

/// Whether it is a router, neighbour or multicast listener message, which
/// concerns the link and not packetdrill.
fn is_nd(packet: &[u8]) -> bool {
    matches!(packet.get(40), Some(130..=137 | 143))
}

fn is_solicitation(packet: &[u8]) -> bool {
    packet.len() >= 64 && packet[6] == 58 && packet[40] == 135
}

/// The answer to a neighbour solicitation (RFC 4861 §4.4).
fn advertisement(packet: &[u8]) -> Option<Vec<u8>> {
    let target: [u8; 16] = packet[48..64].try_into().ok()?;
    let to: [u8; 16] = packet[8..24].try_into().ok()?;
    if to == [0; 16] {
        return None; // It asks whether its own address is taken.
    }
    let mut answer = vec![0x60, 0, 0, 0, 0, 32, 58, 255];
    answer.extend_from_slice(&target);
    answer.extend_from_slice(&to);
    let mut message = vec![136, 0, 0, 0, 0xe0, 0, 0, 0];
    message.extend_from_slice(&target);
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&PEER.0);
    let sum = weir_wire::checksum::Sum::new();
    let addresses = weir_wire::AddrPair::V6(target.into(), to.into());
    let sum = sum.pseudo_header(addresses, 58, message.len() as u32);
    let sum = sum.bytes(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.extend_from_slice(&message);
    Some(answer)
}

/// The stack's configuration from `--so_flags`; the addresses are those that
/// packetdrill's own runner assigns to the kernel.
fn configure(flags: &str) -> Result<Config, String> {
    let mut local4 = "192.168.0.1/16";
    let mut local6 = "fd3d:a0b:17d6::1/48";
    let mut mtu = 1500;
    for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
        let wrong = || format!("`{flag}` in --so_flags is none of local4=, local6= and mtu=");
        let (name, value) = flag.split_once('=').ok_or_else(wrong)?;
        match name {
            "local4" => local4 = value,
            "local6" => local6 = value,
            "mtu" => {
                let number = value.parse();
                mtu = number.map_err(|_| format!("mtu={value} in --so_flags is no number"))?;
            }
            _ => return Err(wrong()),
        }
    }
    let prefix = |text: &str| text.parse::<Prefix>().map_err(|error| error.to_string());
    let (local4, local6) = (prefix(local4)?, prefix(local6)?);
    let mut config = Config::new(OURS).address(local4).address(local6);
    config.mtu = mtu;
    config.offload = Offload::ALL;
    for (all, local) in [("0.0.0.0/0", local4), ("::/0", local6)] {
        config = config.route(prefix(all)?, neighbour(local.address()));
    }
    Ok(config)
}

/// Another address of the same network, for packetdrill's end of the link.
fn neighbour(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() ^ 2).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() ^ 2).into()),
    }
}

/// The error of a call that would block.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
