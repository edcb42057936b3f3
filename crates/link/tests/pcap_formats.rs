//! Cases that the formats allow and real captures seldom contain, built by
//! hand.

mod support;

use support::*;
use weir_link::pcap::{Damage, Error, Reader, Resolution};

const LITTLE: Order = Order::Little;

#[test]
fn old_versions_have_their_lengths_in_the_other_order() {
    for (version, lens, expected) in [
        ((2, 0), (60, 4), (4, 60)),
        ((2, 2), (60, 4), (4, 60)),
        ((543, 0), (60, 4), (4, 60)),
        ((2, 3), (60, 4), (4, 60)),
        ((2, 3), (4, 60), (4, 60)),
        ((2, 4), (4, 60), (4, 60)),
        // A captured length above the wire length is returned as it is.
        ((2, 4), (4, 2), (4, 2)),
    ] {
        for order in [LITTLE, Order::Big] {
            let mut file = pcap_header(order, MICRO, version, 65535, 1);
            pcap_frame(&mut file, order, (1, 2), lens, b"abcd");
            let seen = read_whole(&file);
            assert_eq!(seen.len(), 1, "{version:?}");
            assert_eq!(
                (seen[0].bytes.len(), seen[0].wire_len),
                expected,
                "{version:?}"
            );
            assert_eq!(seen[0].time_ns, Some(1_000_002_000));
        }
    }
}

#[test]
fn the_modified_format_has_longer_frame_headers() {
    let mut file = pcap_header(LITTLE, MODIFIED, (2, 4), 65535, 113);
    for bytes in [b"abcd", b"efgh"] {
        let extra = [&[9; 8], &bytes[..]].concat();
        pcap_frame(&mut file, LITTLE, (5, 6), (4, 4), &extra);
    }
    let seen = read_whole(&file);
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].bytes, b"efgh");
    assert_eq!(seen[1].linktype, 113);
}

#[test]
fn a_frame_is_cut_to_the_snap_length() {
    let mut file = pcap_header(LITTLE, MICRO, (2, 4), 3, 1);
    pcap_frame(&mut file, LITTLE, (0, 0), (5, 9), b"abcde");
    pcap_frame(&mut file, LITTLE, (0, 0), (2, 2), b"fg");
    let seen = read_whole(&file);
    assert_eq!(seen[0].bytes, b"abc");
    assert_eq!(seen[0].wire_len, 9);
    assert_eq!(seen[1].bytes, b"fg");

    let mut file = Vec::new();
    section(&mut file, LITTLE);
    interface(&mut file, LITTLE, 1, 3, &[]);
    enhanced(&mut file, LITTLE, 0, 0, 9, b"abcde");
    simple(&mut file, LITTLE, 9, b"abc");
    let seen = read_whole(&file);
    assert_eq!((&seen[0].bytes[..], seen[0].wire_len), (&b"abc"[..], 9));
    assert_eq!((&seen[1].bytes[..], seen[1].wire_len), (&b"abc"[..], 9));
}

#[test]
fn a_zero_snap_length_is_no_limit() {
    for snaplen in [0, 0x8000_0000, u32::MAX] {
        let mut file = pcap_header(LITTLE, MICRO, (2, 4), snaplen, 1);
        pcap_frame(&mut file, LITTLE, (0, 0), (5, 9), b"abcde");
        assert_eq!(read_whole(&file)[0].bytes, b"abcde");
    }
}

#[test]
fn the_link_type_field_carries_more_than_the_link_type() {
    // The upper six bits hold the length of a frame check sequence.
    let file = pcap_header(LITTLE, MICRO, (2, 4), 0, 0x2400_0001);
    let reader = Reader::new(std::io::Cursor::new(file)).unwrap();
    assert_eq!(reader.interfaces()[0].linktype.0, 1);
    // Raw IP formerly had another number.
    let file = pcap_header(LITTLE, MICRO, (2, 4), 0, 12);
    let reader = Reader::new(std::io::Cursor::new(file)).unwrap();
    assert_eq!(reader.interfaces()[0].linktype.0, 101);
    let (_, error) = read(&pcap_header(LITTLE, MICRO, (2, 4), 0, 0x0001_0001));
    assert!(matches!(damage(error), (0, Damage::LinkType(0x0001_0001))));
}

