//! What strongSwan says: its log, and packets of VICI, also damaged. Made for the fuzz target `vici` and
//! the test `strongswan`.
#![allow(dead_code, reason = "each test uses its part")]

use weir_esp::Gateway;
use weir_esp::config::SAS_MAX;
use weir_esp::negotiated::Mapper;
use weir_esp::policy::POLICIES_MAX;
use weir_esp::strongswan::{self, Keys};
use weir_esp::vici::{self, Node, Packet, Section};

/// Lines of strongSwan 5.9.8 as the responder of a CHILD_SA. Another thread speaks in between.
pub(crate) const LOG: &str = "\
10[ENC] parsed IKE_AUTH request 1 [ IDi N(INIT_CONTACT) IDr AUTH SA TSi TSr ]
10[CHD] CHILD_SA net{1} state change: CREATED => INSTALLING
10[CHD]   using AES_GCM_16 for encryption
10[CHD] seed => 64 bytes @ 0x7f59bdbb5940
10[CHD]    0: C1 85 B6 42 BA 51 0C EB 27 FD 5B 97 CD 24 A7 8F  ...B.Q..'.[..$..
10[CHD] encryption initiator key => 36 bytes @ 0x7f5980005820
10[CHD]    0: D6 81 40 18 A7 66 4E 0B DB 29 8C A8 BA E3 EC D2  ..@..fN..)......
11[ENC] parsed CREATE_CHILD_SA response 7 [ SA No ]
11[CHD] adding inbound ESP SA
10[CHD]   16: FD B6 70 18 1F 73 28 4A 78 87 75 6E 32 AE F8 C2  ..p..s(Jx.un2...
10[CHD]   32: EB 25 05 85                                      .%..
10[CHD] encryption responder key => 36 bytes @ 0x7f5980001f40
10[CHD]    0: E0 5A 0B 43 83 8E 73 08 48 CF 33 08 96 A2 63 EF  .Z.C..s.H.3...c.
10[CHD]   16: 8B 73 50 DE DD 9C D4 7E 27 8E B4 A3 B6 69 6C 78  .sP....~'....ilx
10[CHD]   32: 2E 8C D5 9B                                      ....
10[CHD] adding inbound ESP SA
10[CHD]   SPI 0xb129729f, src 192.0.2.1 dst 192.0.2.2
10[CHD] adding outbound ESP SA
10[CHD]   SPI 0xc9808e16, src 192.0.2.2 dst 192.0.2.1
";

pub(crate) fn keys(log: &str) -> Keys {
    let mut keys = Keys::default();
    log.lines().for_each(|line| _ = keys.line(line));
    keys
}

pub(crate) fn value(name: &str, text: &str) -> (String, Node) {
    (name.into(), Node::Value(text.into()))
}

pub(crate) fn list(name: &str, text: &str) -> (String, Node) {
    (name.into(), Node::List(vec![text.into()]))
}

pub(crate) fn child(number: &str, state: &str, spis: [&str; 2]) -> (String, Node) {
    let sa = Section(vec![
        value("name", "net"),
        value("uniqueid", number),
        value("reqid", "1"),
        value("state", state),
        value("mode", "TUNNEL"),
        value("protocol", "ESP"),
        value("encap", "yes"),
        value("spi-in", spis[0]),
        value("spi-out", spis[1]),
        value("encr-alg", "AES_GCM_16"),
        value("encr-keysize", "256"),
        list("local-ts", "10.2.0.0/16"),
        list("remote-ts", "10.1.0.0/16"),
    ]);
    (format!("net-{number}"), Node::Section(sa))
}

pub(crate) fn listed(children: Vec<(String, Node)>) -> Section {
    let ike = Section(vec![
        value("local-host", "192.0.2.2"),
        value("local-port", "4500"),
        value("remote-host", "192.0.2.1"),
        value("remote-port", "4501"),
        ("child-sas".into(), Node::Section(Section(children))),
    ]);
    Section(vec![("c".into(), Node::Section(ike))])
}

/// Appends the bytes of a section as VICI has them; `None` if a text is too long for its length.
pub(crate) fn encode(section: &Section, into: &mut Vec<u8>) -> Option<()> {
    let name = |name: &str, into: &mut Vec<u8>| {
        let len = u8::try_from(name.len()).ok()?;
        into.push(len);
        into.extend_from_slice(name.as_bytes());
        Some(())
    };
    let text = |text: &str, into: &mut Vec<u8>| {
        let len = u16::try_from(text.len()).ok()?;
        into.extend_from_slice(&len.to_be_bytes());
        into.extend_from_slice(text.as_bytes());
        Some(())
    };
    for (key, node) in &section.0 {
        match node {
            Node::Section(section) => {
                into.push(1);
                name(key, into)?;
                encode(section, into)?;
                into.push(2);
            }
            Node::Value(value) => {
                into.push(3);
                name(key, into)?;
                text(value, into)?;
            }
            Node::List(items) => {
                into.push(4);
                name(key, into)?;
                for item in items {
                    into.push(5);
                    text(item, into)?;
                }
                into.push(6);
            }
        }
    }
    Some(())
}

/// A tape of a log and of packets, each behind its length, as VICI's socket has them.
pub(crate) fn tape(log: &str, packets: &[Vec<u8>]) -> Vec<u8> {
    let packets = packets
        .iter()
        .flat_map(|packet| [&(packet.len() as u32).to_be_bytes()[..], packet].concat());
    log.bytes().chain([0]).chain(packets).collect()
}

/// Runs a tape of any bytes to its end: what is read is written and reads back the same, and a gateway
/// accepts what strongSwan is said to have.
pub(crate) fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == 0);
    let (log, mut rest) = data.split_at(end.unwrap_or(data.len()));
    rest = rest.get(1..).unwrap_or_default();
    let mut keys = keys(&String::from_utf8_lossy(log));
    let mut mapper = Mapper::default();
    let (mut children, mut shunts) = (Vec::new(), Vec::new());
    while let Some((len, behind)) = rest.split_first_chunk() {
        let len = u32::from_be_bytes(*len) as usize;
        let (bytes, behind) = behind.split_at(len.min(behind.len()));
        rest = behind;
        match vici::packet(bytes) {
            Some(Packet::Event(name, message)) => {
                reads_back(&message);
                children.extend(strongswan::children(&message));
                shunts.extend(strongswan::shunt(&message));
                // A list of them without keys ends them all.
                if name.is_empty() {
                    keys.listed(&[]);
                }
            }
            Some(Packet::Response(message)) => {
                reads_back(&message);
                let keys = keys.listed(&children);
                let config = strongswan::config(&mut mapper, &children, &shunts, &keys, 1500);
                assert!(config.policies.len() <= POLICIES_MAX && config.sas.len() <= SAS_MAX);
                Gateway::new(&config, 0, 1).expect("a gateway accepts it");
                (children, shunts) = Default::default();
            }
            Some(Packet::Confirmed) | None => {}
        }
    }
}

fn reads_back(message: &Section) {
    let mut bytes = vec![1];
    if encode(message, &mut bytes).is_some() {
        let again = vici::packet(&bytes);
        assert_eq!(again, Some(Packet::Response(message.clone())));
    }
}
