//! TAP: the kernel's virtual Ethernet interface, whose other end is a file
//! descriptor (tun(4)).
#![allow(unsafe_code)] // The ioctls that make the interface.

use super::ifreq::{Flags, Request};
use super::interface::tap_queues;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Largest length of an interface's name, in bytes.
const NAME_MAX: usize = 15;

/// The header before each frame of a [`Tap::open_offloading`]: `struct
/// virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TapHeader {
    /// The checksum at `checksum_start + checksum_offset` is partial: it
    /// contains the pseudo-header's sum.
    pub needs_checksum: bool,
    /// The kernel has verified the checksum, or the frame never was on a wire.
    /// In received frames only.
    pub checked: bool,
    /// The type of a frame that combines several segments.
    pub gso: TapGso,
    /// Bytes of all headers of a frame to be segmented.
    pub header_len: u16,
    /// Bytes of payload of each segment.
    pub gso_size: u16,
    /// Offset from which the checksum is computed, from the frame's start.
    pub checksum_start: u16,
    /// Offset of the checksum field, from `checksum_start`.
    pub checksum_offset: u16,
}

/// The GSO type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TapGso {
    /// A single frame.
    #[default]
    None,
    /// TCP segments of IPv4.
    Tcp4,
    /// TCP segments of IPv6.
    Tcp6,
    /// Another type.
    Other(u8),
}

impl TapHeader {
    /// Length of the header, in bytes.
    pub const LEN: usize = 10;

