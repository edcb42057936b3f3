//! TAP: an Ethernet interface of the kernel whose other end is a file
//! descriptor.
#![allow(unsafe_code)] // The ioctl that makes the interface.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl};
use std::ffi::c_char;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest name of an interface, in bytes.
const NAME_MAX: usize = 15;

/// `struct ifreq`: a name and a union of 24 bytes, here flags.
#[repr(C)]
struct Request {
    name: [c_char; NAME_MAX + 1],
    flags: i16,
    rest: [u8; 22],
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
    /// If the name is empty or longer than 15 bytes, without privilege, if it
    /// is another kind of interface or in use.
    pub fn open(name: &str) -> io::Result<Tap> {
        if name.is_empty() || name.len() > NAME_MAX {
            let message =
                format!("`{name}` is no name of an interface: give 1 to {NAME_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open("/dev/net/tun", flags, Mode::empty())?;
        let mut request = Request {
            name: [0; NAME_MAX + 1],
            flags: (libc::IFF_TAP | libc::IFF_NO_PI) as i16,
            rest: [0; 22],
        };
        for (to, from) in request.name.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        const TUNSETIFF: Opcode = libc::TUNSETIFF as Opcode;
        // SAFETY: the command takes a `struct ifreq`, whose size this has.
        unsafe { ioctl(&file, Setter::<TUNSETIFF, Request>::new(request))? };
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
        match rustix::io::read(&self.file, buffer) {
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
        match rustix::io::write(&self.file, frame) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
