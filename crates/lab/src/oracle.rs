//! libpcap as an oracle: the expressions that it accepts, its programs, and
//! their verdicts.
//!
//! The library is opened at run time by `dlopen`. The `pcap` crate links at
//! build time, so that `cargo test --workspace` would not build without
//! libpcap, and one build could not be compared with two versions. A missing
//! library skips the tests that need it ([`testenv::skip`]), and
//! `WEIR_LIBPCAP=/path/libpcap.so` selects another version.
//!
//! ```no_run
//! use weir_lab::oracle::Oracle;
//! use weir_wire::LinkType;
//!
//! let Some(oracle) = Oracle::load() else { return };
//! let filter = oracle.compile("tcp port 80", LinkType::EN10MB, true).unwrap();
//! println!("{}: {} instructions", oracle.version(), filter.insns().len());
//! assert_eq!(filter.run(&[0; 60], 60), 0);
//! ```
#![expect(
    unsafe_code,
    reason = "libpcap is a C library; its calls are wrapped here and nowhere else"
)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uchar, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::Library;
use weir_filter::lang::cbpf::Insn;
use weir_wire::LinkType;

use crate::{libpcap, testenv};

/// The snap length of [`Oracle::compile`], tcpdump's default: the return value
/// of an accepting program.
pub const SNAPLEN: u32 = 262_144;

/// libpcap's `PCAP_NETMASK_UNKNOWN`.
const NETMASK_UNKNOWN: u32 = 0xffff_ffff;

/// libpcap's `PCAP_ERRBUF_SIZE`.
const ERRBUF_BYTES: usize = 256;

/// Largest number of instructions that libpcap's interpreter is given.
const INSNS_MAX: usize = 1 << 20;

/// A capture file's header: magic number, version, two zero words, snap length
/// and link type.
const FILE_HEADER_WORDS: usize = 6;

/// C's `pcap_t`.
type Handle = c_void;

/// C's `struct bpf_program`.
#[repr(C)]
struct RawProgram {
    len: c_uint,
    insns: *mut Insn,
}

/// C's `struct pcap_pkthdr`; the `struct timeval` is two C longs.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawHeader {
    seconds: c_long,
    microseconds: c_long,
    caplen: u32,
    len: u32,
}

type OpenOffline = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut Handle;
type Close = unsafe extern "C" fn(*mut Handle);
type Compile =
    unsafe extern "C" fn(*mut Handle, *mut RawProgram, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut RawProgram);
type GetErr = unsafe extern "C" fn(*mut Handle) -> *const c_char;
type OfflineFilter =
    unsafe extern "C" fn(*const RawProgram, *const RawHeader, *const c_uchar) -> c_int;
type Validate = unsafe extern "C" fn(*const Insn, c_int) -> c_int;
type LibVersion = unsafe extern "C" fn() -> *const c_char;
type DataLink = unsafe extern "C" fn(*mut Handle) -> c_int;
type NextEx =
    unsafe extern "C" fn(*mut Handle, *mut *const RawHeader, *mut *const c_uchar) -> c_int;

/// A loaded libpcap.
///
/// Can be used by several threads: compiling takes a lock, running does not.
///
/// Expressions are compiled on the handle of an empty capture file, as by
/// `tcpdump -r`, not on one of `pcap_open_dead`: only then does libpcap know
/// that there is no live device to query, and that address families may be
/// another system's.
pub struct Oracle {
    version: String,
    /// The handle for each link type and snap length. Locked during
    /// `pcap_compile`: before 1.8 its parser was global, and its name look-ups
    /// still share static buffers.
    handles: Mutex<HashMap<(u32, u32), OpenHandle>>,
    open_offline: OpenOffline,
    close: Close,
    compile: Compile,
    free_code: FreeCode,
    get_err: GetErr,
    offline_filter: OfflineFilter,
    validate: Validate,
    data_link: DataLink,
    next_ex: NextEx,
    /// The last field, so that it is dropped, and the library unloaded, after
    /// everything else.
    _library: Library,
}

