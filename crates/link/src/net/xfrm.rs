//! The kernel's databases of IPsec: a netlink socket of `NETLINK_XFRM`
//! (`linux/xfrm.h`), whose messages `weir_esp` reads.

use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use zeroize::Zeroizing;

/// The groups of SAs, policies, expiries and migrations, as bits:
/// `XFRMNLGRP_EXPIRE`, `_SA`, `_POLICY` and `_MIGRATE`.
const GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// Messages of the requests (`XFRM_MSG_*`).
const GETSA: u16 = 0x12;
const GETPOLICY: u16 = 0x15;
const MIGRATE: u16 = 0x21;
const GETDEFAULT: u16 = 0x28;

/// Messages and flags of netlink.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

/// Length of a message's header, in bytes.
const HEADER: usize = 16;

/// Largest datagram that the kernel sends: a dump has parts of at most 32 KiB.
const DATAGRAM_MAX: usize = 64 << 10;

/// Room for notifications, in bytes.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Messages of a dump, or of notifications at a time, at most.
const DUMP_MAX: usize = 65_536;

/// A message of the databases. Its content may have keys: it is erased when
/// dropped, and not shown.
pub struct XfrmMessage {
    /// The type, `XFRM_MSG_*`.
    pub kind: u16,
    /// The content behind the header of netlink.
    pub content: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for XfrmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "XfrmMessage({:#x}, {} bytes)",
            self.kind,
            self.content.len()
        )
    }
}

/// Reports changes of the SAs and policies of a network namespace: the one of the
/// thread that opened the monitor.
#[derive(Debug)]
pub struct XfrmMonitor {
    notifications: OwnedFd,
    requests: OwnedFd,
}

