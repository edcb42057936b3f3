//! TAP: an Ethernet interface of the kernel whose other end is a file
//! descriptor.
#![allow(unsafe_code)] // The ioctls that make the interface.

use super::ifreq::{Flags, Request};
use super::interface::tap_queues;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest name of an interface, in bytes.
const NAME_MAX: usize = 15;

/// What stands before each frame of a [`Tap::open_offloading`]: `struct
/// virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TapHeader {
    /// The checksum at `checksum_start + checksum_offset` is to be completed:
    /// it is the pseudo-header's sum so far.
    pub needs_checksum: bool,
    /// The kernel has checked it, or it never was on a wire. Towards us only.
    pub checked: bool,
    /// Several segments in one, or one to be cut into several.
    pub gso: TapGso,
    /// Bytes of all headers of a frame that is to be cut.
    pub header_len: u16,
    /// Bytes of payload of each segment.
    pub gso_size: u16,
    /// Where the checksum's bytes start, counted from the frame's first.
    pub checksum_start: u16,
    /// Where it is, counted from there.
    pub checksum_offset: u16,
}

/// What a frame that stands for several is made of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TapGso {
    /// It is one frame.
    #[default]
    None,
    /// TCP segments of IPv4.
    Tcp4,
    /// TCP segments of IPv6.
    Tcp6,
    /// Something else.
    Other(u8),
}

impl TapHeader {
    /// Its length, in bytes.
    pub const LEN: usize = 10;

    /// The header that these bytes begin with; `None` if they are fewer.
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

    /// Its bytes.
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

/// Whether an interface can have this name: with `%d` in it the kernel would
/// choose a number, and `all` and `default` are folders of its settings.
fn is_a_name(name: &str) -> bool {
    let wrong = |byte: u8| matches!(byte, b'/' | b':' | b'%' | 0x0b) || byte.is_ascii_whitespace();
    let taken = matches!(name, "" | "." | ".." | "all" | "default");
    !taken && name.len() <= NAME_MAX && !name.bytes().any(wrong)
}

/// One end of a TAP interface: what the kernel sends on the interface is read
/// here, what is written here arrives there. Frames are whole, without
/// headers of the driver's; the kernel's checksums are complete.
///
/// The interface goes with this end, unless it was made to stay (`ip tuntap
/// add`): then anybody it was made for may open it, without privilege.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    name: String,
}

impl Tap {
    /// Opens the interface of that name in the calling thread's network
    /// namespace, or makes it. Reading and writing do not block.
    ///
    /// # Errors
    /// If nothing can have this name, without privilege, if it is another kind
    /// of interface or in use.
    pub fn open(name: &str) -> io::Result<Tap> {
        Tap::open_as(name, libc::IFF_TAP)
    }

    /// As [`Tap::open`], where each frame has a [`TapHeader`] before it: TCP
    /// segments come, and may be sent, up to 64 KB long and with checksums yet
    /// to be completed.
    ///
    /// # Errors
    /// As there; if the kernel knows no such thing.
    pub fn open_offloading(name: &str) -> io::Result<Tap> {
        Tap::open_as(name, libc::IFF_TAP | libc::IFF_VNET_HDR)?.offloading()
    }

    /// As [`Tap::open`], or as [`Tap::open_offloading`], of an interface of so
    /// many queues, each with a file of its own: the kernel keeps a flow's
    /// frames in one queue, which is the one that the flow was sent by last.
    ///
    /// All its queues are ours: what another program opens there, the kernel
    /// would give a part of our flows.
    ///
    /// # Errors
    /// As there; if the interface was made for one file alone (`ip tuntap add`
    /// without `multi_queue`), or for fewer; if another program has some of its
    /// queues, which then keeps them, or opens some at the same time.
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
        // The kernel lets anybody in who may use the interface.
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

    /// As [`Tap::open`], of a TUN interface: what is read and written are IP
    /// packets, without a link-layer header.
    ///
    /// # Errors
    /// As there.
    pub fn open_packets(name: &str) -> io::Result<Tap> {
        Tap::open_as(name, libc::IFF_TUN)
    }

    fn open_as(name: &str, flags: libc::c_int) -> io::Result<Tap> {
        if !is_a_name(name) {
            let message = format!(
                "`{name}` is no name of an interface: give 1 to {NAME_MAX} bytes, without `/`, \
                 `:`, `%` and blanks"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open("/dev/net/tun", how, Mode::empty())?;
        let request = Request::of(name, Flags::of((libc::IFF_NO_PI | flags) as i16));
        const TUNSETIFF: Opcode = libc::TUNSETIFF as Opcode;
        // SAFETY: the command takes a `struct ifreq`, whose size this has.
        unsafe { ioctl(&file, Setter::<TUNSETIFF, Request<Flags>>::new(request))? };
        let name = name.to_owned();
        Ok(Tap { file, name })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next frame that the kernel has sent: its length, in `buffer`, cut
    /// to that; `None` if there is none now.
    ///
    /// # Errors
    /// If the interface is down or gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_all(&mut [IoSliceMut::new(buffer)])
    }

    /// As [`Tap::receive`], where the parts of a frame are to lie apart.
    ///
    /// # Errors
    /// As there.
    pub fn receive_all(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        match rustix::io::readv(&self.file, parts) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands a frame to the kernel; false if it takes none now.
    ///
    /// # Errors
    /// If the interface is down or gone, or the frame no frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        self.send_all(&[IoSlice::new(frame)])
    }

    /// As [`Tap::send`], of a frame whose parts lie apart.
    ///
    /// # Errors
    /// As there.
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