/// One frame that libpcap read from a capture file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The captured bytes.
    pub bytes: Vec<u8>,
    /// The length on the wire.
    pub wire_len: u32,
}

/// A capture file as libpcap reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture {
    /// The link type of every frame (libpcap reads no file with several link
    /// types).
    pub linktype: LinkType,
    /// The frames, in order.
    pub frames: Vec<Frame>,
    /// The error that ended reading early.
    pub error: Option<String>,
}

impl Oracle {
    /// Opens the library that `WEIR_LIBPCAP` names, otherwise the system's
    /// `libpcap.so.1` or `libpcap.so.0.8`; `None` (after [`testenv::skip`]) if
    /// there is none.
    ///
    /// # Panics
    /// If `WEIR_LIBPCAP` names a library that cannot be used, or under CI
    /// without libpcap.
    pub fn load() -> Option<Oracle> {
        match (
            libpcap::open().and_then(Oracle::of),
            std::env::var_os(libpcap::VARIABLE),
        ) {
            (Ok(oracle), _) => return Some(oracle),
            (Err(error), Some(path)) => panic!("{}={}: {error}", libpcap::VARIABLE, path.display()),
            (Err(_), None) => testenv::skip(&format!("no libpcap ({})", libpcap::REMEDY)),
        }
        None
    }

    fn of(library: Library) -> Result<Oracle, libloading::Error> {
        // SAFETY: each name is looked up with the type that <pcap/pcap.h> and
        // <pcap/bpf.h> give it in every version since 1.0.
        unsafe {
            let lib_version: LibVersion = *library.get(b"pcap_lib_version\0")?;
            // A static string of the library.
            let version = CStr::from_ptr(lib_version()).to_string_lossy().into_owned();
            Ok(Oracle {
                version,
                handles: Mutex::default(),
                open_offline: *library.get(b"pcap_open_offline\0")?,
                close: *library.get(b"pcap_close\0")?,
                compile: *library.get(b"pcap_compile\0")?,
                free_code: *library.get(b"pcap_freecode\0")?,
                get_err: *library.get(b"pcap_geterr\0")?,
                offline_filter: *library.get(b"pcap_offline_filter\0")?,
                validate: *library.get(b"bpf_validate\0")?,
                data_link: *library.get(b"pcap_datalink\0")?,
                next_ex: *library.get(b"pcap_next_ex\0")?,
                _library: library,
            })
        }
    }

    /// The library's version string, such as `libpcap version 1.10.3 (with …)`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The version as numbers, such as `(1, 10)`; `None` if the string has
    /// none.
    pub fn version_numbers(&self) -> Option<(u32, u32)> {
        let numbers = self.version.strip_prefix("libpcap version ")?;
        let (major, rest) = numbers.split_once('.')?;
        let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Compiles `text` for frames of `linktype` with snap length [`SNAPLEN`]
    /// and no known netmask; the error is libpcap's own text.
    pub fn compile(
        &self,
        text: &str,
        linktype: LinkType,
        optimise: bool,
    ) -> Result<Filter<'_>, String> {
        self.compile_with(text, linktype, SNAPLEN, NETMASK_UNKNOWN, optimise)
    }

