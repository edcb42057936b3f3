//! libpcap's functions in this process: files go to the system's library, live captures to ports.
#![allow(unsafe_code)] // Calls as C makes them.

use libc::{c_char, c_int, c_uchar};
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_lab::net::Pair;
use weir_lab::testenv;
use weir_pcap::functions::*;
use weir_pcap::types::*;

/// Longest wait of a test.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A handle, closed on drop.
struct Handle(*mut Pcap);

impl Handle {
    /// A capture of an interface, in this process.
    fn live(device: &str, milliseconds: c_int) -> Handle {
        let name = CString::new(device).unwrap();
        let mut error = [0; ERRBUF_SIZE];
        // SAFETY: a C string, and room for a message.
        let handle =
            unsafe { pcap_open_live(name.as_ptr(), 65_535, 1, milliseconds, error.as_mut_ptr()) };
        assert!(!handle.is_null(), "{}", text(error.as_ptr()));
        Handle(handle)
    }

    fn error(&self) -> String {
        // SAFETY: an open handle.
        text(unsafe { pcap_geterr(self.0) })
    }

    fn filter(&self, expression: &str) {
        let expression = CString::new(expression).unwrap();
        let mut program = BpfProgram {
            len: 0,
            insns: null(),
        };
        // SAFETY: an open handle, a program, and a C string.
        unsafe {
            let compiled = pcap_compile(self.0, &raw mut program, expression.as_ptr(), 1, 0);
            assert_eq!(compiled, 0, "{}", self.error());
            assert_eq!(
                pcap_setfilter(self.0, &raw mut program),
                0,
                "{}",
                self.error()
            );
            pcap_freecode(&raw mut program);
        }
    }

    /// The next frame: its captured length, its length, and its last bytes.
    fn next(&self) -> Result<(u32, u32, Vec<u8>), c_int> {
        let (mut header, mut bytes) = (null(), null());
        // SAFETY: an open handle, and room for two pointers.
        match unsafe { pcap_next_ex(self.0, &raw mut header, &raw mut bytes) } {
            1 => {
                // SAFETY: a frame's header and bytes, until the next call.
                let (header, bytes): (PktHdr, _) = unsafe {
                    (
                        *header,
                        std::slice::from_raw_parts(bytes, (*header).caplen as usize),
                    )
                };
                Ok((header.caplen, header.len, bytes[bytes.len() - 4..].to_vec()))
            }
            status => Err(status),
        }
    }

    fn stats(&self) -> Stat {
        let mut stat = Stat::default();
        // SAFETY: an open handle, and room for the counts.
        assert_eq!(unsafe { pcap_stats(self.0, &raw mut stat) }, 0);
        stat
    }

    /// Counts frames by `pcap_dispatch`.
    fn dispatch(&self, count: c_int) -> (c_int, usize) {
        let mut frames = 0_usize;
        let user = (&raw mut frames).cast();
        // SAFETY: an open handle, and a function that takes such a pointer.
        let result = unsafe { pcap_dispatch(self.0, count, counts, user) };
        (result, frames)
    }

    fn set_nonblock(&self) {
        // SAFETY: an open handle; no message is asked for.
        assert_eq!(unsafe { pcap_setnonblock(self.0, 1, null_mut()) }, 0);
    }

    fn is_readable(&self, milliseconds: c_int) -> bool {
        // SAFETY: an open handle.
        let fd = unsafe { pcap_get_selectable_fd(self.0) };
        assert!(fd >= 0, "{}", self.error());
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
    }

    /// Dispatches by an event loop until this many frames came.
    fn dispatch_until(&self, frames: usize) {
        let began = Instant::now();
        let mut seen = 0;
        while seen < frames {
            assert!(began.elapsed() < WAIT_MAX, "{seen} of {frames}");
            if self.is_readable(100) {
                let (result, came) = self.dispatch(-1);
                assert!(result >= 0, "{}", self.error());
                seen += came;
            }
        }
        assert_eq!(seen, frames);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: an open handle, which is not used again.
        unsafe { pcap_close(self.0) };
    }
}