#[test]
fn sections_interfaces_and_byte_orders_mix() {
    let mut file = Vec::new();
    section(&mut file, LITTLE);
    interface(&mut file, LITTLE, 1, 100, &[option(LITTLE, 2, b"eth0\0")]);
    interface(
        &mut file,
        LITTLE,
        101,
        0,
        &[option(LITTLE, 9, &[9]), option(LITTLE, 0, &[])],
    );
    enhanced(&mut file, LITTLE, 1, 7, 2, b"ip");
    enhanced(&mut file, LITTLE, 0, 7, 3, b"eth");
    section(&mut file, Order::Big);
    block(&mut file, Order::Big, 5, &[0; 8]);
    interface(&mut file, Order::Big, 2, 0, &[]);
    obsolete(&mut file, Order::Big, 0, 1 << 33, 4, b"pup!");
    simple(&mut file, Order::Big, 5, b"pup!!");
    // The first section's first interface again: not a new one.
    section(&mut file, LITTLE);
    block(&mut file, LITTLE, 0xbad, &[1; 64]);
    interface(&mut file, LITTLE, 1, 100, &[option(LITTLE, 2, b"eth0")]);
    enhanced(&mut file, LITTLE, 0, 8, 3, b"eth");

    let mut reader = Reader::new(std::io::Cursor::new(file)).unwrap();
    let (seen, error) = drain(&mut reader);
    assert!(error.is_none(), "{error:?}");
    let told: Vec<_> = seen
        .iter()
        .map(|seen| (seen.interface, seen.linktype, seen.time_ns, &seen.bytes[..]))
        .collect();
    assert_eq!(
        told,
        [
            (1, 101, Some(7), &b"ip"[..]),
            (0, 1, Some(7_000), b"eth"),
            (2, 2, Some((1 << 33) * 1000), b"pup!"),
            (2, 2, None, b"pup!!"),
            (0, 1, Some(8_000), b"eth"),
        ]
    );
    let interfaces = reader.interfaces();
    assert_eq!(interfaces.len(), 3);
    assert_eq!(interfaces[0].name.as_deref(), Some("eth0"));
    assert_eq!(interfaces[0].snaplen, 100);
    assert_eq!(interfaces[1].resolution, Resolution::NANO);
}

#[test]
fn every_resolution_and_offset_gives_nanoseconds() {
    let offset = |seconds: i64| option(LITTLE, 14, &LITTLE.u64(seconds as u64));
    for (resolution, seconds, units, expected) in [
        (0, 0, 3, 3_000_000_000),
        (3, 0, 1_234, 1_234_000_000),
        (9, 0, 1_234, 1_234),
        (12, 0, 1_999, 1),
        (19, 0, u64::MAX, 1_844_674_407),
        (0x80, 0, 3, 3_000_000_000),
        (0x80 | 10, 0, 1 << 9, 500_000_000),
        (0x80 | 32, 0, (5 << 32) | (1 << 31), 5_500_000_000),
        (0x80 | 63, 0, 1 << 62, 500_000_000),
        (6, 100, 1, 100_000_001_000),
        (6, -100, 1, -99_999_999_000),
        // Out of range: clamped.
        (0, 0, u64::MAX, i64::MAX),
        (6, i64::MIN, 0, i64::MIN),
        (6, i64::MAX, u64::MAX, i64::MAX),
    ] {
        let mut file = Vec::new();
        section(&mut file, LITTLE);
        let options = [option(LITTLE, 9, &[resolution]), offset(seconds)];
        interface(&mut file, LITTLE, 1, 0, &options);
        enhanced(&mut file, LITTLE, 0, units, 0, b"");
        let seen = read_whole(&file);
        assert_eq!(
            seen[0].time_ns,
            Some(expected),
            "{resolution:#x} {seconds} {units}"
        );
    }
}

#[test]
fn packed_files_may_have_several_members() {
    let mut file = pcap_header(LITTLE, MICRO, (2, 4), 0, 1);
    pcap_frame(&mut file, LITTLE, (0, 0), (300, 300), &[7; 300]);
    let (front, back) = file.split_at(100);
    let expected = read_whole(&file);
    let padded = [gzip(front), gzip(back), vec![0; 1000]].concat();
    assert_eq!(read_whole(&padded), expected);
    let skippable = [
        &[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..],
        &zstd(front),
    ]
    .concat();
    let skipped = [skippable.clone(), skippable[..11].to_vec(), zstd(back)].concat();
    assert_eq!(read_whole(&skipped), expected);
}

#[test]
fn reads_as_little_as_a_pipe_gives() {
    struct Trickle(std::io::Cursor<Vec<u8>>, u64);
    impl std::io::Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            let some = buffer.len().min(1 + (self.1 % 7) as usize);
            self.0.read(&mut buffer[..some])
        }
    }
    let mut file = pcap_header(LITTLE, MICRO, (2, 4), 0, 1);
    for size in [0usize, 1, 15, 1500, 9000] {
        let size32 = size as u32;
        pcap_frame(
            &mut file,
            LITTLE,
            (1, 1),
            (size32, size32),
            &vec![size as u8; size],
        );
    }
    let expected = read_whole(&file);
    for file in [gzip(&file), zstd(&file), file] {
        let mut reader = Reader::new(Trickle(std::io::Cursor::new(file), 0)).unwrap();
        let (seen, error) = drain(&mut reader);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(seen, expected);
    }
}

