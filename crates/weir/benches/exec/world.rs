//! The network, the two cores, and the programs under measurement.

use crate::Round;
use rustix::process::Pid;
use std::cell::Cell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::command::{Command, LIMIT, Resource};
use weir_lab::net::{Host, Lab, Offloads, Process};
use weir_lab::wait::WAIT_MAX;
use weir_lab::{affinity, c, processor, testenv};

/// The generator's address on the veth, and that of programs with the kernel's sockets.
const GENERATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const KERNEL: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const LIBRARY: &str = "libweir_exec.so";
/// Descriptors of each process.
const FILES_MAX: u64 = 20_000;

/// A program that serves.
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    _process: Process,
}

/// A TAP interface, and the address of weir's host on it.
pub(crate) struct Tap {
    name: String,
    ip: IpAddr,
}

impl Tap {
    fn weir(&self, subcommand: &str) -> Command {
        let mut weir = Command::built(env!("CARGO_BIN_EXE_weir"));
        weir.args([subcommand, "--link", &self.name]);
        weir.args(["--addr", &format!("{}/24", self.ip)]);
        weir
    }

    fn exec(&self, words: &[String]) -> Command {
        // That of the bench's own build.
        let library = c::folder_of(LIBRARY).join(LIBRARY);
        let mut weir = self.weir("exec");
        weir.arg("--library").arg(library);
        weir.arg("--").args(words);
        weir
    }
}

/// The command of these words: a path, or a program of the system.
pub(crate) fn command_of(words: &[String]) -> Command {
    let mut command = if words[0].starts_with('/') {
        Command::built(&words[0])
    } else {
        testenv::program(&words[0]).expect("it was asked for")
    };
    command.args(&words[1..]);
    command
}

/// Two hosts with a veth pair between them; the generator's has TAP interfaces too, one for each
/// program that has weir's sockets.
pub(crate) struct World {
    pub(crate) generator: Host,
    program: Host,
    cores: [usize; 2],
    pub(crate) folder: PathBuf,
    taps: Cell<u8>,
    _lab: Lab,
}

