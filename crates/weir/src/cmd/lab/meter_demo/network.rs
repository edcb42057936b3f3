//! The network of the demo, and its counter.

use crate::error::CliError;
use std::fmt::Display;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::net::{Host, Lab, Offloads, Process, Signal};
use weir_meter::radius::packet::{ACCOUNTING_RESPONSE, Packet, attribute, request};

/// Time limit of each wait.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How often a RADIUS request is sent, as an access server does without an answer.
const ATTEMPTS: u8 = 3;
/// The server's address in the network of the subscribers.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const SECRET: &[u8] = b"demo";
/// Bytes that a socket of the server has room for.
const RECEIVE_LEN: usize = 8 << 20;
/// How long datagrams may be on their way.
const ARRIVAL_MAX: Duration = Duration::from_secs(5);
const CONFIG: &str = "counter.toml";
/// Datagrams without a pause: a socket's buffer holds as many.
const AT_ONCE: u32 = 50;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subscriber {
    Alice,
    Bob,
}

impl Subscriber {
    pub(super) fn name(self) -> &'static str {
        match self {
            Subscriber::Alice => "alice",
            Subscriber::Bob => "bob",
        }
    }

    pub(super) fn address(self) -> Ipv4Addr {
        match self {
            Subscriber::Alice => Ipv4Addr::new(10, 0, 1, 2),
            Subscriber::Bob => Ipv4Addr::new(10, 0, 1, 3),
        }
    }
}

pub(super) struct Network {
    /// Ended before the hosts.
    counter: Option<Process>,
    hosts: [Host; 2],
    /// The host of the bridge that counts.
    bridge: Host,
    /// The names of its interfaces: that of the subscribers' side, and the other one.
    sides: [String; 2],
    folder: Folder,
    identifier: u8,
    /// Datagrams that have arrived at the server.
    arrived: Arc<AtomicU64>,
    _server: Host,
    _access: Host,
    _lab: Lab,
}

