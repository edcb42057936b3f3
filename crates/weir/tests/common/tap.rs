//! A host's kernel with a TAP interface created for user nobody.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::live::{Running, WAIT_MAX};
use std::net::TcpStream;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab, traffic, unprivileged};
use weir_lab::testenv;

/// The kernel's addresses, on the network of weir's host.
pub(crate) const KERNEL: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
pub(crate) const OURS: [&str; 2] = ["192.0.2.5", "2001:db8::5"];
/// The options for the addresses of weir's host.
pub(crate) const HOST: [&str; 6] = [
    "--link",
    "tap0",
    "--addr",
    "192.0.2.5/24",
    "--addr",
    "2001:db8::5/64",
];

pub(crate) struct Kernel {
    pub(crate) host: Host,
    pub(crate) lab: Lab,
}

/// As [`kernel`]; `None` also without one of these programs.
pub(crate) fn kernel_with(programs: &[&str]) -> Option<Kernel> {
    kernel().filter(|_| testenv::programs(programs))
}

/// `None` without root, or without the driver.
pub(crate) fn kernel() -> Option<Kernel> {
    if !testenv::root() || !testenv::tun() {
        return None;
    }
    let lab = Lab::new();
    let host = lab.host("kernel").unwrap();
    let kernel = Kernel { host, lab };
    let tap = kernel.host.tap("tap0", unprivileged::NOBODY).unwrap();
    tap.up().unwrap();
    tap.add_address([192, 0, 2, 1], 24).unwrap();
    tap.add_address([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 64)
        .unwrap();
    Some(kernel)
}

impl Kernel {
    /// Runs a command, whose words are separated by spaces, on the kernel's
    /// side. The test has checked that the program exists, by
    /// [`testenv::programs`].
    pub(crate) fn output(&self, line: &str) -> Output {
        let mut words = line.split_whitespace();
        let mut command = testenv::program(words.next().unwrap()).expect(line);
        command.args(words);
        self.host.output(command).unwrap()
    }

    /// As [`Kernel::output`], for a command that must succeed.
    pub(crate) fn run(&self, line: &str) -> Vec<u8> {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {output:?}");
        output.stdout
    }

    /// Starts the binary on the TAP interface, as user nobody.
    pub(crate) fn weir(&self, arguments: &[&str]) -> Running {
        let all: Vec<&str> = arguments.iter().copied().chain(HOST).collect();
        self.weir_as_said(&all)
    }

    /// As [`Kernel::weir`], for a command that names the link differently.
    pub(crate) fn weir_at(&self, arguments: &[&str]) -> Running {
        let all: Vec<&str> = arguments.iter().chain(&HOST[2..]).copied().collect();
        self.weir_as_said(&all)
    }

    /// As [`Kernel::weir`], with the addresses in the arguments.
    pub(crate) fn weir_as_said(&self, arguments: &[&str]) -> Running {
        let command = unprivileged::command(env!("CARGO_BIN_EXE_weir"));
        Running::start(&self.host, command, arguments)
    }

    /// Whether an echo request with that many bytes is answered with the same
    /// bytes.
    pub(crate) fn ping(&self, at: &str, size: usize) -> bool {
        let payload: Vec<u8> = (0..size).map(|at| (at * 7 / 3) as u8).collect();
        let patience = Duration::from_secs(5);
        traffic::echoes(&self.host, at.parse().unwrap(), &payload, patience).unwrap()
    }

    /// A server on the kernel's side, once it accepts connections at `port`.
    /// The test has checked that the program exists.
    pub(crate) fn server(&self, line: &str, port: u16) -> Running {
        let mut words = line.split_whitespace();
        let command = testenv::program(words.next().unwrap()).expect(line);
        let running = Running::start(&self.host, command, &words.collect::<Vec<_>>());
        let began = Instant::now();
        let answers = || {
            self.host
                .run(|| TcpStream::connect((KERNEL[0], port)))
                .is_ok()
        };
        while !answers() {
            assert!(began.elapsed() < WAIT_MAX, "`{line}` does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        running
    }
}
