//! An echo server with the standard library's sockets, beside weir's own.

use crate::Bench;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::wait::WAIT_MAX;

/// The argument that makes this program the server; its address follows.
pub(crate) const SERVER: &str = "be-echo";
const PORT: u16 = 7;
const MESSAGE_LEN: usize = 64;
const CONNECTIONS: [usize; 2] = [1, 16];

/// Echoes received bytes on each connection, by a thread for each, as `weir echo` does.
pub(crate) fn serve(at: &str) {
    let listener = TcpListener::bind(at).expect("an address of this host");
    for stream in listener.incoming().flatten() {
        thread::spawn(move || drop(echo(stream)));
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

/// Sends a message on each connection and waits until all have come back, again and again. Returns
/// the number of messages.
fn messages(at: SocketAddr, connections: usize, time: Duration) -> io::Result<usize> {
    let connect = |_| {
        let stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        io::Result::Ok(stream)
    };
    let mut streams = (0..connections)
        .map(connect)
        .collect::<io::Result<Vec<_>>>()?;
    let (mut count, began) = (0, Instant::now());
    let message = [b'm'; MESSAGE_LEN];
    while began.elapsed() < time {
        for stream in &mut streams {
            stream.write_all(&message)?;
        }
        for stream in &mut streams {
            let mut back = [0; MESSAGE_LEN];
            stream.read_exact(&mut back)?;
            assert_eq!(back, message);
        }
        count += connections;
    }
    Ok(count)
}

pub(crate) fn compare(bench: &Bench) {
    let world = &bench.world;
    let native = world.weir(PORT, "echo");
    let itself = std::env::current_exe().expect("procfs");
    let itself = itself.display().to_string();
    let words = |ip: IpAddr| vec![itself.clone(), SERVER.to_owned(), format!("{ip}:{PORT}")];
    let unmodified = world.on_weir(PORT, &words);
    let kernel = world.on_kernel(PORT, &words);
    for connections in CONNECTIONS {
        let what = match connections {
            1 => "echo, 1 connection".to_owned(),
            _ => format!("echo, {connections} connections"),
        };
        let all = [
            ("weir echo", &native),
            ("unmodified", &unmodified),
            ("kernel", &kernel),
        ];
        let ratios = bench.compare(&what, &all, |server, seconds| {
            let time = Duration::from_secs(seconds);
            let count = world.generate_by(|| messages(server.at, connections, time));
            count.expect("echoes") as f64
        });
        bench.record(&what, ratios[0], "weir echo", 0.85);
    }
}