unsafe extern "C" fn counts(user: *mut c_uchar, _: *const PktHdr, _: *const c_uchar) {
    // SAFETY: the tests give a counter.
    unsafe { *user.cast::<usize>() += 1 };
}

fn text(text: *const c_char) -> String {
    // SAFETY: libpcap's C strings.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Two hosts; `None` without root or the system's library.
fn pair() -> Option<Pair> {
    if !testenv::root() || !has_system() {
        return None;
    }
    Some(Pair::new().unwrap())
}

/// Whether the system has its library. A machine may hide it behind a device.
fn has_system() -> bool {
    let there = std::path::Path::new(SYSTEM).is_file();
    if !there {
        testenv::skip("no libpcap (apt install libpcap0.8)");
    }
    there
}

const SYSTEM: &str = concat!("/usr/lib/", env!("WEIR_TRIPLET"), "/libpcap.so.0.8");

#[test]
fn handles_of_the_systems_library_are_told_from_weirs() {
    if !has_system() {
        return;
    }
    // SAFETY: numbers; then an open handle.
    let dead = Handle(unsafe { pcap_open_dead(1, 96) });
    // SAFETY: an open handle.
    assert_eq!(
        unsafe { (pcap_datalink(dead.0), pcap_snapshot(dead.0)) },
        (1, 96)
    );
    // SAFETY: C strings, and room for a message.
    let weirs = unsafe {
        let mut error = [0; ERRBUF_SIZE];
        let created = pcap_create(c"lo".as_ptr(), error.as_mut_ptr());
        assert!(pcap_create(c"any".as_ptr(), error.as_mut_ptr()).is_null());
        assert!(text(error.as_ptr()).contains("one interface"));
        Handle(created)
    };
    // SAFETY: open handles.
    unsafe {
        assert_eq!(pcap_datalink(weirs.0), ERROR_NOT_ACTIVATED);
        assert_eq!(pcap_set_snaplen(weirs.0, 100), 0);
        assert_eq!(
            pcap_set_tstamp_precision(weirs.0, 7),
            ERROR_TSTAMP_PRECISION_NOTSUP
        );
        assert!(text(pcap_lib_version()).contains("weir"));
    }
    assert!(weirs.error().contains("pcap_activate"));
}

#[test]
fn every_function_of_the_systems_library_is_there() {
    if !has_system() {
        return;
    }
    let own = std::fs::read(library()).unwrap();
    let own = functions(&own);
    let system = std::fs::read(SYSTEM).unwrap();
    let system = functions(&system);
    assert!(system.len() > 90, "{system:?}");
    let missing: Vec<_> = system.iter().filter(|name| !own.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Cargo's `libweir_pcap.so`, beside the test or its parent.
fn library() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut places = folders.map(|folder| folder.join("libweir_pcap.so"));
    let found = places.find(|path| path.exists());
    found.unwrap_or_else(|| panic!("libweir_pcap.so is not beside {}", test.display()))
}

/// The functions that a shared object exports.
fn functions(bytes: &[u8]) -> Vec<String> {
    let object = elf::ElfBytes::<elf::endian::AnyEndian>::minimal_parse(bytes).unwrap();
    let (symbols, names) = object.dynamic_symbol_table().unwrap().unwrap();
    let exported = symbols
        .iter()
        .filter(|symbol| !symbol.is_undefined() && symbol.st_symtype() == elf::abi::STT_FUNC);
    let named = exported.map(|symbol| names.get(symbol.st_name as usize).unwrap().to_owned());
    named.collect()
}

#[test]
fn frames_come_one_by_one_and_are_counted() {
    let Some(pair) = pair() else { return };
    let _server = pair.server(5000).unwrap();
    pair.b.run(|| {
        let handle = Handle::live("eth0", 100);
        handle.filter("udp dst port 5000");
        // SAFETY: an open handle.
        assert_eq!(unsafe { pcap_datalink(handle.0) }, 1);
        assert_eq!(handle.next(), Err(0), "the time is over");
        pair.send(5001, 3).unwrap();
        pair.send(5000, 300).unwrap();
        for number in 0..300_u32 {
            let expected = (46, 46, number.to_be_bytes().to_vec());
            assert_eq!(handle.next(), Ok(expected));
        }
        assert_eq!(handle.next(), Err(0));
        assert_eq!((handle.stats().recv, handle.stats().drop), (300, 0));
    });
}

#[test]
fn a_full_queue_loses_and_counts() {
    let Some(pair) = pair() else { return };
    let _server = pair.server(5000).unwrap();
    pair.b.run(|| {
        let handle = Handle::live("weir:eth0?queue=4096", 0);
        handle.filter("udp dst port 5000");
        pair.send(5000, 200).unwrap();
        let stats = handle.stats();
        assert_eq!(stats.recv, 200);
        assert!(stats.drop > 100, "{stats:?}");
        handle.set_nonblock();
        let (result, frames) = handle.dispatch(-1);
        assert_eq!(result as usize, frames);
        assert_eq!(frames, (stats.recv - stats.drop) as usize);
    });
}

#[test]
fn an_event_loop_waits_for_the_descriptor() {
    let Some(pair) = pair() else { return };
    let _server = pair.server(5000).unwrap();
    pair.b.run(|| {
        let handle = Handle::live("eth0", 1000);
        handle.filter("udp dst port 5000");
        handle.set_nonblock();
        assert_eq!(handle.dispatch(-1), (0, 0), "it does not wait");
        pair.send(5000, 10).unwrap();
        assert!(handle.is_readable(5000));
        // What is left of a batch keeps the descriptor readable.
        assert_eq!(handle.dispatch(4), (4, 4));
        assert!(handle.is_readable(0));
        assert_eq!(handle.dispatch(-1), (6, 6));
        assert!(!handle.is_readable(0) || handle.dispatch(-1) == (0, 0));
        for burst in [1, 500, 1, 77] {
            pair.send(5000, burst).unwrap();
            handle.dispatch_until(burst as usize);
        }
    });
}

/// The handle that a signal's handler breaks.
static BROKEN: AtomicPtr<Pcap> = AtomicPtr::new(null_mut());
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn breaks(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test keeps the handle open.
    unsafe { pcap_breakloop(BROKEN.load(Ordering::Relaxed)) };
}

#[test]
fn loops_are_broken_by_threads_and_signals() {
    let Some(pair) = pair() else { return };
    let runs = |handle: &Handle| {
        let mut frames = 0_usize;
        let user = (&raw mut frames).cast();
        // SAFETY: as in `dispatch`.
        let result = unsafe { pcap_loop(handle.0, -1, counts, user) };
        assert_eq!(result, ERROR_BREAK, "{}", handle.error());
    };
    pair.b.run(|| {
        let handle = Handle::live("eth0", 0);
        handle.filter("udp dst port 5000");
        BROKEN.store(handle.0, Ordering::Relaxed);
        // Before the loop.
        breaks(0);
        runs(&handle);
        for _ in 0..20 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    breaks(0);
                });
                runs(&handle);
            });
        }
        // SAFETY: a handler that only breaks a loop.
        unsafe { libc::signal(libc::SIGUSR2, breaks as *const () as libc::sighandler_t) };
        // SAFETY: no argument.
        let thread = unsafe { libc::pthread_self() };
        let before = SIGNALS.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                // SAFETY: the thread waits in the loop, inside the scope.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            });
            runs(&handle);
        });
        assert_eq!(SIGNALS.load(Ordering::Relaxed), before + 1);
        // The loop goes on as if nothing had been.
        let _server = pair.server(5000).unwrap();
        pair.send(5000, 3).unwrap();
        let mut frames = 0_usize;
        let user = (&raw mut frames).cast();
        // SAFETY: as in `dispatch`.
        assert_eq!(unsafe { pcap_loop(handle.0, 3, counts, user) }, 0);
        assert_eq!(frames, 3);
    });
}

