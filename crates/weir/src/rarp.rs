//! The Reverse Address Resolution Protocol (RFC 903), client and server, on
//! ports: an example of a short protocol in user space.
//! `docs/tutorials/protocol.md` explains it.

use crate::error::{CliError, say};
use crate::input::live_port;
use crate::signals::ShutdownSignal;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_broker::protocol::Event;
use weir_broker::{Port, Timeout};
use weir_wire::EtherType;
use weir_wire::arp::{Operation, Packet, Repr};
use weir_wire::ethernet::{self, Address};

/// How often waits check for a signal.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Answers requests for the stations of `table` until a signal arrives, and
/// calls `answered` for each answer.
pub(crate) fn serve(
    interface: &str,
    socket: Option<&Path>,
    table: &BTreeMap<Address, Ipv4Addr>,
    stop: &ShutdownSignal,
    mut answered: impl FnMut(Address, Ipv4Addr) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (mut port, own) = open(interface, socket, "rarp[6:2] = 3")?;
    let addresses = port.status().map_err(live_port::failure)?.addresses;
    let own_ip = addresses.iter().find_map(|(address, _)| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    say(&format!(
        "weir: rarpd on {interface}, stations: {}",
        table.len()
    ));
    say("ready");
    while !stop.is_requested() {
        for request in receive(&mut port)? {
            // A server that does not know the station sends no answer (RFC
            // 903).
            let Some(ip) = table.get(&request.target) else {
                continue;
            };
            let reply = Repr {
                operation: Operation::REVERSE_REPLY,
                sender: own,
                sender_ip: own_ip.unwrap_or(Ipv4Addr::UNSPECIFIED),
                target: request.target,
                target_ip: *ip,
            };
            send(&mut port, request.sender, &reply)?;
            answered(request.target, *ip)?;
        }
        for event in live_port::events(&mut port)? {
            match event {
                Event::Gone => {
                    return Err(CliError::run(format!("interface {interface} is gone")));
                }
                Event::Revoked { reason } => {
                    return Err(CliError::run(format!("the policy has changed: {reason}")));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Requests this station's own address: writes, reads with a time-out, and
/// retries, as in §3 of the 1987 paper.
pub(crate) fn request_address(
    interface: &str,
    socket: Option<&Path>,
    stop: &ShutdownSignal,
) -> Result<Ipv4Addr, CliError> {
    let (mut port, own) = open(interface, socket, "rarp[6:2] = 4")?;
    let request = Repr {
        operation: Operation::REVERSE_REQUEST,
        sender: own,
        sender_ip: Ipv4Addr::UNSPECIFIED,
        target: own,
        target_ip: Ipv4Addr::UNSPECIFIED,
    };
    for patience in [1, 2, 4].map(Duration::from_secs) {
        send(&mut port, Address::BROADCAST, &request)?;
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if stop.is_requested() {
                return Err(CliError::Stopped(stop.signal()));
            }
            let replies = receive(&mut port)?;
            if let Some(reply) = replies.iter().find(|reply| reply.target == own) {
                return Ok(reply.target_ip);
            }
        }
        if port.counters().is_ok_and(|counters| counters.refused > 0) {
            return Err(CliError::refused(format!(
                "the policy lets no RARP be sent on {interface}: \
                 the grant needs send = {{ ethertypes = [0x8035] }}"
            )));
        }
    }
    let message = format!("no RARP server on {interface} has an address for {own}");
    Err(CliError::run(message))
}

/// A port for one kind of message, and the station's own address.
fn open(interface: &str, socket: Option<&Path>, filter: &str) -> Result<(Port, Address), CliError> {
    let port = live_port::port(interface, filter, socket)?.send(true);
    let mut port = port.open().map_err(live_port::failure)?;
    let own = port.status().map_err(live_port::failure)?.address;
    let own = own.parse().map_err(|_| {
        let message = format!("{interface} is not an Ethernet interface, which RARP needs");
        CliError::run(message)
    })?;
    Ok((port, own))
}

/// The messages that arrive within a short time.
fn receive(port: &mut Port) -> Result<Vec<Repr>, CliError> {
    let frames = port.recv_batch(Timeout::after(STOP_POLL_INTERVAL));
    let frames = frames.map_err(live_port::failure)?;
    let messages = frames.filter_map(|frame| {
        let frame = ethernet::Frame::new(frame.bytes()).ok()?;
        Some(Repr::parse(&Packet::new(frame.payload()).ok()?))
    });
    Ok(messages.collect())
}

fn send(port: &mut Port, dst: Address, message: &Repr) -> Result<(), CliError> {
    // Minimum length of an Ethernet frame, without its FCS.
    let mut frame = [0; 60];
    let header = ethernet::Repr {
        dst,
        src: message.sender,
        ether_type: EtherType::RARP,
    };
    header.emit(&mut frame);
    message.emit(&mut frame[ethernet::Repr::LEN..]);
    port.send_batch(&[&frame]).map_err(live_port::failure)?;
    Ok(())
}
