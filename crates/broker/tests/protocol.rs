//! Messages: what is sent arrives, and what is no message is refused.

use std::io;
use std::os::fd::AsFd;
use weir_broker::Bytes;
use weir_broker::compile::Source;
use weir_broker::protocol::{
    Attach, Channel, DecodeError, ErrorKind, Event, Listener, MESSAGE_LEN_MAX, OpenPort, Refusal,
    Request, RequestKind, Response, Sent, ServerMessage, VERSION, decode, encode,
};
use weir_lab::rng::Rng;

fn open() -> Request {
    let filter = Source::expr("udp port 53 and \"quoted\" \u{1f980}");
    Request {
        id: 7,
        kind: RequestKind::Open(OpenPort {
            interface: "eth0".into(),
            filter,
            priority: 10,
            take: true,
            send: false,
            ring: Bytes(1 << 20),
            ring_min: Some(Bytes(4 << 10)),
            snap_len: Some(96),
            timestamps: true,
            tag: u32::MAX,
            attach: Attach::XdpNative,
            fanout: "3/4".parse().ok(),
            namespace: None,
        }),
    }
}

/// A share or a group is checked before anything uses it, and is not there for
/// brokers that do not know it unless it is asked for.
#[test]
fn a_fan_out_is_checked_as_it_is_decoded() {
    let message = |fanout: &str| {
        let bytes = encode(&open()).unwrap();
        let text = String::from_utf8(bytes[8..].to_vec()).unwrap();
        let text = text.replace("\"3/4\"", fanout);
        decode::<Request>(&[&bytes[..8], text.as_bytes()].concat())
    };
    for right in ["\"0/4\"", "\"web\"", "\"64\"", "null"] {
        assert!(message(right).is_ok(), "{right}");
    }
    for wrong in [
        "\"4/4\"",
        "\"0/0\"",
        "\"\"",
        "\"0/4294967297\"",
        "4",
        "{}",
        "[0,4]",
    ] {
        let refused = message(wrong).err().map(|error| error.to_string());
        assert!(refused.is_some(), "{wrong}");
    }
    let refused = message("\"4/4\"").unwrap_err().to_string();
    assert!(refused.contains("`4/4` is no share"), "{refused}");
    let Request { id, kind } = open();
    let RequestKind::Open(asked) = kind else {
        unreachable!("it opens")
    };
    let kind = RequestKind::Open(OpenPort {
        fanout: None,
        ..asked
    });
    let bytes = encode(&Request { id, kind }).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains("fanout"));
}

#[test]
fn what_is_encoded_is_decoded() {
    let requests = [
        open(),
        Request {
            id: 0,
            kind: RequestKind::Ports { after: Some(4) },
        },
        Request {
            id: 1,
            kind: RequestKind::SetFilter {
                port: 3,
                filter: Source::expr(""),
            },
        },
        Request {
            id: 2,
            kind: RequestKind::Stop,
        },
    ];
    for request in requests {
        let bytes = encode(&request).unwrap();
        assert_eq!(decode::<Request>(&bytes), Ok(request));
    }
    let refusal = Refusal {
        kind: ErrorKind::Filter,
        message: "x".into(),
        span: Some((1, 2)),
        passes: false,
    };
    for said in [
        ServerMessage::Answer {
            to: 7,
            answer: Response::Refused(refusal),
        },
        ServerMessage::Event {
            port: 1,
            event: Event::Mtu { mtu: 9000 },
        },
        ServerMessage::Event {
            port: 1,
            event: Event::Revoked {
                reason: "why".into(),
            },
        },
        ServerMessage::Shutdown {
            reason: "enough".into(),
            kind: Some(ErrorKind::Denied),
        },
    ] {
        let bytes = encode(&said).unwrap();
        assert_eq!(decode::<ServerMessage>(&bytes), Ok(said));
    }
}

#[test]
fn a_plain_request_need_not_say_much() {
    let text = br#"{"id":1,"ask":{"open":{"interface":"lo","filter":{"text":""},"ring":4096}}}"#;
    let mut bytes = encode(&()).unwrap();
    bytes.truncate(8);
    bytes.extend(text);
    let Request {
        kind: RequestKind::Open(port),
        ..
    } = decode(&bytes).unwrap()
    else {
        panic!("a request to open a port");
    };
    assert!(!port.take && !port.send && port.priority == 0 && port.attach == Attach::Auto);
}