/// `PCAP_D_IN`, `PCAP_D_OUT`, and a filter for the frame that the test sends.
const IN: u32 = 1;
const OUT: u32 = 2;
const PROTOCOL: &str = "ether proto 0x88b5";

#[test]
fn frames_are_sent_cut_and_chosen_by_direction() {
    let Some(pair) = pair() else { return };
    let frame = {
        let mut frame = vec![0xff_u8; 6];
        frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
        frame.resize(200, 0x5a);
        frame
    };
    let sent = |handle: &Handle| {
        // SAFETY: an open handle, and the frame's bytes.
        let sent = unsafe { pcap_inject(handle.0, frame.as_ptr().cast(), frame.len()) };
        assert_eq!(sent, 200, "{}", handle.error());
    };
    let cut = |direction, filter| {
        let mut error = [0; ERRBUF_SIZE];
        // SAFETY: a C string and room for a message; then a new handle.
        let handle = unsafe {
            let handle = Handle(pcap_create(c"eth0".as_ptr(), error.as_mut_ptr()));
            pcap_set_snaplen(handle.0, 40);
            pcap_set_timeout(handle.0, 300);
            pcap_set_immediate_mode(handle.0, 1);
            assert_eq!(pcap_activate(handle.0), 0, "{}", handle.error());
            assert_eq!(pcap_setdirection(handle.0, direction), 0);
            handle
        };
        handle.filter(filter);
        handle
    };
    let receiver = pair
        .b
        .run(|| AtomicPtr::new(std::mem::ManuallyDrop::new(cut(IN, PROTOCOL)).0));
    let _server = pair.server(5000).unwrap();
    pair.a.run(|| {
        let (out, into) = (cut(OUT, "udp"), cut(IN, "udp"));
        pair.send(5000, 1).unwrap();
        assert_eq!(out.next(), Ok((40, 46, vec![0x13, 0x88, 0, 12])));
        assert_eq!(into.next(), Err(0));
        sent(&out);
    });
    let receiver = Handle(receiver.into_inner());
    assert_eq!(receiver.next(), Ok((40, 200, vec![0x5a; 4])));
    assert_eq!(receiver.stats().recv, 1);
}

