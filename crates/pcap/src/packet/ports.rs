//! The ports by which the process sends past libpcap: one an interface.

use super::Result;
use super::sockets::lock;
use crate::capture::SOCKET_VARIABLE;
use libc::c_int;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketType, socket};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use weir_broker::protocol::ErrorKind;
use weir_broker::{Bytes, Port, PortError, Timeout};
use weir_filter::lang::Language;

/// Interfaces that a process sends on, at most.
const PORTS_MAX: usize = 16;
/// The smallest ring: what it receives is nothing, but for answers of ARP.
const QUEUE: Bytes = Bytes(4096);
/// How long to wait for room for a frame to be sent.
const SEND_MAX: Duration = Duration::from_secs(1);
/// A program of classic BPF that rejects every frame.
const NOTHING: &str = "1\n6 0 0 0\n";

/// A port to send by.
#[derive(Debug)]
pub(super) struct Sender {
    index: u32,
    name: String,
    port: Port,
}

#[derive(Debug)]
struct Senders {
    /// The process that opened them.
    process: u32,
    all: Vec<Sender>,
}

static SENDERS: Mutex<Senders> = Mutex::new(Senders {
    process: 0,
    all: Vec::new(),
});

/// The name of an interface.
pub(super) fn name(index: u32) -> Result<String> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None);
    let any = any.map_err(|error| error.raw_os_error())?;
    index_to_name(&any, index).map_err(|error| error.raw_os_error())
}

/// Calls `act` with the port on an interface, which is opened for the first call.
pub(super) fn with<T>(index: u32, act: impl FnOnce(&mut Sender) -> Result<T>) -> Result<T> {
    let name = name(index)?;
    let mut senders = lock(&SENDERS).ok_or(libc::EAGAIN)?;
    let process = std::process::id();
    if senders.process != process {
        // A fork's child: the ports are its parent's, and stay there.
        senders.all.drain(..).for_each(std::mem::forget);
        senders.process = process;
    }
    // An interface may have been deleted, and made again.
    senders
        .all
        .retain(|one| one.index != index || one.name == name);
    let at = match senders.all.iter().position(|one| one.index == index) {
        Some(at) => at,
        None if senders.all.len() == PORTS_MAX => return Err(libc::ENFILE),
        None => {
            let port = open(&name).map_err(|error| failed(&name, &error))?;
            senders.all.push(Sender { index, name, port });
            senders.all.len() - 1
        }
    };
    act(&mut senders.all[at])
}

fn open(name: &str) -> std::result::Result<Port, PortError> {
    let port = Port::on(name).filter_in(Language::Cbpf, NOTHING)?;
    let mut port = port.queue(QUEUE).send(true);
    if let Some(socket) = std::env::var_os(SOCKET_VARIABLE) {
        port = port.broker(Path::new(&socket));
    }
    port.open()
}

/// Says why sending fails, since the program has a number alone; returns that number.
fn failed(name: &str, error: &PortError) -> c_int {
    static SAID: Mutex<String> = Mutex::new(String::new());
    let text = error.to_string();
    if let Some(mut said) = lock(&SAID)
        && *said != text
    {
        eprintln!("weir: cannot send on {name}: {text}");
        *said = text;
    }
    match error {
        PortError::Refused(refusal) if refusal.kind == ErrorKind::Denied => libc::EPERM,
        PortError::NoBroker { .. } => libc::EPERM,
        error if error.is_queue_full() => libc::ENOBUFS,
        _ => libc::EIO,
    }
}

impl Sender {
    /// Sends a frame.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.port.send_batch(&[frame]) {
                Ok(1) => return Ok(()),
                Ok(_) if began.elapsed() > SEND_MAX => return Err(libc::ENOBUFS),
                Ok(_) => std::thread::sleep(Duration::from_micros(50)),
                Err(error) => return Err(failed(&self.name, &error)),
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// The interface's link-layer address.
    pub(super) fn address(&mut self) -> Result<weir_wire::ethernet::Address> {
        let status = self.port.status();
        let status = status.map_err(|error| failed(&self.name, &error))?;
        status.address.parse().map_err(|_| libc::EAFNOSUPPORT)
    }

    /// Sends a frame until `answer` finds something in a frame of `filter`; `None` after this many
    /// times.
    pub(super) fn ask<T>(
        &mut self,
        frame: &[u8],
        filter: &str,
        times: u32,
        wait: Duration,
        answer: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let set = self.port.set_filter(filter);
        set.map_err(|error| failed(&self.name, &error))?;
        let mut found = Ok(None);
        for _ in 0..times {
            found = self.send(frame).and_then(|()| self.answered(wait, &answer));
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        let set = self.port.set_filter_in(Language::Cbpf, NOTHING);
        set.map_err(|error| failed(&self.name, &error))?;
        found
    }

    fn answered<T>(
        &mut self,
        wait: Duration,
        answer: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let frames = self.port.recv_batch(Timeout::after(left));
            let frames = frames.map_err(|error| failed(&self.name, &error))?;
            let mut found = None;
            for frame in frames {
                found = found.or_else(|| answer(frame.bytes()));
            }
            if found.is_some() || left.is_zero() {
                return Ok(found);
            }
        }
    }
}
