//! Responses that are not whole: forged parts keep no whole response out.

use std::time::Duration;
use weir_vmtp::packet::{Flags, Packet, Repr};
use weir_vmtp::segment::all_blocks;
use weir_vmtp::{Client, Entity, Event, Request};

const SERVER: Entity = Entity(0x0000_0415_0a00_0002);
const GROUP: Entity = Entity(0x4000_0415_e800_0415);
/// The link address of a forger; the server's is 0.
const FORGER: u32 = 2;

fn honest() -> Client<u32> {
    Client::new(Entity(0x0000_0007_0a00_0001), 100)
}

fn made_up(number: u64) -> Entity {
    Entity(0x0100_0000_0a00_0003 + (number << 32))
}

fn head(bytes: &[u8]) -> Repr {
    Repr::parse(&Packet::new(bytes).unwrap())
}

/// Packets of a response, two blocks in each.
fn response(to: &Repr, server: Entity, len: usize, fill: u8) -> Vec<Vec<u8>> {
    let head = |delivery| Repr {
        response: true,
        multicast: false,
        server,
        code: 0,
        flags: Flags::SEGMENT,
        delivery,
        segment_size: len as u32,
        ..*to
    };
    let pairs = (0..32).step_by(2).map(|block| 3 << block & all_blocks(len));
    let pairs = pairs.filter(|delivery| *delivery != 0);
    pairs
        .map(|delivery| {
            let mut bytes = Vec::new();
            head(delivery).emit(&vec![fill; len], &mut bytes);
            bytes
        })
        .collect()
}

fn asked(client: &mut Client<u32>) -> Repr {
    let mut packet = Vec::new();
    client.poll_transmit(&mut packet).expect("a request");
    head(&packet)
}

fn assert_answered(client: &mut Client<u32>, server: Entity, fill: u8) {
    let Some(Event::Response(response)) = client.poll_event() else {
        panic!("no response");
    };
    assert_eq!(response.server, server);
    assert!(
        response.segment.iter().all(|byte| *byte == fill),
        "a mixture"
    );
}

#[test]
fn a_part_of_a_response_does_not_keep_a_whole_one_out() {
    // Of as many servers as a client keeps parts of, and more.
    for forgers in [1, 4, 50] {
        let now = Duration::ZERO;
        let mut client = honest();
        client.call(now, Request::new(GROUP, 5)).unwrap();
        let request = asked(&mut client);
        for forger in 0..forgers {
            let part = &response(&request, made_up(forger), 16_384, 1)[0];
            client.handle(now, FORGER, part);
        }
        for (count, packet) in response(&request, SERVER, 9000, 2).iter().enumerate() {
            client.handle(now, 0, packet);
            // And in between.
            let part = &response(&request, made_up(0), 16_384, 1)[count];
            client.handle(now, FORGER, part);
        }
        assert_answered(&mut client, SERVER, 2);
    }
}

#[test]
fn a_response_is_of_one_station() {
    let now = Duration::ZERO;
    let mut client = honest();
    client.call(now, Request::new(SERVER, 5)).unwrap();
    let request = asked(&mut client);
    client.handle(now, FORGER, &response(&request, SERVER, 9000, 1)[0]);
    client.handle(now, FORGER, &response(&request, SERVER, 16_384, 1)[1]);
    for packet in response(&request, SERVER, 9000, 2) {
        client.handle(now, 0, &packet);
    }
    assert_answered(&mut client, SERVER, 2);
}

/// The next request to the group, after the questions for the rest of parts.
fn asked_group(client: &mut Client<u32>) -> Option<Repr> {
    let mut packet = Vec::new();
    while client.poll_transmit(&mut packet).is_some() {
        let sent = head(&packet);
        packet.clear();
        if sent.server == GROUP {
            return Some(sent);
        }
    }
    None
}

/// The honest response is lost, and parts of a forged one come at each sending: the
/// group is asked again, and the first whole response is taken.
#[test]
fn a_group_is_asked_again_in_spite_of_parts() {
    for grows in [false, true] {
        let mut now = Duration::ZERO;
        let mut client = honest();
        client.call(now, Request::new(GROUP, 5)).unwrap();
        let mut asked = 0;
        let mut part = 0;
        while asked < 4 {
            if let Some(request) = asked_group(&mut client) {
                asked += 1;
                let packets = response(&request, made_up(0), 16_384, 1);
                client.handle(now, FORGER, &packets[part]);
                part += usize::from(grows);
                if asked == 4 {
                    for packet in response(&request, SERVER, 9000, 2) {
                        client.handle(now, 0, &packet);
                    }
                }
            }
            now = client.next_timeout().unwrap_or(now);
            client.handle_timeout(now);
            assert!(now < Duration::from_secs(5), "{grows}: asked {asked} times");
        }
        assert_answered(&mut client, SERVER, 2);
    }
}