/// The offset and the damage of an [`Error::Damaged`].
fn damage(error: Option<Error>) -> (u64, Damage) {
    match error {
        Some(Error::Damaged { offset, damage, .. }) => (offset, damage),
        other => panic!("no damage: {other:?}"),
    }
}

/// A section and an Ethernet interface, and the offset of their end.
fn begun() -> (Vec<u8>, u64) {
    let mut file = Vec::new();
    section(&mut file, LITTLE);
    interface(&mut file, LITTLE, 1, 0, &[]);
    let end = file.len() as u64;
    (file, end)
}

#[test]
fn each_damage_has_its_name_and_place() {
    let (_, error) = read(b"GET / HTTP/1.1");
    assert_eq!(
        error.unwrap().to_string(),
        "at byte 0: not a capture file: it starts with the bytes 47 45 54 20; expected pcap or pcapng, plain or compressed with gzip or zstd"
    );
    let (_, error) = read(&pcap_header(LITTLE, MICRO, (3, 0), 0, 1));
    assert!(matches!(
        damage(error),
        (
            0,
            Damage::Version {
                format: "pcap",
                major: 3,
                minor: 0
            }
        )
    ));

    let (file, end) = begun();
    let with = |append: &dyn Fn(&mut Vec<u8>)| {
        let mut file = file.clone();
        append(&mut file);
        let (seen, error) = read(&file);
        assert!(seen.is_empty());
        let (offset, damage) = damage(error);
        assert_eq!(offset, end);
        damage
    };
    let found = with(&|file| enhanced(file, LITTLE, 3, 0, 0, b""));
    assert!(matches!(
        found,
        Damage::Interface {
            interface: 3,
            known: 1
        }
    ));
    let found = with(&|file| interface(file, LITTLE, 1, 0, &[option(LITTLE, 9, &[20])]));
    assert!(matches!(found, Damage::Resolution(20)));
    let found = with(&|file| interface(file, LITTLE, 1, 0, &[option(LITTLE, 9, &[0xc0])]));
    assert!(matches!(found, Damage::Resolution(0xc0)));
    let found = with(&|file| interface(file, LITTLE, 1, 0, &[option(LITTLE, 9, &[6, 6])]));
    assert!(matches!(found, Damage::Option { code: 9, length: 2 }));
    let found = with(&|file| interface(file, LITTLE, 1, 0, &[vec![2, 0, 255, 0]]));
    assert!(matches!(
        found,
        Damage::Option {
            code: 2,
            length: 255
        }
    ));
    let found = with(&|file| {
        enhanced(file, LITTLE, 0, 0, 4, b"abcd");
        *file.last_mut().unwrap() = 1;
    });
    assert!(matches!(
        found,
        Damage::BlockTrailer {
            before: 36,
            behind: 0x0100_0024
        }
    ));
    let found = with(&|file| block(file, LITTLE, 6, &[0; 16]));
    assert!(matches!(
        found,
        Damage::BlockLength {
            kind: 6,
            length: 28,
            min: 32,
            ..
        }
    ));
    let found = with(&|file| simple(file, LITTLE, 9, b"abcd"));
    assert!(matches!(
        found,
        Damage::BlockLength {
            kind: 3,
            length: 20,
            min: 28,
            ..
        }
    ));
    let found = with(&|file| {
        section(file, LITTLE);
        let at = end as usize + 8;
        file[at..at + 4].copy_from_slice(&[1, 2, 3, 4]);
    });
    assert!(matches!(found, Damage::ByteOrder(0x0403_0201)));
    let found = with(&|file| {
        section(file, LITTLE);
        file[end as usize + 12] = 2;
    });
    assert!(matches!(
        found,
        Damage::Version {
            format: "pcapng",
            major: 2,
            minor: 0
        }
    ));
}

