//! A tape of Pups, calls and time for a host: nothing panics, and nothing grows
//! without bound.

use std::time::Duration;
use weir_pup::Host;
use weir_pup::bsp::Read;
use weir_pup::datagram::{Port, Pup, socket};
use weir_pup::eftp::Receiver;
use weir_pup::ftp::Reader;
use weir_pup::gateway::Gateway;
use weir_pup::host::CONNECTIONS_MAX;

const PEER: Port = Port {
    net: 1,
    host: 3,
    socket: 0x20_0000,
};

pub(crate) fn run(data: &[u8]) {
    let mut host = Host::new(1, 2, 77);
    host.listen(socket::FTP);
    host.bind_at(socket::EFTP);
    let mut receiver = Receiver::new(10_000);
    let mut gateway = Gateway::new(&[
        host.port(0),
        Port {
            net: 2,
            ..host.port(0)
        },
    ]);
    let mut reader = Reader::default();
    let mut now = Duration::ZERO;
    let mut numbers: Vec<u32> = Vec::new();
    let mut last = Vec::new();
    let mut rest = data;
    while let Some((operation, more)) = rest.split_first() {
        let take = |count: usize| more.split_at(count.min(more.len()));
        rest = more;
        match operation % 10 {
            // A Pup of any type to one of the sockets.
            0..=3 => {
                let (fields, left) = take(6);
                rest = left;
                let Ok([kind, to, position, hops, len, fill]) = <[u8; 6]>::try_from(fields) else {
                    continue;
                };
                let known = numbers.get(usize::from(to) % 4).copied();
                let to = match to % 8 {
                    0 => socket::FTP,
                    1 => socket::EFTP,
                    2 => socket::ECHO,
                    3 => socket::GATEWAY,
                    4 => socket::MISCELLANEOUS,
                    _ => known.unwrap_or(9),
                };
                let identifier = u32::from(position)
                    .wrapping_sub(3)
                    .wrapping_mul(1 + u32::from(fill & 1) * 531);
                let mut pup = Pup::new(
                    kind % 30,
                    identifier,
                    host.port(to),
                    PEER,
                    &vec![fill; usize::from(len) * 2],
                );
                pup.head.control = hops;
                gateway.learn(now, 0, 3, &pup.payload);
                let _ = gateway.forward(now, 0, pup.clone());
                last.clear();
                pup.emit(&mut last);
                host.handle(now, pup);
            }
            // The last one again, changed.
            4 => {
                let (fields, left) = take(2);
                rest = left;
                if let [at, value] = *fields
                    && let Some(byte) = last.get_mut(usize::from(at))
                {
                    *byte = value;
                }
                host.handle_bytes(now, &last);
            }
            5 => {
                now += Duration::from_millis(1 << (operation / 16));
                host.handle_timeout(now);
            }
            6 => numbers.extend(host.open(now, PEER)),
            7 => {
                for number in &numbers {
                    let Some(connection) = host.connection(*number) else {
                        continue;
                    };
                    connection.write(&[*operation; 700]);
                    connection.write_mark(*operation);
                    connection.interrupt(1, "x");
                    if operation & 0x80 != 0 {
                        connection.close();
                    }
                }
            }
            8 => {
                let mut buffer = [0; 1000];
                for number in &numbers {
                    if let Some(connection) = host.connection(*number) {
                        let _ = reader.poll(connection);
                        while !matches!(connection.read(&mut buffer), Read::Nothing | Read::End) {}
                        while connection.poll_interrupt().is_some() {}
                    }
                }
            }
            _ => {
                last.clear();
                host.poll_transmit(now, &mut last);
                assert!(
                    last.is_empty() || Pup::parse(&last).is_some(),
                    "what is sent is a Pup"
                );
            }
        }
        while let Some(accepted) = host.poll_accepted() {
            numbers.push(accepted.connection);
        }
        while let Some(pup) = host.poll_datagram() {
            let answer = receiver.handle(now, &pup);
            answer.into_iter().for_each(|pup| host.send(pup));
        }
        numbers.truncate(2 * CONNECTIONS_MAX);
    }
    // Every connection ends once its peer is silent, and its application lets go.
    for number in &numbers {
        host.release(*number);
    }
    let mut sent = 0;
    for _ in 0..100_000 {
        let mut bytes = Vec::new();
        while host.poll_transmit(now, &mut bytes).is_some() {
            bytes.clear();
            sent += 1;
        }
        let Some(due) = host.next_timeout() else {
            break;
        };
        now = now.max(due);
        host.handle_timeout(now);
    }
    assert!(host.next_timeout().is_none(), "a connection stays");
    assert!(sent < 500_000, "{sent} Pups");
}
