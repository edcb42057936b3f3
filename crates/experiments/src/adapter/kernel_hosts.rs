//! The kernel's protocols as one end: a TAP interface is their link.

use super::{End, Transport};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use weir_lab::net::{Host, Lab};
use weir_link::net::Tap;

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 7000);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 7);
/// The longest frame, in bytes: the interface's MTU is 1,500.
const FRAME_MAX: usize = 2048;

/// A kernel's TCP/IP with one socket, in a namespace of its own.
pub struct Kernel {
    tap: Tap,
    socket: Socket,
    buffer: Vec<u8>,
}

enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// Two namespaces, each with a TAP interface. What it makes goes with it.
pub struct World {
    client: Host,
    server: Host,
}

/// Why there are no hosts of the kernel's.
#[derive(thiserror::Error, Debug)]
pub enum KernelHostsError {
    /// The namespaces, or what is set in them.
    #[error(transparent)]
    Net(#[from] weir_lab::net::Error),
    /// A TAP interface or a socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl World {
    /// Makes both.
    ///
    /// # Errors
    /// If there is no right to make network namespaces.
    pub fn new() -> Result<World, KernelHostsError> {
        let lab = Lab::new();
        Ok(World {
            client: lab.host("client")?,
            server: lab.host("server")?,
        })
    }

    /// Client and server, tied to each other.
    ///
    /// # Errors
    /// If an interface cannot be made, or a socket.
    pub fn pair(&self, transport: Transport) -> Result<(Kernel, Kernel), KernelHostsError> {
        let taps = self.taps()?;
        let (client, server) = match transport {
            Transport::Udp => {
                let bound = |host: &Host, local, remote| {
                    host.run(|| {
                        let socket = UdpSocket::bind(local)?;
                        socket.connect(remote)?;
                        socket.set_nonblocking(true)?;
                        Ok::<_, std::io::Error>(Socket::Udp(socket))
                    })
                };
                let client = bound(&self.client, CLIENT, SERVER)?;
                let server = bound(&self.server, SERVER, CLIENT)?;
                (client, server)
            }
            Transport::Tcp => self.connect(&taps)?,
        };
        let end = |tap, socket| Kernel {
            tap,
            socket,
            buffer: vec![0; FRAME_MAX],
        };
        let [client_tap, server_tap] = taps;
        Ok((end(client_tap, client), end(server_tap, server)))
    }

    /// Both interfaces, which know one another.
    fn taps(&self) -> Result<[Tap; 2], KernelHostsError> {
        let open = |host: &Host, local: SocketAddr| {
            let tap = host.run(|| Tap::open("tap0"))?;
            // Nothing else is to be on the link.
            let key = "net.ipv6.conf.tap0.disable_ipv6";
            host.set_sysctl(key, "1")?;
            let device = host.device("tap0")?;
            device.up()?;
            device.add_address(local.ip(), 24)?;
            Ok::<_, KernelHostsError>((tap, device))
        };
        let (client, client_device) = open(&self.client, CLIENT)?;
        let (server, server_device) = open(&self.server, SERVER)?;
        client_device.add_neighbour(SERVER.ip(), server_device.mac())?;
        server_device.add_neighbour(CLIENT.ip(), client_device.mac())?;
        Ok([client, server])
    }

    fn connect(&self, taps: &[Tap; 2]) -> Result<(Socket, Socket), KernelHostsError> {
        let connect = || -> std::io::Result<(TcpStream, TcpStream)> {
            let listener = self.server.run(|| TcpListener::bind(SERVER))?;
            let client = self.client.run(|| TcpStream::connect(SERVER))?;
            let server = listener.accept()?.0;
            for stream in [&client, &server] {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
            }
            Ok((client, server))
        };
        let (client, server) = std::thread::scope(|scope| {
            let connect = scope.spawn(connect);
            let mut buffer = vec![0; FRAME_MAX];
            while !connect.is_finished() {
                for (from, to) in [(0, 1), (1, 0)] {
                    while let Ok(Some(len)) = taps[from].receive(&mut buffer) {
                        let _ = taps[to].send(&buffer[..len]);
                    }
                }
                std::thread::yield_now();
            }
            connect.join().expect("it does not panic")
        })?;
        Ok((Socket::Tcp(client), Socket::Tcp(server)))
    }
}

impl End for Kernel {
    fn write(&mut self, _now_ns: u64, bytes: &[u8]) -> usize {
        let written = match &mut self.socket {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Udp(socket) => socket.send(bytes),
        };
        written.unwrap_or(0)
    }

    fn read(&mut self, _now_ns: u64, out: &mut [u8]) -> usize {
        let read = match &mut self.socket {
            Socket::Tcp(stream) => stream.read(out),
            Socket::Udp(socket) => socket.recv(out),
        };
        read.unwrap_or(0)
    }

    /// The calls have done it all.
    fn run(&mut self, _now_ns: u64) {}

    fn arrive(&mut self, _now_ns: u64, frame: &[u8]) {
        let _ = self.tap.send(frame);
    }

    fn leave(&mut self, give: &mut dyn FnMut(&[u8])) {
        while let Ok(Some(len)) = self.tap.receive(&mut self.buffer) {
            give(&self.buffer[..len]);
        }
    }
}