/// Counts what arrives at a socket, on a thread that ends when the count has gone.
fn count(socket: UdpSocket, arrived: Weak<AtomicU64>) -> std::io::Result<()> {
    // Root may: no datagram is lost here while this thread waits for a CPU.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_LEN)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    std::thread::Builder::new().spawn(move || {
        let mut payload = [0; 2048];
        while let Some(arrived) = arrived.upgrade() {
            if socket.recv(&mut payload).is_ok() {
                arrived.fetch_add(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(())
}

impl Drop for Network {
    /// Takes away what the kernel keeps for a next counter.
    fn drop(&mut self) {
        if let Some(mut counter) = self.counter.take() {
            let _ = counter.signal(Signal::KILL);
            let _ = counter.wait(WAIT_MAX);
        }
        // Nothing is there if no counter has begun.
        let _ = self.meter().and_then(|mut command| {
            command.arg("--clean");
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut process = self.bridge.spawn(command).map_err(failed)?;
            process.wait(WAIT_MAX).map_err(failed)
        });
    }
}

/// A folder that goes with the demo.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn failed(error: impl Display) -> CliError {
    CliError::run(error)
}

impl Network {
    pub(super) fn new() -> Result<Network, CliError> {
        let lab = Lab::new();
        let host = |name| lab.host(name).map_err(failed);
        let (alice, bob, access) = (host("alice")?, host("bob")?, host("access")?);
        let (bridge, server) = (host("bridge")?, host("server")?);
        let switch = access.bridge("access").map_err(failed)?;
        for (subscriber, host) in [(Subscriber::Alice, &alice), (Subscriber::Bob, &bob)] {
            let (own, port) = lab.link(host, &access).connect().map_err(failed)?;
            own.add_address(subscriber.address(), 24).map_err(failed)?;
            // Datagrams as on a wire, with their checksums.
            own.set_offloads(Offloads::OFF).map_err(failed)?;
            port.attach_to(&switch).map_err(failed)?;
            let networks = [Ipv4Addr::new(203, 0, 113, 0)];
            own.route_networks(networks, 24, GATEWAY).map_err(failed)?;
        }
        let (inside, port) = lab.link(&bridge, &access).connect().map_err(failed)?;
        port.attach_to(&switch).map_err(failed)?;
        let (outside, own) = lab.link(&bridge, &server).connect().map_err(failed)?;
        own.add_address(GATEWAY, 24).map_err(failed)?;
        own.add_address(SERVER, 32).map_err(failed)?;
        for device in [&inside, &outside, &port, &own] {
            // Otherwise a veth does not accept redirected frames.
            device
                .set_offloads(Offloads {
                    generic_receive: true,
                    ..Offloads::OFF
                })
                .map_err(failed)?;
            device.wait_running().map_err(failed)?;
        }
        // What the counter pins goes with the demonstration, however that ends.
        bridge.own_pins().map_err(failed)?;
        let arrived = Arc::new(AtomicU64::new(0));
        for (_, port) in super::SERVICES {
            let socket = server.run(move || UdpSocket::bind((SERVER, port)));
            count(socket.map_err(failed)?, Arc::downgrade(&arrived)).map_err(failed)?;
        }
        let folder = std::env::temp_dir().join(format!("weir-meter-demo-{}", std::process::id()));
        fs::create_dir(&folder).map_err(failed)?;
        Ok(Network {
            counter: None,
            hosts: [alice, bob],
            sides: [inside, outside].map(|device| device.name().to_owned()),
            bridge,
            folder: Folder(folder),
            identifier: 0,
            arrived,
            _server: server,
            _access: access,
            _lab: lab,
        })
    }

    /// Datagrams that have arrived at the server, when these have or a limit is over.
    pub(super) fn arrived(&self, expected: u64) -> u64 {
        let began = Instant::now();
        loop {
            let arrived = self.arrived.load(Ordering::Relaxed);
            if arrived >= expected || began.elapsed() > ARRIVAL_MAX {
                return arrived;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The store of the counter's records.
    pub(super) fn store(&self) -> PathBuf {
        self.folder.0.join("usage.db")
    }

    /// Starts the counter, and waits until it counts.
    pub(super) fn start_counter(&mut self) -> Result<(), CliError> {
        self.configure()?;
        let mut command = self.meter()?;
        command.arg("--store").arg(self.store());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = self.bridge.spawn(command).map_err(failed)?;
        let errors = process.child_mut().stderr.take().expect("a pipe");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let (mut said, mut lines) = (String::new(), BufReader::new(errors));
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                if line.trim() == "ready" {
                    let _ = sender.send(Ok(()));
                    // The rest is read, so that the counter never waits.
                    let _ = std::io::copy(&mut lines.by_ref(), &mut std::io::sink());
                    return;
                }
                said += &std::mem::take(&mut line);
            }
            let _ = sender.send(Err(said));
        });
        match receiver.recv_timeout(WAIT_MAX) {
            Ok(Ok(())) => {
                self.counter = Some(process);
                Ok(())
            }
            Ok(Err(said)) => Err(failed(format!("the counter did not start: {said}"))),
            Err(_) => Err(failed("the counter does not start")),
        }
    }

    fn meter(&self) -> Result<Command, CliError> {
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::built(program);
        command
            .arg("meter")
            .arg("--config")
            .arg(self.folder.0.join(CONFIG));
        Ok(command)
    }

    fn configure(&self) -> Result<(), CliError> {
        let folder: &Path = &self.folder.0;
        let secret = folder.join("secret");
        fs::write(&secret, SECRET).map_err(failed)?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).map_err(failed)?;
        let [inside, outside] = &self.sides;
        let text = format!(
            "counter = \"demo\"\nperiod = \"1s\"\ncapacity = 1024\nunattributed_max = 256\n\
             [[link]]\ninside = \"{inside}\"\noutside = \"{outside}\"\n[radius]\nlisten = \"127.0.0.1:1813\"\n[[radius.client]]\n\
             address = \"127.0.0.1\"\nsecret_file = \"secret\"\n[services]\ndns = {{ udp = [53] }}\n\
             web = {{ udp = [443] }}\n"
        );
        fs::write(folder.join(CONFIG), text).map_err(failed)
    }

    /// Kills the counter, as `kill -9` does.
    pub(super) fn kill_counter(&mut self) -> Result<(), CliError> {
        self.end_counter(Signal::KILL)
    }

    /// Ends the counter in order: its last period is recorded, and the kernel joins the links.
    pub(super) fn stop_counter(&mut self) -> Result<(), CliError> {
        self.end_counter(Signal::TERM)
    }

    fn end_counter(&mut self, signal: Signal) -> Result<(), CliError> {
        let mut counter = self.counter.take().expect("a counter runs");
        counter.signal(signal).map_err(failed)?;
        match counter.wait(WAIT_MAX).map_err(failed)? {
            Some(_) => Ok(()),
            None => Err(failed("the counter does not end")),
        }
    }

    /// Reports to the counter, by RADIUS, that a session begins or ends. Returns the time until the answer.
    pub(super) fn account(
        &mut self,
        subscriber: Subscriber,
        begins: bool,
    ) -> Result<Duration, CliError> {
        self.identifier += 1;
        let status: u8 = if begins { 1 } else { 2 };
        let address = subscriber.address().octets();
        let attributes: [(u8, &[u8]); 5] = [
            (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, status]),
            (attribute::ACCT_SESSION_ID, subscriber.name().as_bytes()),
            (attribute::USER_NAME, subscriber.name().as_bytes()),
            (attribute::NAS_IDENTIFIER, b"access"),
            (attribute::FRAMED_IP_ADDRESS, &address),
        ];
        let request = request(self.identifier, &attributes, SECRET);
        let socket = self.bridge.run(|| UdpSocket::bind("127.0.0.1:0"));
        let socket = socket.map_err(failed)?;
        socket.connect("127.0.0.1:1813").map_err(failed)?;
        socket
            .set_read_timeout(Some(WAIT_MAX / 10))
            .map_err(failed)?;
        for _ in 0..ATTEMPTS {
            let began = Instant::now();
            socket.send(&request).map_err(failed)?;
            let mut answer = [0; 4096];
            let Ok(length) = socket.recv(&mut answer) else {
                continue;
            };
            let authenticator = request[4..20].first_chunk().expect("16 bytes");
            let packet = Packet::new(&answer[..length]).map_err(failed)?;
            packet
                .verify_response(authenticator, SECRET)
                .map_err(failed)?;
            if packet.code() == ACCOUNTING_RESPONSE {
                return Ok(began.elapsed());
            }
        }
        Err(failed("the counter does not answer RADIUS"))
    }

    /// Sends datagrams to a port of the server.
    pub(super) fn send(
        &self,
        subscriber: Subscriber,
        port: u16,
        count: u32,
        payload_len: usize,
    ) -> Result<(), CliError> {
        let host = &self.hosts[subscriber as usize];
        let payload = vec![0; payload_len];
        let sent = host.run(|| {
            let socket = UdpSocket::bind((subscriber.address(), 0))?;
            for number in 0..count {
                socket.send_to(&payload, (SERVER, port))?;
                if number % AT_ONCE == AT_ONCE - 1 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Ok::<(), std::io::Error>(())
        });
        sent.map_err(failed)
    }
}
