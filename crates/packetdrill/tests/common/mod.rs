//! Loads the shared object and calls it as packetdrill does: by the positions
//! of the functions in its table, which are listed here independently.

use std::ffi::{CString, c_int, c_long, c_void};
use std::path::PathBuf;

pub(crate) const EINPROGRESS: i32 = libc::EINPROGRESS;

/// `struct packetdrill_interface`: user data, `free`, and 31 functions.
const WORDS: usize = 33;
const FREE: usize = 1;
const SOCKET: usize = 2;
const BIND: usize = 3;
const LISTEN: usize = 4;
const ACCEPT: usize = 5;
const CONNECT: usize = 6;
const READ: usize = 7;
const WRITE: usize = 12;
const FCNTL: usize = 17;
const CLOSE: usize = 19;
const NETDEV_SEND: usize = 24;
const NETDEV_RECEIVE: usize = 25;
const USLEEP: usize = 26;
const GETTIMEOFDAY: usize = 27;

pub(crate) struct Drill {
    table: [usize; WORDS],
}

/// The folder of Cargo's build results: the test's or its parent.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let name = "libweir_packetdrill.so";
    let folders = test.ancestors().skip(1).take(2);
    let places = folders.map(|folder| folder.join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", test.display()))
}

impl Drill {
    pub(crate) fn new(flags: &str) -> Drill {
        let flags = CString::new(flags).unwrap();
        let mut table = [0; WORDS];
        // SAFETY: the library is this crate's own, and has no initialisers.
        let library = unsafe { libloading::Library::new(library()) }.expect("can be loaded");
        type Init = unsafe extern "C" fn(*const i8, *mut [usize; WORDS]);
        // SAFETY: the function has this type in packetdrill's header.
        let init = unsafe { library.get::<Init>(b"packetdrill_interface_init\0") };
        let init = init.expect("is there");
        // SAFETY: the text is NUL-terminated; the table has the stated length.
        unsafe { init(flags.as_ptr().cast(), &mut table) };
        assert!(table.iter().all(|word| *word != 0), "the table is filled");
        // Never unloaded (`RTLD_NODELETE`), as by packetdrill: threads keep
        // pointers into the library.
        std::mem::forget(library);
        Drill { table }
    }

    fn call(&self, place: usize, arguments: [usize; 3]) -> Result<i64, i32> {
        type Function = unsafe extern "C" fn(*mut c_void, usize, usize, usize) -> c_long;
        // SAFETY: the table contains functions with word arguments; functions
        // with fewer arguments ignore the rest, which are in registers.
        let function = unsafe { std::mem::transmute::<usize, Function>(self.table[place]) };
        let [a, b, c] = arguments;
        // SAFETY: pointers among the arguments are valid, or invalid on
        // purpose.
        let answer = unsafe { function(self.table[0] as *mut c_void, a, b, c) };
        match place {
            READ | WRITE => {}
            // An `int` is half of a register.
            _ if answer as c_int == -1 => return Err(errno()),
            _ => return Ok((answer as c_int).into()),
        }
        if answer == -1 {
            Err(errno())
        } else {
            Ok(answer)
        }
    }

    pub(crate) fn socket(&self) -> i32 {
        let kind = libc::SOCK_STREAM as usize;
        let socket = self.call(SOCKET, [libc::AF_INET as usize, kind, 6]);
        socket.expect("a socket") as i32
    }

    pub(crate) fn bind(&self, fd: i32, address: [u8; 4], port: u16) {
        let address = address_of(address, port);
        let arguments = [fd as usize, address.as_ptr() as usize, 16];
        assert_eq!(self.call(BIND, arguments), Ok(0));
    }

    pub(crate) fn listen(&self, fd: i32, backlog: usize) -> i64 {
        self.call(LISTEN, [fd as usize, backlog, 0]).unwrap_or(-1)
    }

    pub(crate) fn accept(&self, fd: i32) -> i32 {
        self.call(ACCEPT, [fd as usize, 0, 0]).expect("one waits") as i32
    }

    pub(crate) fn connect(&self, fd: i32, address: [u8; 4], port: u16) -> Result<i64, i32> {
        let address = address_of(address, port);
        self.call(CONNECT, [fd as usize, address.as_ptr() as usize, 16])
    }

    pub(crate) fn nonblocking(&self, fd: i32) {
        let flags = [
            fd as usize,
            libc::F_SETFL as usize,
            libc::O_NONBLOCK as usize,
        ];
        assert_eq!(self.call(FCNTL, flags), Ok(0));
    }

    pub(crate) fn read(&self, fd: i32, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let arguments = [fd as usize, bytes.as_mut_ptr() as usize, most];
        let count = self.call(READ, arguments).expect("can be read");
        bytes.truncate(count as usize);
        bytes
    }

    pub(crate) fn write(&self, fd: i32, bytes: &[u8]) -> i64 {
        self.try_write(fd, bytes.as_ptr(), bytes.len())
            .expect("can be written")
    }

    pub(crate) fn try_write(&self, fd: i32, bytes: *const u8, len: usize) -> Result<i64, i32> {
        self.call(WRITE, [fd as usize, bytes as usize, len])
    }

    pub(crate) fn close(&self, fd: i32) -> i64 {
        self.call(CLOSE, [fd as usize, 0, 0]).unwrap_or(-1)
    }

    pub(crate) fn input(&self, packet: &[u8]) {
        let arguments = [packet.as_ptr() as usize, packet.len(), 0];
        assert_eq!(self.call(NETDEV_SEND, arguments), Ok(0));
    }

    /// The next packet, with its time in microseconds.
    pub(crate) fn output(&self) -> (Vec<u8>, i64) {
        let mut packet = vec![0; 65_536];
        let mut len = packet.len();
        let mut us = 0_i64;
        let at = [
            packet.as_mut_ptr() as usize,
            &raw mut len as usize,
            &raw mut us as usize,
        ];
        assert_eq!(self.call(NETDEV_RECEIVE, at), Ok(0));
        packet.truncate(len);
        (packet, us)
    }

    /// As [`output`](Self::output); `None` if no packet is sent within a
    /// second.
    pub(crate) fn output_now(&self) -> Option<(Vec<u8>, i64)> {
        let until_us = self.now_us() + 1_000_000;
        let (packet, us) = self.output();
        (!packet.is_empty() && us <= until_us).then_some((packet, us))
    }

    pub(crate) fn sleep(&self, us: usize) {
        assert_eq!(self.call(USLEEP, [us, 0, 0]), Ok(0));
    }

    pub(crate) fn now_us(&self) -> i64 {
        let mut time = [0_i64; 2];
        let arguments = [time.as_mut_ptr() as usize, 0, 0];
        assert_eq!(self.call(GETTIMEOFDAY, arguments), Ok(0));
        time[0] * 1_000_000 + time[1]
    }
}

impl Drop for Drill {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(*mut c_void);
        // SAFETY: the second word is this function, called once.
        unsafe {
            std::mem::transmute::<usize, Free>(self.table[FREE])(self.table[0] as *mut c_void);
        }
    }
}

fn address_of(address: [u8; 4], port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&address);
    bytes
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