    /// Parses the header at the start of `bytes`; `None` if they are too short.
    pub fn parse(bytes: &[u8]) -> Option<TapHeader> {
        let bytes: &[u8; TapHeader::LEN] = bytes.first_chunk()?;
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Some(TapHeader {
            needs_checksum: bytes[0] & 1 != 0,
            checked: bytes[0] & 2 != 0,
            gso: match bytes[1] {
                0 => TapGso::None,
                1 => TapGso::Tcp4,
                4 => TapGso::Tcp6,
                other => TapGso::Other(other),
            },
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        })
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; TapHeader::LEN] {
        let mut bytes = [0; TapHeader::LEN];
        bytes[0] = u8::from(self.needs_checksum) | u8::from(self.checked) << 1;
        bytes[1] = match self.gso {
            TapGso::None => 0,
            TapGso::Tcp4 => 1,
            TapGso::Tcp6 => 4,
            TapGso::Other(other) => other,
        };
        let words = [
            self.header_len,
            self.gso_size,
            self.checksum_start,
            self.checksum_offset,
        ];
        for (at, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Whether an interface can have this name. The kernel would replace `%d` by a
/// number, and `all` and `default` are folders of its sysctl settings.
fn is_a_name(name: &str) -> bool {
    let wrong = |byte: u8| matches!(byte, b'/' | b':' | b'%' | 0x0b) || byte.is_ascii_whitespace();
    let taken = matches!(name, "" | "." | ".." | "all" | "default");
    !taken && name.len() <= NAME_MAX && !name.bytes().any(wrong)
}

/// The file end of a TAP interface: frames that the kernel sends on the
/// interface are read here, and frames written here are received on the
/// interface. Frames are complete, without driver headers, and the kernel's
/// checksums are final.
///
/// The interface is removed with this value, unless it is persistent (`ip
/// tuntap add`): then the users it was created for can open it without
/// privilege.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    name: String,
}

impl Tap {
    /// Opens the interface with that name in the calling thread's network
    /// namespace, or creates it. Reading and writing do not block.
    ///
    /// # Errors
    /// If the name is not valid, without privilege, or if the interface is of
    /// another kind or in use.
    pub fn open(name: &str) -> io::Result<Tap> {
        Tap::open_as(name, libc::IFF_TAP)
    }

    /// As [`Tap::open`], with a [`TapHeader`] before each frame: TCP segments
    /// of up to 64 KB, with partial checksums, can be received and sent.
    ///
    /// # Errors
    /// As for [`Tap::open`]; also if the kernel does not support it.
    pub fn open_offloading(name: &str) -> io::Result<Tap> {
        Tap::open_as(name, libc::IFF_TAP | libc::IFF_VNET_HDR)?.offloading()
    }

    /// As [`Tap::open`] or [`Tap::open_offloading`], with `count` queues, each
    /// with a file of its own. The kernel keeps a flow's frames in one queue:
    /// the one by which the flow last sent.
    ///
    /// This process must own all queues: the kernel would give a part of the
    /// flows to a queue that another process opens.
    ///
    /// # Errors
    /// As for [`Tap::open`]; also if the interface was created with a single
    /// queue (`ip tuntap add` without `multi_queue`) or with fewer queues, and
    /// if another process has some of its queues open or opens some at the same
    /// time.
    pub fn open_queues(name: &str, count: usize, offloading: bool) -> io::Result<Vec<Tap>> {
        let header = if offloading { libc::IFF_VNET_HDR } else { 0 };
        let flags = libc::IFF_TAP | libc::IFF_MULTI_QUEUE | header;
        let open = |_| {
            if offloading {
                Tap::open_as(name, flags)?.offloading()
            } else {
                Tap::open_as(name, flags)
            }
        };
        // The kernel lets every permitted user open queues.
        if tap_queues(name)? > 0 {
            return Err(Errno::BUSY.into());
        }
        let ours: Vec<Tap> = (0..count).map(open).collect::<io::Result<_>>()?;
        if tap_queues(name)? as usize > ours.len() {
            Err(Errno::BUSY.into())
        } else {
            Ok(ours)
        }
    }

    fn offloading(self) -> io::Result<Tap> {
        const TUNSETOFFLOAD: Opcode = libc::TUNSETOFFLOAD as Opcode;
        let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // SAFETY: the command takes its flags by value.
        unsafe {
            ioctl(
                &self.file,
                IntegerSetter::<TUNSETOFFLOAD>::new_usize(all as usize),
            )?;
        }
        Ok(self)
    }

    /// As [`Tap::open`], for a TUN interface: IP packets without a link-layer
    /// header are read and written.
    ///
    /// # Errors
    /// As for [`Tap::open`].
    pub fn open_packets(name: &str) -> io::Result<Tap> {
        Tap::open_as(name, libc::IFF_TUN)
    }

    fn open_as(name: &str, flags: libc::c_int) -> io::Result<Tap> {
        if !is_a_name(name) {
            let message = format!(
                "`{name}` is not an interface name: give 1 to {NAME_MAX} bytes, without `/`, \
                 `:`, `%` and blanks"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open("/dev/net/tun", how, Mode::empty())?;
        let request = Request::of(name, Flags::of((libc::IFF_NO_PI | flags) as i16));
        const TUNSETIFF: Opcode = libc::TUNSETIFF as Opcode;
        // SAFETY: the command takes a `struct ifreq`, which `request` has the
        // size of.
        unsafe { ioctl(&file, Setter::<TUNSETIFF, Request<Flags>>::new(request))? };
        let name = name.to_owned();
        Ok(Tap { file, name })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next frame that the kernel sent into `buffer`, truncated to
    /// the buffer's length; returns its length, or `None` if there is none now.
    ///
    /// # Errors
    /// If the interface is down or gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_all(&mut [IoSliceMut::new(buffer)])
    }

    /// As [`Tap::receive`], into several buffers.
    ///
    /// # Errors
    /// As for [`Tap::receive`].
    pub fn receive_all(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        match rustix::io::readv(&self.file, parts) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes a frame to the kernel; `false` if the kernel accepts none now.
    ///
    /// # Errors
    /// If the interface is down or gone, or if the frame is not valid.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        self.send_all(&[IoSlice::new(frame)])
    }

    /// As [`Tap::send`], from several buffers.
    ///
    /// # Errors
    /// As for [`Tap::send`].
    pub fn send_all(&self, parts: &[IoSlice<'_>]) -> io::Result<bool> {
        match rustix::io::writev(&self.file, parts) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
