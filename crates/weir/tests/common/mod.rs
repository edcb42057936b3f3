//! Functions that the tests of the binary share.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod chunks;
pub(crate) mod counters;

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::{Duration, Instant};
use weir_lab::command::Command;

/// The binary with these arguments and no input.
pub(crate) fn weir<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    command
}

/// The standard output of a run.
pub(crate) fn stdout(run: &Output) -> String {
    String::from_utf8(run.stdout.clone()).unwrap()
}

/// Waits at most five seconds until a process catches SIGTERM, which weir does
/// after SIGINT: an earlier signal would end it at once.
pub(crate) fn until_it_hears(process: u32) {
    const SIGTERM_BIT: u64 = 1 << 14;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
        if caught.is_none_or(|caught| caught & SIGTERM_BIT != 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the data written to a pipe was read, and a while for its effect.
pub(crate) fn until_read(pipe: impl AsFd) {
    let began = Instant::now();
    while rustix::io::ioctl_fionread(&pipe).is_ok_and(|left| left > 0) {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody reads");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300));
}

/// Bytes that repeat nowhere soon, and some that are no text.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 7 + at / 256) as u8).collect()
}

/// Creates a FIFO.
pub(crate) fn make_fifo(path: &str) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

/// Sends SIGINT.
pub(crate) fn interrupt(child: &Child) {
    until_it_hears(child.id());
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// A temporary folder of one test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A pcap file of 64-byte UDP frames to these ports, with timestamps one second
/// apart.
pub(crate) fn capture(ports: &[u16]) -> Vec<u8> {
    let head = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (second, port) in ports.iter().enumerate() {
        let record = [second as u32, 0, 64, 64];
        bytes.extend(record.iter().flat_map(|word| word.to_le_bytes()));
        let mut frame = [0_u8; 64];
        (frame[12], frame[14], frame[22], frame[23]) = (8, 0x45, 64, 17);
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

/// A pcapng section header, little-endian.
pub(crate) fn section() -> Vec<u8> {
    let mut body = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend([0xff; 8]);
    block(0x0a0d_0d0a, &body)
}

/// A pcapng description of an interface of this link type.
pub(crate) fn interface(linktype: u16) -> Vec<u8> {
    let mut body = linktype.to_le_bytes().to_vec();
    body.extend([0; 6]);
    block(1, &body)
}

/// A pcapng block with 64 bytes of a UDP frame to `port`, with a link-layer
/// header of `header` bytes.
pub(crate) fn frame(interface: u32, header: usize, port: u16) -> Vec<u8> {
    let mut bytes = [0_u8; 64];
    if header == 14 {
        bytes[12] = 8;
    }
    (bytes[header], bytes[header + 8], bytes[header + 9]) = (0x45, 64, 17);
    bytes[header + 22..header + 24].copy_from_slice(&port.to_be_bytes());
    let mut body = Vec::new();
    for word in [interface, 0, 0, 64, 64] {
        body.extend(word.to_le_bytes());
    }
    body.extend(bytes);
    block(6, &body)
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes(), &length, body, &length].concat()
}
