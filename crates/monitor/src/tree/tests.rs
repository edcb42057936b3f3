use super::*;
use weir_wire::rng::SplitMix64;

/// An Ethernet frame of an IPv4 packet.
fn ipv4(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(((20 + body.len()) as u16).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(body);
    frame
}

fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for word in [src, dst, 8 + payload.len() as u16, 0] {
        body.extend(word.to_be_bytes());
    }
    body.extend(payload);
    ipv4(17, &body)
}

fn tcp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(src.to_be_bytes());
    body.extend(dst.to_be_bytes());
    body.extend([0, 0, 0, 7, 0, 0, 0, 9, 0x80, 0x18, 1, 0, 0, 0, 0, 0]);
    // NOP, NOP, timestamp.
    body.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
    body.extend(payload);
    ipv4(6, &body)
}

fn names(layers: &[Layer]) -> Vec<&'static str> {
    layers.iter().map(|layer| layer.name).collect()
}

fn value<'a>(layer: &'a Layer, name: &str) -> &'a str {
    let field = layer.fields.iter().find(|field| field.name == name);
    &field
        .unwrap_or_else(|| panic!("no {name} in {layer:?}"))
        .value
}

/// `example.com`, A, in a query and the answer to it.
fn dns(is_answer: bool) -> Vec<u8> {
    let mut message = vec![
        0x12,
        0x34,
        if is_answer { 0x81 } else { 1 },
        0,
        0,
        1,
        0,
        u8::from(is_answer),
        0,
        0,
        0,
        0,
    ];
    message.extend(b"\x07example\x03com\0\0\x01\0\x01");
    if is_answer {
        message.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
    }
    message
}

/// A ClientHello for a name.
fn client_hello(name: &str) -> Vec<u8> {
    let mut list = vec![0];
    list.extend((name.len() as u16).to_be_bytes());
    list.extend(name.as_bytes());
    let mut extensions = vec![0, 43, 0, 3, 2, 3, 4, 0, 0];
    extensions.extend((list.len() as u16 + 2).to_be_bytes());
    extensions.extend((list.len() as u16).to_be_bytes());
    extensions.extend(list);
    extensions.extend(b"\0\x10\0\x05\0\x03\x02h2");
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0x13, 1, 1, 0]);
    hello.extend((extensions.len() as u16).to_be_bytes());
    hello.extend(extensions);
    let mut record = vec![22, 3, 1];
    record.extend((hello.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend((hello.len() as u16).to_be_bytes());
    record.extend(hello);
    record
}

const REQUEST: &[u8] = b"GET /x HTTP/1.1\r\nHost: example.com\r\nX-Evil: \x1b[2J\r\n\r\nbody";

#[test]
fn headers_become_layers_with_fields() {
    let layers = decode(&udp(4000, 53, &dns(false)), LinkType::EN10MB);
    assert_eq!(names(&layers), ["Ethernet", "IPv4", "UDP", "DNS"]);
    assert_eq!(value(&layers[1], "Time to live"), "64");
    assert_eq!(layers[1].range, 14..34);
    assert_eq!(value(&layers[2], "Destination port"), "dns (53)");
    assert_eq!(layers[3].summary, "query 4660: A example.com.");
    let layers = decode(&udp(53, 4000, &dns(true)), LinkType::EN10MB);
    assert_eq!(value(&layers[3], "Answer"), "example.com. A 192.0.2.1");
    assert_eq!(value(&layers[3], "Time to live"), "60 s");
}

#[test]
fn tls_and_http_are_found_at_any_port() {
    let frame = tcp(5555, 9999, &client_hello("www.example.org"));
    let layers = decode(&frame, LinkType::EN10MB);
    assert_eq!(names(&layers), ["Ethernet", "IPv4", "TCP", "TLS"]);
    assert_eq!(layers[3].summary, "ClientHello for www.example.org");
    assert_eq!(value(&layers[3], "ALPN"), "h2");
    assert_eq!(value(&layers[3], "Supported versions"), "TLS 1.3");
    assert!(!layers[3].is_cut, "{layers:?}");
    assert_eq!(value(&layers[2], "Timestamp"), "5, echo of 6");
    let layers = decode(&tcp(5555, 9999, REQUEST), LinkType::EN10MB);
    assert_eq!(names(&layers), ["Ethernet", "IPv4", "TCP", "HTTP", "Data"]);
    assert_eq!(
        value(&layers[3], "X-Evil"),
        "\\x1b[2J",
        "control characters are escaped"
    );
    // Something else at HTTP's port.
    let layers = decode(&tcp(5555, 80, b"\0\x01\x02"), LinkType::EN10MB);
    assert_eq!(names(&layers), ["Ethernet", "IPv4", "TCP", "Data"]);
}

#[test]
fn the_server_that_is_asked_for_has_its_name() {
    assert_eq!(
        server_name(&client_hello("a.example")).as_deref(),
        Some("a.example")
    );
    assert_eq!(server_name(REQUEST).as_deref(), Some("example.com"));
    assert_eq!(server_name(b"HELO there"), None);
    let hello = client_hello("a.example");
    for len in 0..hello.len() {
        let _ = server_name(&hello[..len]);
    }
}

#[test]
fn tags_arp_and_dhcp_have_views() {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x81, 0, 0x60, 9, 8, 6]);
    frame.extend([
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ]);
    frame.extend([0; 18]);
    let layers = decode(&frame, LinkType::EN10MB);
    assert_eq!(
        names(&layers),
        ["Ethernet", "802.1Q", "ARP"],
        "padding is not shown"
    );
    assert_eq!(value(&layers[1], "VLAN"), "9");
    assert_eq!(layers[2].summary, "who has 10.0.0.2? tell 10.0.0.1");
    let mut message = vec![0; 236];
    (message[0], message[1], message[2]) = (1, 1, 6);
    message.extend([
        0x63, 0x82, 0x53, 0x63, 53, 1, 1, 12, 4, b'h', b'o', b's', b't', 255,
    ]);
    let layers = decode(&udp(68, 67, &message), LinkType::EN10MB);
    assert_eq!(value(&layers[3], "Message"), "Discover");
    assert_eq!(value(&layers[3], "Host name"), "host");
}

