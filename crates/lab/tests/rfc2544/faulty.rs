//! Devices with known faults: a thread that forwards frames between packet
//! sockets, and treats one frame in a thousand differently.
#![allow(unsafe_code)] // Addresses of packet sockets.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send,
    socket_with, sockopt,
};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use weir_lab::net::Host;
use weir_lab::rfc2544::{Dut, Error, Layout, Running, Testbed};

/// The treatment of one frame in a thousand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    Drops,
    Duplicates,
    /// Delays it until after the next frame.
    Reorders,
    /// Flips a bit of the byte at that offset.
    Corrupts(usize),
    Cuts,
    Pads,
}

/// A bridge with a fault, from its first interface to its second.
pub(crate) struct Faulty(pub(crate) Fault);

impl Dut for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn layout(&self) -> Layout {
        Layout::Bridge
    }

    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error> {
        let [from, to] = bench.ports().unwrap();
        let open = |name: &str| socket(bench.dut(), name).unwrap();
        let (from, to) = (open(from.name()), open(to.name()));
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, fault) = (Arc::clone(&stop), self.0);
        let work = move || {
            while !asked.load(Ordering::Relaxed) {
                pass(&from, &to, fault);
            }
        };
        let worker = Some(thread::spawn(work));
        Ok(Box::new(Passing { stop, worker }))
    }
}

struct Passing {
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Running for Passing {
    fn check(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().unwrap().join().unwrap();
    }
}

/// Forwards frames until none has arrived for a while. The thousandth frame of
/// each thousand, by the tester's numbers, gets the fault.
fn pass(from: &OwnedFd, to: &OwnedFd, fault: Fault) {
    let mut held: Option<Vec<u8>> = None;
    let mut frame = [0; 2048];
    while let Ok((len, _)) = recv(from, &mut frame, RecvFlags::empty()) {
        let mut bytes = frame[..len].to_vec();
        let number = u64::from_be_bytes(bytes[42..50].try_into().unwrap());
        // Learning frames are short.
        let is_the_one = number % 1000 == 500 && len > 64;
        let put = |bytes: &[u8]| send(to, bytes, SendFlags::empty()).map(drop);
        let sent = match fault {
            _ if !is_the_one => put(&bytes),
            Fault::None => put(&bytes),
            Fault::Drops => Ok(()),
            Fault::Duplicates => put(&bytes).and_then(|()| put(&bytes)),
            Fault::Reorders => {
                held = Some(bytes);
                continue;
            }
            Fault::Corrupts(at) => {
                bytes[at] ^= 4;
                put(&bytes)
            }
            Fault::Cuts => put(&bytes[..len - 1]),
            Fault::Pads => put(&[&bytes[..], &[0]].concat()),
        };
        sent.unwrap();
        if let Some(late) = held.take() {
            put(&late).unwrap();
        }
    }
}

/// A socket that receives the frames arriving at an interface.
fn socket(host: &Host, name: &str) -> io::Result<OwnedFd> {
    host.run(|| {
        let all = Protocol::from_raw(NonZeroU32::new(0x0300).unwrap());
        let (raw, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::PACKET, raw, flags, Some(all))?;
        let index = netdevice::name_to_index(&socket, name)?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0x0300,
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is that of a packet socket and outlives the call.
        let bound = unsafe {
            let address = (&raw const address).cast();
            let len = size_of::<libc::sockaddr_ll>() as u32;
            libc::bind(socket.as_raw_fd(), address, len)
        };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        // Excludes frames that this host sends.
        const PACKET_IGNORE_OUTGOING: i32 = 23;
        let on = 1_i32;
        // SAFETY: the option is a four-byte integer, which outlives the call.
        let set = unsafe {
            let (fd, level) = (socket.as_raw_fd(), libc::SOL_PACKET);
            libc::setsockopt(fd, level, PACKET_IGNORE_OUTGOING, (&raw const on).cast(), 4)
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20)?;
        let patience = Some(Duration::from_millis(20));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience)?;
        Ok(socket)
    })
}
