//! `struct ifreq`: ioctl arguments of an interface, by name.

use std::ffi::c_char;

/// Bytes of a name, including the terminating NUL.
const NAME_BYTES: usize = 16;

/// A name, and a union of 24 bytes, of which `T` is one member.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Request<T> {
    name: [c_char; NAME_BYTES],
    pub(crate) value: T,
}

impl<T> Request<T> {
    /// For the interface with that name; a longer name than possible is cut.
    pub(crate) fn of(interface: &str, value: T) -> Request<T> {
        const { assert!(size_of::<T>() == 24, "the union's size") };
        let mut name = [0; NAME_BYTES];
        // The last byte stays zero.
        for (to, from) in name[..NAME_BYTES - 1].iter_mut().zip(interface.bytes()) {
            *to = from as c_char;
        }
        Request { name, value }
    }
}

/// The union member for an interface's flags.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Flags {
    pub(crate) flags: i16,
    rest: [u16; 3],
    more: [u64; 2],
}

impl Flags {
    pub(crate) fn of(flags: i16) -> Flags {
        Flags {
            flags,
            rest: [0; 3],
            more: [0; 2],
        }
    }
}
