//! The network of the demo, and its counter.

use crate::error::CliError;
use std::fmt::Display;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::net::{Host, Lab, Process, Signal};
use weir_meter::radius::packet::{ACCOUNTING_RESPONSE, Packet, attribute, request};

/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a RADIUS request is sent, as an access server does without an answer.
const ATTEMPTS: u8 = 3;
const ROUTER_IN: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const ROUTER_OUT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const SECRET: &[u8] = b"demo";
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
    router: Host,
    /// The name of the router's interface on the subscribers' side.
    inside: String,
    folder: Folder,
    identifier: u8,
    /// Sockets that the server's kernel gives datagrams to; the hosts and links.
    _server: (Host, Vec<UdpSocket>),
    _access: Host,
    _lab: Lab,
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
        let (router, server) = (host("router")?, host("server")?);
        let bridge = access.bridge("access").map_err(failed)?;
        for (subscriber, host) in [(Subscriber::Alice, &alice), (Subscriber::Bob, &bob)] {
            let (own, port) = lab.link(host, &access).connect().map_err(failed)?;
            own.add_address(subscriber.address(), 24).map_err(failed)?;
            port.attach_to(&bridge).map_err(failed)?;
            let networks = [Ipv4Addr::new(203, 0, 113, 0)];
            own.route_networks(networks, 24, ROUTER_IN)
                .map_err(failed)?;
        }
        let (inside, port) = lab.link(&router, &access).connect().map_err(failed)?;
        port.attach_to(&bridge).map_err(failed)?;
        inside.add_address(ROUTER_IN, 24).map_err(failed)?;
        let link = lab.link(&router, &server);
        let (outside, _) = link
            .addresses(ROUTER_OUT, SERVER, 24)
            .connect()
            .map_err(failed)?;
        for device in [&inside, &outside] {
            device.wait_running().map_err(failed)?;
        }
        router
            .set_sysctl("net.ipv4.ip_forward", "1")
            .map_err(failed)?;
        // What the counter pins goes with the demonstration, however that ends.
        router
            .own_pins("/run/weir/meter".as_ref())
            .map_err(failed)?;
        // Subscribers who have lost their session are not answered: nobody is told.
        let sockets = super::SERVICES
            .map(|(_, port)| server.run(move || UdpSocket::bind((SERVER, port)).map_err(failed)));
        let sockets = sockets.into_iter().collect::<Result<Vec<_>, _>>()?;
        let folder = std::env::temp_dir().join(format!("weir-meter-demo-{}", std::process::id()));
        fs::create_dir(&folder).map_err(failed)?;
        Ok(Network {
            counter: None,
            hosts: [alice, bob],
            inside: inside.name().to_owned(),
            router,
            folder: Folder(folder),
            identifier: 0,
            _server: (server, sockets),
            _access: access,
            _lab: lab,
        })
    }

    /// The store of the counter's records.
    pub(super) fn store(&self) -> PathBuf {
        self.folder.0.join("usage.db")
    }

    /// Starts the counter, and waits until it counts.
    pub(super) fn start_counter(&mut self) -> Result<(), CliError> {
        let config = self.configuration()?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::built(program);
        command.arg("meter").arg("--config").arg(&config);
        command.arg("--store").arg(self.store());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = self.router.spawn(command).map_err(failed)?;
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
        match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {
                self.counter = Some(process);
                Ok(())
            }
            Ok(Err(said)) => Err(failed(format!("the counter did not start: {said}"))),
            Err(_) => Err(failed("the counter does not start")),
        }
    }

    fn configuration(&self) -> Result<PathBuf, CliError> {
        let folder: &Path = &self.folder.0;
        let secret = folder.join("secret");
        fs::write(&secret, SECRET).map_err(failed)?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).map_err(failed)?;
        let config = folder.join("counter.toml");
        let text = format!(
            "counter = \"demo\"\nperiod = \"1s\"\ncapacity = 1024\nunattributed_max = 256\n\
             [[link]]\ninside = \"{}\"\n[radius]\nlisten = \"127.0.0.1:1813\"\n[[radius.client]]\n\
             address = \"127.0.0.1\"\nsecret_file = \"secret\"\n[services]\ndns = {{ udp = [53] }}\n\
             web = {{ udp = [443] }}\n",
            self.inside
        );
        fs::write(&config, text).map_err(failed)?;
        Ok(config)
    }

    /// Kills the counter, as `kill -9` does.
    pub(super) fn kill_counter(&mut self) -> Result<(), CliError> {
        self.end_counter(Signal::KILL)
    }

    /// Ends the counter in order: its last period is recorded.
    pub(super) fn stop_counter(&mut self) -> Result<(), CliError> {
        self.end_counter(Signal::TERM)
    }

    fn end_counter(&mut self, signal: Signal) -> Result<(), CliError> {
        let mut counter = self.counter.take().expect("a counter runs");
        counter.signal(signal).map_err(failed)?;
        match counter.wait(PATIENCE).map_err(failed)? {
            Some(_) => Ok(()),
            None => Err(failed("the counter does not end")),
        }
    }

    /// Tells the counter by RADIUS that a session begins or ends. Gives the time until the answer.
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
        let socket = self.router.run(|| UdpSocket::bind("127.0.0.1:0"));
        let socket = socket.map_err(failed)?;
        socket.connect("127.0.0.1:1813").map_err(failed)?;
        socket
            .set_read_timeout(Some(PATIENCE / 10))
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