impl World {
    pub(crate) fn new(generator_core: usize, program_core: usize) -> World {
        // Whatever else the machine does comes after what is measured.
        processor::prefer(rustix::process::getpid()).expect("a priority");
        let lab = Lab::new();
        let host = |name, core: usize| {
            let host = lab.host(name).expect("a namespace");
            // The kernel's work for a frame that arrives is done on the core of the side that it
            // arrives at.
            let mask = format!("{:x}", 1_u64 << core);
            let set = host.set_sysctl("net.core.rps_default_mask", &mask);
            set.expect("a kernel with RPS");
            host
        };
        let generator = host("generator", generator_core);
        let program = host("program", program_core);
        let range = generator.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535");
        range.expect("a range");
        let link = lab.link(&generator, &program);
        let link = link.addresses(GENERATOR, KERNEL, 24);
        let link = link.offloads(Offloads::VETH);
        link.connect().expect("a veth pair");
        let folder = std::env::temp_dir().join(format!("weir-exec-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        World {
            generator,
            program,
            cores: [generator_core, program_core],
            folder,
            taps: Cell::new(0),
            _lab: lab,
        }
    }

    /// Runs a round.
    pub(crate) fn round(&self, load: impl FnOnce() -> f64) -> Round {
        let busy = || processor::busy(self.cores[1]).as_secs_f64();
        let (before, began) = (busy(), Instant::now());
        let count = load();
        let took_s = began.elapsed().as_secs_f64();
        Round {
            count,
            took_s,
            busy_s: busy() - before,
        }
    }

    /// Starts the program with the kernel's sockets; `words` makes its command from its address.
    pub(crate) fn on_kernel(&self, port: u16, words: &dyn Fn(IpAddr) -> Vec<String>) -> Server {
        let command = command_of(&words(KERNEL));
        self.start(&self.program, command, KERNEL, port)
    }

    /// Starts the program with weir's sockets, on a TAP interface of its own.
    pub(crate) fn on_weir(&self, port: u16, words: &dyn Fn(IpAddr) -> Vec<String>) -> Server {
        let tap = self.tap();
        let command = tap.exec(&words(tap.ip));
        self.start(&self.generator, command, tap.ip, port)
    }

    /// Starts a subcommand of weir that serves, on a TAP interface of its own.
    pub(crate) fn weir(&self, port: u16, subcommand: &str) -> Server {
        let tap = self.tap();
        self.start(&self.generator, tap.weir(subcommand), tap.ip, port)
    }

    /// Runs the program with the kernel's sockets to its end; returns what it printed.
    pub(crate) fn run_on_kernel(&self, words: &dyn Fn(IpAddr) -> Vec<String>) -> String {
        self.run(&self.program, self.cores[1], command_of(&words(KERNEL)))
    }

    /// As above, with weir's sockets on this interface.
    pub(crate) fn run_on_weir(&self, tap: &Tap, words: &dyn Fn(IpAddr) -> Vec<String>) -> String {
        let command = tap.exec(&words(tap.ip));
        self.run(&self.generator, self.cores[1], command)
    }

    /// Runs a generator to its end; returns what it printed.
    pub(crate) fn generate(&self, command: Command) -> String {
        self.run(&self.generator, self.cores[0], command)
    }

    /// As [`World::generate`]; `None` if the program fails.
    pub(crate) fn try_generate(&self, command: Command) -> Option<String> {
        let output = self.output(&self.generator, self.cores[0], command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(said)
    }

    /// The program's command with weir's sockets, on a link in shared memory.
    pub(crate) fn on_shared_link(&self, ip: &str, words: &[String]) -> Command {
        let library = c::folder_of(LIBRARY).join(LIBRARY);
        let mut weir = Command::built(env!("CARGO_BIN_EXE_weir"));
        weir.args([
            "exec",
            "--link",
            &format!("shm:bench-{}", std::process::id()),
        ]);
        weir.args(["--addr", &format!("{ip}/24"), "--library"])
            .arg(library);
        weir.arg("--").args(words);
        weir
    }

    /// Starts a server on its core, in the generator's network.
    pub(crate) fn serve(&self, command: Command) -> Process {
        self.serve_on(&self.generator, command)
    }

    /// How long both cores have worked, in seconds.
    pub(crate) fn busy_s(&self) -> f64 {
        let each = self
            .cores
            .iter()
            .map(|core| processor::busy(*core).as_secs_f64());
        each.sum()
    }

    fn run(&self, host: &Host, core: usize, command: Command) -> String {
        let what = format!("{command:?}");
        let output = self.output(host, core, command);
        assert!(output.status.success(), "{what}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn output(&self, host: &Host, core: usize, command: Command) -> std::process::Output {
        let mut command = std::process::Command::from(command);
        affinity::pin_command(&mut command, core);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = host.spawn(command).expect("the program starts");
        processor::prefer(Pid::from_child(&process)).expect("a priority");
        process.output(LIMIT).expect("the program runs")
    }

    /// A new TAP interface of the generator's host.
    pub(crate) fn tap(&self) -> Tap {
        let number = self.taps.get();
        self.taps.set(number + 1);
        let name = format!("tap{number}");
        let device = self.generator.tap(&name, 0).expect("a TAP interface");
        device.up().expect("it goes up");
        let address = Ipv4Addr::new(198, 18, number, 1);
        device.add_address(address, 24).expect("it takes one");
        let ip = IpAddr::from([198, 18, number, 5]);
        Tap { name, ip }
    }

    /// Starts a server on its core, and waits until it takes connections.
    fn start(&self, host: &Host, command: Command, ip: IpAddr, port: u16) -> Server {
        let what = format!("{command:?}");
        let process = self.serve_on(host, command);
        let (began, at) = (Instant::now(), SocketAddr::new(ip, port));
        while self.generator.run(|| TcpStream::connect(at)).is_err() {
            assert!(began.elapsed() < WAIT_MAX, "no server at {at}: {what}");
            thread::sleep(Duration::from_millis(20));
        }
        Server {
            at,
            _process: process,
        }
    }

    fn serve_on(&self, host: &Host, mut command: Command) -> Process {
        command
            .limit(Resource::Nofile, FILES_MAX)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut command = std::process::Command::from(command);
        affinity::pin_command(&mut command, self.cores[1]);
        let process = host.spawn(command).expect("the server starts");
        processor::prefer(Pid::from_child(&process)).expect("a priority");
        process
    }

    /// Runs this on the generator's core with the generator's sockets.
    pub(crate) fn generate_by<T: Send>(&self, generate: impl FnOnce() -> T + Send) -> T {
        let core = self.cores[0];
        self.generator.run(move || {
            affinity::pin(None, core).expect("the generator's core");
            generate()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