#[test]
fn a_message_in_a_message_is_decoded_and_nesting_has_a_limit() {
    let inner = udp(1, 2, b"x");
    let mut body = vec![3, 3, 0, 0, 0, 0, 0, 0];
    body.extend(&inner[14..]);
    let layers = decode(&ipv4(1, &body), LinkType::EN10MB);
    assert_eq!(
        names(&layers),
        ["Ethernet", "IPv4", "ICMP", "IPv4", "UDP", "Data"]
    );
    assert_eq!(layers[2].summary, "port unreachable");
    // IPv4 in IPv4, without end.
    let mut packet = Vec::new();
    for _ in 0..100 {
        let mut outer = ipv4(4, &packet)[14..].to_vec();
        std::mem::swap(&mut packet, &mut outer);
    }
    assert_eq!(decode(&packet, LinkType::RAW).len(), LAYERS_MAX);
}

#[test]
fn a_payload_is_what_follows_the_headers_that_carry_it() {
    let of = |frame: &[u8]| payload(frame, LinkType::EN10MB);
    let mut frame = udp(4000, 53, &dns(false));
    let end = frame.len();
    assert_eq!(of(&frame), 42..end, "whatever weir's own views say of it");
    frame.extend([0; 9]);
    assert_eq!(of(&frame), 42..end, "without padding");
    assert!(of(&frame[..40]).is_empty(), "a header is cut");
    assert_eq!(of(&tcp(5, 6, b"abc")).len(), 3);
    assert_eq!(of(&ipv4(1, &[8; 20])), 34..54, "ICMP is a payload");
    let mut tagged = vec![0; 12];
    tagged.extend([0x81, 0, 0, 9, 0x12, 0x34, 1, 2, 3]);
    assert_eq!(of(&tagged), 18..21);
}

/// Frames cut anywhere, and with any byte changed: no panic, ranges within the frame, limits.
#[test]
fn hostile_frames_decode_to_something() {
    let frames = [
        udp(4000, 53, &dns(false)),
        udp(53, 4000, &dns(true)),
        udp(68, 67, &[99; 300]),
        tcp(5, 443, &client_hello("www.example.org")),
        tcp(5, 80, REQUEST),
        ipv4(58, &[134; 64]),
        ipv4(41, &[0x60; 90]),
    ];
    let check = |bytes: &[u8]| {
        for linktype in [LinkType::EN10MB, LinkType::RAW, LinkType::LINUX_SLL] {
            let layers = decode(bytes, linktype);
            assert!(layers.len() <= LAYERS_MAX);
            let payload = payload(bytes, linktype);
            assert!(payload.start <= payload.end && payload.end <= bytes.len());
            assert!(layers.iter().map(|layer| layer.fields.len()).sum::<usize>() <= FIELDS_MAX);
            for layer in &layers {
                assert!(layer.range.start < layer.range.end && layer.range.end <= bytes.len());
                for field in &layer.fields {
                    assert!(field.range.start <= field.range.end && field.range.end <= bytes.len());
                    assert!(!field.value.chars().any(char::is_control), "{field:?}");
                    assert!(!field.name.chars().any(char::is_control), "{field:?}");
                }
            }
        }
    };
    // A failure is replayed by the seed.
    let mut random = SplitMix64::new(7);
    for frame in &frames {
        for len in 0..=frame.len() {
            check(&frame[..len]);
        }
        for _ in 0..2_000 {
            let mut changed = frame.clone();
            for _ in 0..3 {
                let bits = random.bits();
                let at = bits as usize % changed.len();
                changed[at] = (bits >> 32) as u8;
            }
            check(&changed);
        }
    }
}