    /// As [`compile`](Self::compile), with the given snap length and netmask
    /// (host order; all ones: unknown).
    pub fn compile_with(
        &self,
        text: &str,
        linktype: LinkType,
        snaplen: u32,
        netmask: u32,
        optimise: bool,
    ) -> Result<Filter<'_>, String> {
        let text = CString::new(text).map_err(|_| "a zero byte in the text".to_owned())?;
        // A poisoned lock protects valid data: the panic was in a test.
        let mut handles = self.handles.lock().unwrap_or_else(|held| held.into_inner());
        let handle = match handles.entry((linktype.0, snaplen)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.open_empty(linktype, snaplen)?),
        };
        let mut raw = RawProgram {
            len: 0,
            insns: std::ptr::null_mut(),
        };
        // SAFETY: the handle is open and, with the lock held, not in use
        // elsewhere; the text is NUL-terminated, and the library fills `raw`.
        let error = unsafe {
            let status = (self.compile)(
                handle.0.as_ptr(),
                &raw mut raw,
                text.as_ptr(),
                c_int::from(optimise),
                netmask,
            );
            (status != 0).then(|| self.error_text(handle.0))
        };
        match error {
            Some(error) => Err(error),
            None => Ok(Filter {
                oracle: self,
                raw,
                owned: None,
            }),
        }
    }

    /// A filter with given instructions for libpcap's interpreter; an error if
    /// libpcap's validation refuses them.
    pub fn filter_of(&self, insns: &[Insn]) -> Result<Filter<'_>, String> {
        if insns.is_empty() || insns.len() > INSNS_MAX {
            return Err(format!("{} instructions", insns.len()));
        }
        let mut owned = insns.to_vec();
        let count = owned.len() as c_uint;
        // SAFETY: the pointer and the count are of one live vector, which is
        // only read.
        if unsafe { (self.validate)(owned.as_ptr(), count as c_int) } == 0 {
            return Err("bpf_validate refuses the program".to_owned());
        }
        let raw = RawProgram {
            len: count,
            insns: owned.as_mut_ptr(),
        };
        Ok(Filter {
            oracle: self,
            raw,
            owned: Some(owned),
        })
    }

    /// Opens a capture file without frames.
    fn open_empty(&self, linktype: LinkType, snaplen: u32) -> Result<OpenHandle, String> {
        let words: [u32; FILE_HEADER_WORDS] = [0xa1b2_c3d4, 0, 0, 0, snaplen, linktype.0];
        let mut header: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // The version, 2.4, is two halves of the second word.
        header[4..6].copy_from_slice(&2u16.to_ne_bytes());
        header[6..8].copy_from_slice(&4u16.to_ne_bytes());
        let file = NamedFile::new(&header).map_err(|error| error.to_string())?;
        self.open_file(&file.0).map(OpenHandle)
    }

    /// Reads a capture file with libpcap.
    pub fn read(&self, path: &Path) -> Result<Capture, String> {
        let mut frames = Vec::new();
        let (linktype, error) = self.visit(path, |bytes, wire_len| {
            frames.push(Frame {
                bytes: bytes.to_vec(),
                wire_len,
            });
        })?;
        Ok(Capture {
            linktype,
            frames,
            error,
        })
    }

    /// Calls `visit` with each frame of a capture file, as `pcap_next_ex` lends
    /// it: captured bytes and wire length. Returns the file's link type, and
    /// the error that ended reading early, if any.
    pub fn visit(
        &self,
        path: &Path,
        mut visit: impl FnMut(&[u8], u32),
    ) -> Result<(LinkType, Option<String>), String> {
        let handle = self.open_file(path)?;
        // SAFETY: the handle is open, and closed once after its last use.
        unsafe {
            let linktype = linktype_of((self.data_link)(handle.as_ptr()));
            let error = self.visit_frames(handle, &mut visit);
            (self.close)(handle.as_ptr());
            Ok((linktype, error))
        }
    }

    fn open_file(&self, path: &Path) -> Result<NonNull<Handle>, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| "a zero byte in the path".to_owned())?;
        let mut message = [0 as c_char; ERRBUF_BYTES];
        // SAFETY: the name is NUL-terminated, the buffer has the documented
        // size; the result is checked for null.
        let handle = unsafe { (self.open_offline)(name.as_ptr(), message.as_mut_ptr()) };
        NonNull::new(handle).ok_or_else(|| {
            // SAFETY: on failure the library has written a C string there.
            let text = unsafe { CStr::from_ptr(message.as_ptr()) };
            text.to_string_lossy().into_owned()
        })
    }

    /// Reads to the end of an open file.
    ///
    /// # Safety
    /// `handle` is open.
    unsafe fn visit_frames(
        &self,
        handle: NonNull<Handle>,
        visit: &mut impl FnMut(&[u8], u32),
    ) -> Option<String> {
        loop {
            let mut header: *const RawHeader = std::ptr::null();
            let mut bytes: *const c_uchar = std::ptr::null();
            // SAFETY: the handle is open; on success (1) both pointers refer to
            // a header and to `caplen` bytes, valid until the next call, and
            // are not used after it.
            unsafe {
                match (self.next_ex)(handle.as_ptr(), &raw mut header, &raw mut bytes) {
                    1 => {
                        let RawHeader { caplen, len, .. } = *header;
                        visit(std::slice::from_raw_parts(bytes, caplen as usize), len);
                    }
                    -2 => return None,
                    _ => return Some(self.error_text(handle)),
                }
            }
        }
    }

    /// The handle's last error message.
    ///
    /// # Safety
    /// `handle` is open.
    unsafe fn error_text(&self, handle: NonNull<Handle>) -> String {
        // SAFETY: an open handle owns a C string for its errors.
        let text = unsafe { CStr::from_ptr((self.get_err)(handle.as_ptr())) };
        text.to_string_lossy().into_owned()
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let handles = self.handles.get_mut();
        for (_, handle) in handles.unwrap_or_else(|held| held.into_inner()).drain() {
            // SAFETY: the handle is open, and not used afterwards.
            unsafe { (self.close)(handle.0.as_ptr()) }
        }
    }
}

