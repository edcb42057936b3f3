//! A simple bridge on libpcap: two handles, each of which sends the frames that
//! the other receives.
#![expect(
    unsafe_code,
    reason = "libpcap is a C library; this bridge's calls are wrapped here"
)]

use super::thread_dut::Worker;
use crate::libpcap;
use crate::net::Device;
use crate::rfc2544::Error;
use crate::rfc2544::testbed::Testbed;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uchar, c_void};
use std::io;

/// Bytes of each handle's ring.
const BUFFER_BYTES: c_int = 16 << 20;

const SNAPLEN: c_int = 2048;

/// Largest number of frames in one dispatch, so that neither direction starves.
const DISPATCH_MAX: c_int = 256;

/// `PCAP_D_IN`: received frames.
const DIRECTION_IN: c_int = 1;

/// `PCAP_ERRBUF_SIZE`.
const ERROR_BYTES: usize = 256;

/// C's `pcap_t`.
type Handle = c_void;

/// C's `struct pcap_pkthdr`.
#[repr(C)]
struct Header {
    seconds: c_long,
    microseconds: c_long,
    caplen: u32,
    len: u32,
}

type Callback = extern "C" fn(*mut c_uchar, *const Header, *const c_uchar);
type Set = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
type Inject = unsafe extern "C" fn(*mut Handle, *const c_void, usize) -> c_int;
type Dispatch = unsafe extern "C" fn(*mut Handle, c_int, Callback, *mut c_uchar) -> c_int;
type Create = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut Handle;
type SetNonBlock = unsafe extern "C" fn(*mut Handle, c_int, *mut c_char) -> c_int;
type Close = unsafe extern "C" fn(*mut Handle);
type Activate = unsafe extern "C" fn(*mut Handle) -> c_int;
type GetError = unsafe extern "C" fn(*mut Handle) -> *const c_char;

/// The library's functions.
struct Pcap {
    create: Create,
    set_snaplen: Set,
    set_promisc: Set,
    set_immediate_mode: Set,
    set_buffer_size: Set,
    activate: Activate,
    set_direction: Set,
    set_nonblock: SetNonBlock,
    dispatch: Dispatch,
    inject: Inject,
    get_error: GetError,
    close: Close,
    _library: Library,
}

impl Pcap {
    fn load() -> Result<Pcap, Error> {
        let opened = libpcap::open().and_then(Pcap::of);
        opened.map_err(|_| Error::Missing {
            what: "libpcap".into(),
            remedy: libpcap::REMEDY,
        })
    }

    fn of(library: Library) -> Result<Pcap, libloading::Error> {
        // SAFETY: each name is looked up with the type that <pcap/pcap.h>
        // gives it since 1.5.
        unsafe {
            Ok(Pcap {
                create: *library.get(b"pcap_create\0")?,
                set_snaplen: *library.get(b"pcap_set_snaplen\0")?,
                set_promisc: *library.get(b"pcap_set_promisc\0")?,
                set_immediate_mode: *library.get(b"pcap_set_immediate_mode\0")?,
                set_buffer_size: *library.get(b"pcap_set_buffer_size\0")?,
                activate: *library.get(b"pcap_activate\0")?,
                set_direction: *library.get(b"pcap_setdirection\0")?,
                set_nonblock: *library.get(b"pcap_setnonblock\0")?,
                dispatch: *library.get(b"pcap_dispatch\0")?,
                inject: *library.get(b"pcap_inject\0")?,
                get_error: *library.get(b"pcap_geterr\0")?,
                close: *library.get(b"pcap_close\0")?,
                _library: library,
            })
        }
    }

    /// A handle that receives the frames arriving at an interface of the
    /// calling thread's namespace.
    fn open(&self, name: &str) -> io::Result<*mut Handle> {
        let name = CString::new(name)?;
        let mut error = [0; ERROR_BYTES];
        // SAFETY: the name is NUL-terminated, the buffer has the documented
        // size, and the handle is used only until it is closed.
        unsafe {
            let handle = (self.create)(name.as_ptr(), error.as_mut_ptr());
            if handle.is_null() {
                let text = CStr::from_ptr(error.as_ptr()).to_string_lossy();
                return Err(io::Error::other(text.into_owned()));
            }
            (self.set_snaplen)(handle, SNAPLEN);
            (self.set_promisc)(handle, 1);
            (self.set_immediate_mode)(handle, 1);
            (self.set_buffer_size)(handle, BUFFER_BYTES);
            let failed = (self.activate)(handle) < 0
                || (self.set_direction)(handle, DIRECTION_IN) != 0
                || (self.set_nonblock)(handle, 1, error.as_mut_ptr()) != 0;
            if failed {
                let text = CStr::from_ptr((self.get_error)(handle));
                let text = text.to_string_lossy().into_owned();
                (self.close)(handle);
                return Err(io::Error::other(text));
            }
            Ok(handle)
        }
    }
}

/// Two open handles, used by one thread.
struct Bridge {
    pcap: Pcap,
    handles: [*mut Handle; 2],
}

impl Bridge {
    fn open(pcap: Pcap, names: &[String; 2]) -> io::Result<Bridge> {
        let first = pcap.open(&names[0])?;
        // If the second handle fails, the first is closed.
        let mut bridge = Bridge {
            pcap,
            handles: [first, std::ptr::null_mut()],
        };
        bridge.handles[1] = bridge.pcap.open(&names[1])?;
        Ok(bridge)
    }

    /// Forwards available frames in both directions.
    fn pass(&self) -> io::Result<()> {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut out = Out {
                inject: self.pcap.inject,
                handle: self.handles[to],
            };
            // SAFETY: both handles are open, and `out` outlives the call,
            // during which only the library passes it on.
            let count = unsafe {
                let out = (&raw mut out).cast();
                (self.pcap.dispatch)(self.handles[from], DISPATCH_MAX, forward, out)
            };
            if count < 0 {
                // SAFETY: the handle is open and owns the text.
                let text = unsafe { CStr::from_ptr((self.pcap.get_error)(self.handles[from])) };
                return Err(io::Error::other(text.to_string_lossy().into_owned()));
            }
        }
        Ok(())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for handle in self.handles.iter().filter(|handle| !handle.is_null()) {
            // SAFETY: the handle is open and not used afterwards.
            unsafe { (self.pcap.close)(*handle) };
        }
    }
}

/// The destination of a frame.
struct Out {
    inject: Inject,
    handle: *mut Handle,
}

/// Sends a frame; a frame that the kernel refuses is lost.
extern "C" fn forward(out: *mut c_uchar, header: *const Header, bytes: *const c_uchar) {
    // SAFETY: libpcap passes back the pointer to `Out` given by `pass`, and a
    // header with the stated number of bytes, all valid until this function
    // returns.
    unsafe {
        let out = &*out.cast::<Out>();
        (out.inject)(out.handle, bytes.cast(), (*header).caplen as usize);
    }
}

/// Starts the bridge.
pub(super) fn start(bench: &Testbed, ports: &[Device; 2]) -> Result<Worker, Error> {
    let pcap = Pcap::load()?;
    let names = ports.each_ref().map(|port| port.name().to_owned());
    let open = move || Bridge::open(pcap, &names);
    Worker::start(bench, "libpcap-bridge", open, |bridge| bridge.pass())
}