#[test]
fn what_a_callers_reader_says_is_no_damage() {
    struct Pulled(std::io::Cursor<Vec<u8>>);
    impl std::io::Read for Pulled {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(std::io::Error::other("the cable was pulled")),
                some => Ok(some),
            }
        }
    }
    let mut file = pcap_header(LITTLE, MICRO, (2, 4), 0, 1);
    for byte in 0..9 {
        pcap_frame(&mut file, LITTLE, (1, 1), (200, 200), &[byte; 200]);
    }
    for mut packed in [gzip(&file), zstd(&file), file] {
        packed.truncate(packed.len() - 9);
        let end = Reader::new(Pulled(std::io::Cursor::new(packed)))
            .map_or_else(Some, |mut reader| drain(&mut reader).1);
        match end {
            Some(Error::Read { source, .. }) => {
                assert_eq!(source.to_string(), "the cable was pulled");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn no_name_is_longer_than_the_limit() {
    let most = weir_link::pcap::NAME_LEN_MAX;
    for (name, kept) in [
        (vec![b'n'; 300], "n".repeat(most)),
        // Each invalid byte becomes U+FFFD, three bytes.
        (vec![0xff; 300], "\u{fffd}".repeat(most / 3)),
        ("é".repeat(200).into_bytes(), "é".repeat(most / 2)),
    ] {
        let mut file = Vec::new();
        section(&mut file, LITTLE);
        interface(&mut file, LITTLE, 1, 0, &[option(LITTLE, 2, &name)]);
        let reader = Reader::new(std::io::Cursor::new(file)).unwrap();
        assert_eq!(reader.interfaces()[0].name.as_ref(), Some(&kept));
    }
}

#[test]
fn wild_lengths_are_damage() {
    let mut file = pcap_header(LITTLE, MICRO, (2, 4), u32::MAX, 1);
    pcap_frame(&mut file, LITTLE, (0, 0), (262_145, 0), b"abcd");
    let (_, error) = read(&file);
    assert!(matches!(
        damage(error),
        (
            24,
            Damage::FrameLength {
                captured: 262_145,
                max: 262_144
            }
        )
    ));
    let (file, end) = begun();
    for length in [u32::MAX, u32::MAX - 3, 1 << 30, 8, 0, 13] {
        let mut file = file.clone();
        file.extend(LITTLE.u32(99));
        file.extend(LITTLE.u32(length));
        file.extend([0; 100]);
        let (offset, damage) = damage(read(&file).1);
        assert_eq!(offset, end);
        assert!(
            matches!(damage, Damage::BlockLength { kind: 99, .. }),
            "{damage:?}"
        );
    }
    // A plausible length in a file that is shorter.
    let mut long = file.clone();
    long.extend(LITTLE.u32(99));
    long.extend(LITTLE.u32(16 << 20));
    let (offset, damage) = damage(read(&long).1);
    assert_eq!(offset, end);
    assert!(matches!(
        damage,
        Damage::CutShort {
            have: 8,
            need: 0x0100_0000,
            ..
        }
    ));
    // The longest possible length is read.
    let mut long = file;
    block(&mut long, LITTLE, 99, &vec![1; (16 << 20) - 12]);
    enhanced(&mut long, LITTLE, 0, 0, 262_144, &vec![3; 262_144]);
    assert_eq!(read_whole(&long)[0].bytes.len(), 262_144);
}

#[test]
fn too_many_interfaces_are_refused() {
    let mut file = Vec::new();
    section(&mut file, LITTLE);
    let most = weir_link::pcap::INTERFACES_MAX;
    for _ in 0..most {
        interface(&mut file, LITTLE, 1, 0, &[]);
    }
    assert_eq!(read_whole(&file), []);
    let end = file.len() as u64;
    interface(&mut file, LITTLE, 1, 0, &[]);
    assert!(matches!(damage(read(&file).1), (offset, Damage::Interfaces(_)) if offset == end));
}

#[test]
fn the_first_interface_is_known_before_the_first_frame() {
    let open = |file: &[u8]| Reader::new(std::io::Cursor::new(file.to_vec()));
    let mut file = Vec::new();
    section(&mut file, Order::Big);
    // An empty section, without an interface.
    assert!(open(&file).unwrap().interfaces().is_empty());
    block(&mut file, Order::Big, 0xbad, &[1; 64]);
    section(&mut file, LITTLE);
    interface(&mut file, LITTLE, 101, 0, &[]);
    interface(&mut file, LITTLE, 1, 0, &[]);
    enhanced(&mut file, LITTLE, 1, 7, 3, b"eth");
    let mut reader = open(&file).unwrap();
    let linktypes: Vec<u32> = reader.interfaces().iter().map(|i| i.linktype.0).collect();
    assert_eq!(linktypes, [101]);
    assert_eq!(drain(&mut reader).0.len(), 1);
    assert_eq!(reader.interfaces().len(), 2);

    // A frame of an undescribed interface is damage.
    let mut file = Vec::new();
    section(&mut file, LITTLE);
    simple(&mut file, LITTLE, 3, b"eth");
    let mut reader = open(&file).unwrap();
    assert!(reader.interfaces().is_empty());
    assert!(matches!(
        damage(drain(&mut reader).1),
        (28, Damage::Interface { .. })
    ));
}

#[test]
fn a_missing_file_is_named() {
    let error = Reader::open("/nonexistent/x.pcap").unwrap_err().to_string();
    assert!(
        error.starts_with("cannot open /nonexistent/x.pcap: "),
        "{error}"
    );
    assert!(matches!(Reader::open("/"), Err(Error::Open { .. })));
}