/// An open `pcap_t`, used under a lock.
struct OpenHandle(NonNull<Handle>);

// SAFETY: libpcap keeps no thread-specific state in a handle; one thread at a
// time uses it.
unsafe impl Send for OpenHandle {}

/// A file that is deleted when dropped.
struct NamedFile(PathBuf);

impl NamedFile {
    fn new(content: &[u8]) -> std::io::Result<NamedFile> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-oracle-{}-{number}.pcap", std::process::id());
        let file = NamedFile(std::env::temp_dir().join(name));
        std::fs::write(&file.0, content)?;
        Ok(file)
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        // A file left behind does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A program compiled by libpcap or given to its interpreter.
pub struct Filter<'o> {
    oracle: &'o Oracle,
    raw: RawProgram,
    /// The instructions, if this process and not libpcap allocated them.
    owned: Option<Vec<Insn>>,
}

// SAFETY: the instructions are only read once the filter is made, and freed
// by its one owner; libpcap keeps no thread's state in them.
unsafe impl Send for Filter<'_> {}
// SAFETY: as above; running a filter writes nothing shared.
unsafe impl Sync for Filter<'_> {}

impl Filter<'_> {
    /// Its instructions.
    pub fn insns(&self) -> &[Insn] {
        // SAFETY: pointer and length are libpcap's or those of `owned`, and
        // live as long as the filter.
        unsafe { std::slice::from_raw_parts(self.raw.insns, self.raw.len as usize) }
    }

    /// The verdict of libpcap's interpreter (`pcap_offline_filter`) on a frame:
    /// 0 rejects.
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        let header = RawHeader {
            seconds: 0,
            microseconds: 0,
            caplen: u32::try_from(bytes.len()).expect("a frame is shorter than 4 GB"),
            len: wire_len,
        };
        // SAFETY: libpcap compiled or validated the program, so that it ends
        // and stays within its scratch memory; the header has the frame's
        // number of bytes.
        let verdict = unsafe {
            (self.oracle.offline_filter)(&raw const self.raw, &raw const header, bytes.as_ptr())
        };
        verdict.cast_unsigned()
    }
}

impl Drop for Filter<'_> {
    fn drop(&mut self) {
        if self.owned.is_none() {
            // SAFETY: libpcap allocated the instructions, and they are freed
            // once, here.
            unsafe { (self.oracle.free_code)(&raw mut self.raw) }
        }
    }
}

/// The file's link type for the `dlt` of libpcap on Linux: the same number,
/// except for raw IP.
fn linktype_of(dlt: c_int) -> LinkType {
    match dlt {
        12 => LinkType::RAW,
        other => LinkType(other.cast_unsigned()),
    }
}