#[test]
fn garbage_is_refused() {
    let whole = encode(&open()).unwrap();
    assert_eq!(decode::<Request>(b"weir"), Err(DecodeError::NotAMessage(4)));
    assert_eq!(
        decode::<Request>(b"GET / HTTP"),
        Err(DecodeError::NotAMessage(10))
    );
    let mut other = whole.clone();
    other[4] = 9;
    assert_eq!(
        decode::<Request>(&other),
        Err(DecodeError::Version { found: 9 })
    );
    for len in 8..whole.len() {
        assert!(matches!(
            decode::<Request>(&whole[..len]),
            Err(DecodeError::Content(_))
        ));
    }
    // Whatever is changed, it is refused or read, and nothing worse.
    let mut rng = Rng::new(0xbad);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.below(4) + 1 {
            let at = rng.below(bytes.len());
            bytes[at] = rng.below(256) as u8;
        }
        let _ = decode::<Request>(&bytes);
    }
    let mut deep = encode(&()).unwrap();
    deep.truncate(8);
    deep.extend(vec![b'['; MESSAGE_LEN_MAX - 8]);
    assert!(decode::<Request>(&deep).is_err());
}

/// Version 1 had records with one header only.
#[test]
fn another_version_is_refused_by_name() {
    let mut bytes = encode(&()).unwrap();
    for version in [0, 1, VERSION + 1] {
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        let refused = Err(DecodeError::Version { found: version });
        assert_eq!(decode::<()>(&bytes), refused);
    }
}

#[test]
fn a_message_has_a_limit() {
    let said = ServerMessage::Shutdown {
        kind: None,
        reason: "x".repeat(MESSAGE_LEN_MAX),
    };
    assert!(encode(&said).is_err());
    let (a, b) = Channel::pair().unwrap();
    let sent = a.send(&vec![1; MESSAGE_LEN_MAX + 1], &[], true).unwrap();
    assert_eq!(sent, Sent::Whole);
    let received = b.receive(true).unwrap().unwrap();
    assert!(received.is_cut && received.bytes.len() == MESSAGE_LEN_MAX);
}

#[test]
fn descriptors_come_with_their_message() {
    let (a, b) = Channel::pair().unwrap();
    let (first, second) = io::pipe().unwrap();
    a.send(b"one", &[], true).unwrap();
    a.send(b"two", &[first.as_fd(), second.as_fd()], true)
        .unwrap();
    drop((first, second));
    let one = b.receive(true).unwrap().unwrap();
    assert_eq!((one.bytes.as_slice(), one.fds.len()), (&b"one"[..], 0));
    let mut two = b.receive(true).unwrap().unwrap();
    assert_eq!(two.fds.len(), 2);
    let (write, read) = (two.fds.pop().unwrap(), two.fds.pop().unwrap());
    io::Write::write_all(&mut std::fs::File::from(write), b"through").unwrap();
    let text = io::read_to_string(std::fs::File::from(read)).unwrap();
    assert_eq!(text, "through");
    assert!(b.receive(false).unwrap().is_none());
    drop(a);
    let end = b.receive(true).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_full_channel_blocks_no_sender() {
    let (a, _b) = Channel::pair().unwrap();
    let mut count = 0;
    while a.send(&[0; 60_000], &[], false).unwrap() == Sent::Whole {
        count += 1;
        assert!(count < 1000, "the kernel buffers without end");
    }
}

#[test]
fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
    let path = std::env::temp_dir().join(format!("weir-test-{}.sock", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listener = Listener::bind(&path).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    while listener.accept().unwrap().is_some() {}
    let client = Channel::connect(&path).unwrap();
    let server = listener.accept().unwrap().unwrap();
    let peer = server.peer().unwrap();
    assert_eq!(peer.pid, std::process::id());
    drop(client);
    drop(listener);
    assert!(!path.exists());
    std::fs::write(&path, "of somebody's").unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"of somebody's");
    std::fs::remove_file(&path).unwrap();
}
