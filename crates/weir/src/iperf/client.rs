//! iperf3's client.

use super::server::{UDP_HELLO, UDP_WELCOME};
use super::streams::{Streams, Way};
use super::{
    COOKIE_LEN, Measured, PATIENCE, Parameters, Results, odd, read_json, read_state, state,
    write_json, write_state,
};
use crate::host::any_towards;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpStream, UdpSocket};

/// Runs a test with a server; what it measured.
///
/// # Errors
/// If the server does not answer, is busy, or says what it should not.
pub(crate) fn run(
    net: &Net,
    server: SocketAddr,
    parameters: &Parameters,
    stop: impl Fn() -> bool,
) -> io::Result<Measured> {
    let control = TcpStream::connect_timeout(net, &server, PATIENCE)?;
    control.set_read_timeout(Some(PATIENCE))?;
    control.set_nodelay(true)?;
    let cookie = cookie();
    (&control).write_all(&cookie)?;
    let mut ways = Vec::new();
    let mut ended = None;
    let mut theirs = Results::default();
    loop {
        match read_state(&control)? {
            state::PARAM_EXCHANGE => write_json(&control, parameters)?,
            state::CREATE_STREAMS => ways = open(net, server, parameters, &cookie)?,
            state::TEST_START => {}
            state::TEST_RUNNING => {
                let sends = !parameters.reverse;
                let streams = Streams::start(std::mem::take(&mut ways), sends, parameters);
                wait(&streams, parameters, &stop);
                let state = if stop() {
                    state::CLIENT_TERMINATE
                } else {
                    state::TEST_END
                };
                ended = Some(streams.end());
                write_state(&control, state)?;
                if state == state::CLIENT_TERMINATE {
                    return Err(odd("asked to stop"));
                }
            }
            state::EXCHANGE_RESULTS => {
                let (ours, ..) = ended.as_ref().ok_or_else(|| odd("results before a test"))?;
                write_json(&control, ours)?;
                theirs = read_json(&control)?;
            }
            state::DISPLAY_RESULTS => {
                write_state(&control, state::IPERF_DONE)?;
                break;
            }
            state::ACCESS_DENIED => return Err(odd("the server is busy: try again later")),
            state::SERVER_ERROR => return Err(odd("the server refuses the test")),
            state::SERVER_TERMINATE => return Err(odd("the server has ended")),
            other => {
                return Err(odd(format!(
                    "the server says {other}, which we do not know"
                )));
            }
        }
    }
    // A server that sends takes a reset for a failure: they end with us.
    let (ours, seconds, _open) =
        ended.ok_or_else(|| odd("the server showed results before a test"))?;
    let sent = !parameters.reverse;
    Ok(Measured::of(parameters, sent, &ours, &theirs, seconds))
}

/// 36 letters of its alphabet and a zero.
fn cookie() -> [u8; COOKIE_LEN] {
    use std::hash::{BuildHasher, RandomState};
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let random = RandomState::new();
    let mut cookie = [0; COOKIE_LEN];
    for (at, letter) in cookie[..COOKIE_LEN - 1].iter_mut().enumerate() {
        *letter = LETTERS[(random.hash_one(at) % 32) as usize];
    }
    cookie
}

fn open(
    net: &Net,
    server: SocketAddr,
    parameters: &Parameters,
    cookie: &[u8],
) -> io::Result<Vec<Way>> {
    let one = |_| match parameters.udp {
        false => {
            let mut stream = TcpStream::connect_timeout(net, &server, PATIENCE)?;
            stream.write_all(cookie)?;
            Ok(Way::Tcp(stream))
        }
        true => {
            let socket = UdpSocket::bind(net, any_towards(server))?;
            socket.connect(server)?;
            hello(&socket)?;
            Ok(Way::Udp(socket, server))
        }
    };
    (0..parameters.parallel).map(one).collect()
}

/// Says hello until it is answered.
fn hello(socket: &UdpSocket) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE / 10))?;
    for _ in 0..10 {
        socket.send(&UDP_HELLO[0].to_ne_bytes())?;
        match socket.recv_owned() {
            Ok((bytes, _)) if bytes == UDP_WELCOME.to_ne_bytes() => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Err(odd("the server does not answer over UDP"))
}

/// Until the time is over, all is sent, or somebody asks to stop.
fn wait(streams: &Streams, parameters: &Parameters, stop: &impl Fn() -> bool) {
    let began = Instant::now();
    let time = Duration::try_from_secs_f64(parameters.time).unwrap_or(Duration::MAX);
    while !stop() {
        let left = time.saturating_sub(began.elapsed());
        let all = parameters.num > 0 && streams.bytes() >= parameters.num;
        if all || parameters.num == 0 && left.is_zero() {
            return;
        }
        let most = if parameters.num > 0 {
            Duration::from_millis(1)
        } else {
            left
        };
        std::thread::sleep(most.min(Duration::from_millis(50)));
    }
}