#[test]
fn a_capture_says_that_its_interface_disappeared() {
    let Some(pair) = pair() else { return };
    pair.b.run(|| {
        let blocking = Handle::live("eth0", 0);
        let polled = Handle::live("eth0", 0);
        polled.set_nonblock();
        assert!(!polled.is_readable(0));
        pair.a.device("eth0").unwrap().delete().unwrap();
        while blocking.next().is_ok() {}
        assert!(
            blocking.error().contains("disappeared"),
            "{}",
            blocking.error()
        );
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < WAIT_MAX, "it is never readable");
            if polled.is_readable(1000) && polled.dispatch(-1).0 < 0 {
                break;
            }
        }
        assert!(polled.error().contains("disappeared"), "{}", polled.error());
    });
}

#[test]
fn a_frame_goes_to_a_file_and_comes_back_from_it() {
    let Some(pair) = pair() else { return };
    let _server = pair.server(5000).unwrap();
    let name = format!("weir-pcap-{}.pcap", std::process::id());
    let path = std::env::temp_dir().join(name);
    let name = CString::new(path.to_str().unwrap()).unwrap();
    pair.b.run(|| {
        let handle = Handle::live("eth0", 1000);
        handle.filter("udp dst port 5000");
        pair.send(5000, 5).unwrap();
        // SAFETY: an open handle, a C string, and the dump's own function.
        unsafe {
            let file = pcap_dump_open(handle.0, name.as_ptr());
            assert!(!file.is_null(), "{}", handle.error());
            assert_eq!(pcap_loop(handle.0, 5, pcap_dump_c, file.cast()), 0);
            pcap_dump_close(file);
        }
    });
    let mut error = [0; ERRBUF_SIZE];
    // SAFETY: a C string, and room for a message.
    let file = Handle(unsafe { pcap_open_offline(name.as_ptr(), error.as_mut_ptr()) });
    file.filter("udp dst port 5000");
    for number in 0..5_u32 {
        assert_eq!(file.next(), Ok((46, 46, number.to_be_bytes().to_vec())));
    }
    assert_eq!(file.next(), Err(ERROR_BREAK), "the end of the file");
    std::fs::remove_file(path).unwrap();
}

unsafe extern "C" fn pcap_dump_c(to: *mut c_uchar, header: *const PktHdr, bytes: *const c_uchar) {
    // SAFETY: the caller's arguments.
    unsafe { pcap_dump(to, header, bytes) };
}
