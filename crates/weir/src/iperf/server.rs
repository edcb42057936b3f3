//! iperf3's server: one test after the other.

use super::streams::{Streams, Way};
use super::{
    BLOCK_LEN_MAX, COOKIE_LEN, Measured, PATIENCE, Parameters, Results, STREAMS_MAX, odd,
    read_json, read_state, state, write_json, write_state,
};
use std::io::{self, Read, Write};
use std::time::Instant;
use weir_socket::{TcpListener, TcpStream, UdpSocket};

/// What a client's first datagram says, and its answer, in its byte order.
pub(super) const UDP_HELLO: [u32; 2] = [0x3637_3839, 123_456_789];
pub(super) const UDP_WELCOME: u32 = 0x3938_3736;

/// Serves the test whose control connection has come; what it measured.
///
/// # Errors
/// If the client goes, or says what it should not.
pub(crate) fn serve(
    control: &TcpStream,
    listener: &TcpListener,
    socket: &UdpSocket,
    stop: impl Fn() -> bool,
) -> io::Result<Measured> {
    control.set_read_timeout(Some(PATIENCE))?;
    control.set_nodelay(true)?;
    let mut cookie = [0; COOKIE_LEN];
    let mut stream = control;
    stream.read_exact(&mut cookie)?;
    write_state(control, state::PARAM_EXCHANGE)?;
    let parameters: Parameters = read_json(control)?;
    if let Err(why) = check(&parameters) {
        // With our error's number and the system's.
        stream.write_all(&[&[state::SERVER_ERROR][..], &[0; 8]].concat())?;
        return Err(odd(why));
    }
    write_state(control, state::CREATE_STREAMS)?;
    let ways = match parameters.udp {
        true => datagrams(socket, parameters.parallel)?,
        false => connections(listener, &cookie, parameters.parallel)?,
    };
    write_state(control, state::TEST_START)?;
    write_state(control, state::TEST_RUNNING)?;
    let streams = Streams::start(ways, parameters.reverse, &parameters);
    let ended = wait_for_end(control, &stop);
    let (ours, seconds, open) = streams.end();
    // A client that reads hears nothing else until its streams end.
    drop(open);
    match ended? {
        state::TEST_END => {}
        state::CLIENT_TERMINATE => return Err(odd("the client has ended the test")),
        other => return Err(odd(format!("the client says {other} within the test"))),
    }
    write_state(control, state::EXCHANGE_RESULTS)?;
    let theirs: Results = read_json(control)?;
    write_json(control, &ours)?;
    write_state(control, state::DISPLAY_RESULTS)?;
    // A client in a hurry closes instead.
    let _ = read_state(control);
    let sent = parameters.reverse;
    Ok(Measured::of(&parameters, sent, &ours, &theirs, seconds))
}

fn check(parameters: &Parameters) -> Result<(), String> {
    if parameters.bidirectional {
        return Err("the client asks for both directions at once: that is not served".to_owned());
    }
    if !(1..=STREAMS_MAX).contains(&parameters.parallel) {
        let count = parameters.parallel;
        return Err(format!(
            "the client asks for {count} streams, of {STREAMS_MAX} at most"
        ));
    }
    if !(1..=BLOCK_LEN_MAX).contains(&parameters.len) {
        return Err(format!(
            "the client asks for blocks of {} bytes",
            parameters.len
        ));
    }
    Ok(())
}

/// The client's next word; meanwhile somebody may ask us to stop.
fn wait_for_end(control: &TcpStream, stop: &impl Fn() -> bool) -> io::Result<u8> {
    control.set_read_timeout(Some(std::time::Duration::from_millis(100)))?;
    loop {
        if stop() {
            let _ = write_state(control, state::SERVER_TERMINATE);
            return Err(odd("asked to stop"));
        }
        match read_state(control) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => {
                control.set_read_timeout(Some(PATIENCE))?;
                return other;
            }
        }
    }
}

/// Connections that begin with the cookie; others are denied.
fn connections(
    listener: &TcpListener,
    cookie: &[u8; COOKIE_LEN],
    count: usize,
) -> io::Result<Vec<Way>> {
    let until = Instant::now() + PATIENCE;
    let mut ways = Vec::new();
    while ways.len() < count {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(odd("the client opens fewer streams than it said"));
        }
        listener.set_read_timeout(Some(left))?;
        let Ok((mut stream, _)) = listener.accept() else {
            continue;
        };
        stream.set_read_timeout(Some(left))?;
        let mut its = [0; COOKIE_LEN];
        match stream.read_exact(&mut its) {
            Ok(()) if its == *cookie => ways.push(Way::Tcp(stream)),
            Ok(()) => drop(write_state(&stream, state::ACCESS_DENIED)),
            Err(_) => {}
        }
    }
    Ok(ways)
}

/// Peers that say hello.
fn datagrams(socket: &UdpSocket, count: usize) -> io::Result<Vec<Way>> {
    let until = Instant::now() + PATIENCE;
    let mut peers = Vec::new();
    while peers.len() < count {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(odd("the client opens fewer streams than it said"));
        }
        socket.set_read_timeout(Some(left))?;
        let Ok((bytes, from)) = socket.recv_owned() else {
            continue;
        };
        let Ok(word) = <[u8; 4]>::try_from(&*bytes) else {
            continue;
        };
        if !UDP_HELLO.contains(&u32::from_ne_bytes(word)) || peers.contains(&from) {
            continue;
        }
        socket.send_to(&UDP_WELCOME.to_ne_bytes(), from)?;
        peers.push(from);
    }
    Ok(peers
        .into_iter()
        .map(|peer| Way::Udp(socket.clone(), peer))
        .collect())
}
