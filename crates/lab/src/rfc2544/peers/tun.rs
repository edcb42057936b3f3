//! A relay on a TUN interface: the kernel routes packets into it, a program
//! reads each and writes it back, the kernel routes it on. What a divert
//! socket was, today.
#![allow(unsafe_code)] // The ioctl that makes the interface.

use super::worker::Worker;
use crate::net::Device;
use crate::rfc2544::bench::Bench;
use crate::rfc2544::{Error, failed};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};
use rustix::ioctl::{Opcode, Setter, ioctl};
use std::ffi::c_char;
use std::io;
use std::os::fd::OwnedFd;

const NAME: &str = "tun0";

/// The table of routes of what has not been through the program.
const TABLE: u8 = 100;

/// Packets passed on before it is looked whether to end.
const BURST: usize = 64;

/// `struct ifreq`: a name and a union of 24 bytes, here flags.
#[repr(C)]
struct Request {
    name: [c_char; 16],
    flags: i16,
    rest: [u8; 22],
}

/// The user's end of a new TUN interface of the calling thread's namespace.
fn make() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = Request {
        name: [0; 16],
        flags: (libc::IFF_TUN | libc::IFF_NO_PI) as i16,
        rest: [0; 22],
    };
    for (to, from) in request.name.iter_mut().zip(NAME.bytes()) {
        *to = from as c_char;
    }
    const TUNSETIFF: Opcode = libc::TUNSETIFF as Opcode;
    // SAFETY: the command takes a `struct ifreq`, whose size this has.
    unsafe { ioctl(&file, Setter::<TUNSETIFF, Request>::new(request))? };
    Ok(file)
}

/// Starts the relay.
pub(super) fn start(bench: &Bench, ports: &[Device; 2]) -> Result<Worker, Error> {
    let host = bench.dut();
    host.set_sysctl("net.ipv4.ip_forward", "1")?;
    let tun = host.run(make).map_err(failed("making a TUN interface"))?;
    let device = host.device(NAME)?;
    // Packets come back from there that have an address of elsewhere.
    for which in ["all", NAME] {
        host.set_sysctl(&format!("net.ipv4.conf.{which}.rp_filter"), "0")?;
    }
    device.up()?;
    device.route_table(TABLE)?;
    for port in ports {
        port.look_up_in(TABLE)?;
    }
    Worker::start(bench, "tun-relay", move || Ok((tun, [0; 2048])), pass)
}

fn pass((tun, packet): &mut (OwnedFd, [u8; 2048])) -> io::Result<()> {
    for _ in 0..BURST {
        match read(&*tun, &mut packet[..]) {
            // What the kernel has no room for is lost.
            Ok(len) => match write(&*tun, &packet[..len]) {
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {}
                Err(error) => return Err(error.into()),
            },
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