impl XfrmMonitor {
    /// Opens a monitor; it needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If the kernel has no XFRM, or forbids it.
    pub fn open() -> io::Result<XfrmMonitor> {
        let socket = |groups| -> io::Result<OwnedFd> {
            let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(XFRM))?;
            bind(&socket, &SocketAddrNetlink::new(0, groups))?;
            Ok(socket)
        };
        let monitor = XfrmMonitor {
            notifications: socket(GROUPS)?,
            requests: socket(0)?,
        };
        // Without the privilege the default stays.
        let _ = set_socket_recv_buffer_size_force(&monitor.notifications, RECEIVE_BUFFER);
        Ok(monitor)
    }

    /// All SAs and policies, the oldest first, and the default of packets without
    /// a policy. What changes in between is among the notifications, too.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn dump(&self) -> io::Result<Vec<XfrmMessage>> {
        let mut all = self.request(GETSA, DUMP, &[])?;
        // The kernel's lists begin with the newest.
        all.reverse();
        let mut policies = self.request(GETPOLICY, DUMP, &[])?;
        policies.reverse();
        all.append(&mut policies);
        match self.request(GETDEFAULT, ACK, &[0; 4]) {
            Ok(mut default) => all.append(&mut default),
            // Kernels before 5.14 have no default but to let pass.
            Err(error) if is(&error, Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
        Ok(all)
    }

    fn request(&self, kind: u16, flags: u16, content: &[u8]) -> io::Result<Vec<XfrmMessage>> {
        let mut bytes = Vec::with_capacity(HEADER + content.len());
        bytes.extend_from_slice(&((HEADER + content.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(content);
        retry_on_intr(|| send(&self.requests, &bytes, SendFlags::empty()))?;
        let mut all = Vec::new();
        loop {
            for message in receive(&self.requests, RecvFlags::empty())? {
                let code = message
                    .content
                    .first_chunk()
                    .map(|code| i32::from_ne_bytes(*code));
                match (message.kind, code) {
                    (ERROR, Some(code)) if code != 0 => {
                        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                    }
                    (ERROR | DONE, _) => return Ok(all),
                    _ if all.len() < DUMP_MAX => all.push(message),
                    _ => {}
                }
            }
        }
    }

    /// Waits for notifications, and takes those that have come by then.
    ///
    /// # Errors
    /// If the socket fails. What was taken before is lost.
    pub fn next(&self) -> io::Result<XfrmNews> {
        let mut messages = Vec::new();
        let mut is_lost = false;
        let mut flags = RecvFlags::empty();
        loop {
            match receive(&self.notifications, flags) {
                // Those still in the queue are older than the dropped ones, and than
                // the following dump; until it is empty the kernel drops further ones.
                Ok(_) if is_lost => {}
                Ok(more) => messages.extend(more),
                Err(error) if is(&error, Errno::NOBUFS) => {
                    messages.clear();
                    is_lost = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if messages.len() >= DUMP_MAX {
                // The next call takes the rest.
                break;
            }
            flags = RecvFlags::DONTWAIT;
        }
        // A migration changes the ends of SAs and policies.
        is_lost |= messages.iter().any(|message| message.kind == MIGRATE);
        Ok(if is_lost {
            XfrmNews::Lost
        } else {
            XfrmNews::Messages(messages)
        })
    }
}

/// What a monitor waited for.
#[derive(Debug)]
pub enum XfrmNews {
    /// Notifications.
    Messages(Vec<XfrmMessage>),
    /// The kernel dropped some, or moved SAs: all is to be asked for anew.
    Lost,
}

fn is(error: &io::Error, code: Errno) -> bool {
    error.raw_os_error() == Some(code.raw_os_error())
}

/// The messages of one datagram.
fn receive(socket: &OwnedFd, flags: RecvFlags) -> io::Result<Vec<XfrmMessage>> {
    let mut buffer = Zeroizing::new(vec![0; DATAGRAM_MAX]);
    let (len, _) = retry_on_intr(|| recv(socket, &mut **buffer, flags))?;
    Ok(xfrm_messages(&buffer[..len]))
}

/// The messages of a datagram of netlink, up to the first one that is cut short.
pub fn xfrm_messages(datagram: &[u8]) -> Vec<XfrmMessage> {
    let mut messages = Vec::new();
    let mut rest = datagram;
    while let Some(header) = rest.first_chunk::<HEADER>() {
        let [l0, l1, l2, l3, k0, k1, ..] = *header;
        let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(content) = rest.get(HEADER..len) else {
            break;
        };
        messages.push(XfrmMessage {
            kind: u16::from_ne_bytes([k0, k1]),
            content: Zeroizing::new(content.to_vec()),
        });
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::rng::Rng;
    use weir_lab::seeds::seeds;

    fn message(len: u32, kind: u16, content: &[u8]) -> Vec<u8> {
        let head = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10]].concat();
        [&head, content].concat()
    }

    /// Each length of a header decides alone how much its message has.
    #[test]
    fn a_datagram_is_read_up_to_the_first_message_that_is_cut_short() {
        let good = [message(19, 0x11, b"abc\0"), message(16, 3, b"")].concat();
        let read = |datagram: &[u8]| -> Vec<(u16, Vec<u8>)> {
            let messages = xfrm_messages(datagram);
            messages
                .iter()
                .map(|it| (it.kind, it.content.to_vec()))
                .collect()
        };
        let all = vec![(0x11, b"abc".to_vec()), (3, Vec::new())];
        assert_eq!(read(&good), all);
        for end in 0..good.len() {
            let whole = usize::from(end >= 19);
            assert_eq!(read(&good[..end]), all[..whole], "{end}");
        }
        for len in [0, 15, 17, u32::MAX] {
            let wrong = [good.clone(), message(len, 7, b"")].concat();
            assert_eq!(read(&wrong), all, "{len}");
        }
        for seed in seeds(500) {
            let mut rng = Rng::new(seed);
            let mut datagram = good.repeat(1 + rng.below(4));
            for _ in 0..rng.below(8) {
                let at = rng.below(datagram.len());
                datagram[at] = rng.bits() as u8;
            }
            let found: usize = read(&datagram).iter().map(|it| HEADER + it.1.len()).sum();
            assert!(found <= datagram.len(), "seed {seed}");
        }
    }
}
