//! Damaged captures: the frames before the damage are read, the error has the
//! offset, nothing panics, and memory and time stay bounded.

mod support;

use support::*;
use weir_lab::rng::Rng;
use weir_link::pcap::{Damage, Error, fuzz};

const LITTLE: Order = Order::Little;

/// A small pcap file, and the end of each of its frames.
fn small_pcap(order: Order) -> (Vec<u8>, Vec<usize>) {
    let mut file = pcap_header(order, NANO, (2, 4), 65535, 1);
    let mut ends = Vec::new();
    for len in [60u32, 0, 1, 33, 600] {
        pcap_frame(
            &mut file,
            order,
            (len, len),
            (len, len + 4),
            &vec![len as u8; len as usize],
        );
        ends.push(file.len());
    }
    (file, ends)
}

/// A small pcapng file, and the end of each record with the number of frames so
/// far.
fn small_pcapng(order: Order) -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut file = Vec::new();
    let mut ends = Vec::new();
    section(&mut file, order);
    ends.push((file.len(), 0));
    interface(
        &mut file,
        order,
        1,
        65535,
        &[option(order, 2, b"lan"), option(order, 9, &[9])],
    );
    ends.push((file.len(), 0));
    for (number, len) in [1usize, 60, 0, 33].into_iter().enumerate() {
        let bytes = vec![len as u8; len];
        match number {
            1 => obsolete(&mut file, order, 0, 5, 70, &bytes),
            3 => simple(&mut file, order, 33, &bytes),
            _ => enhanced(&mut file, order, 0, 6, 80, &bytes),
        }
        ends.push((file.len(), number + 1));
        block(&mut file, order, 5, &[0; 12]);
        ends.push((file.len(), number + 1));
    }
    (file, ends)
}

#[test]
fn pcap_cut_at_every_byte() {
    for order in [LITTLE, Order::Big] {
        let (file, ends) = small_pcap(order);
        let whole = read_whole(&file);
        for cut in 0..=file.len() {
            let (seen, error) = read(&file[..cut]);
            let frames = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(seen, whole[..frames], "cut at {cut}");
            let start = if cut < 24 {
                0
            } else {
                [24].iter()
                    .chain(&ends)
                    .copied()
                    .filter(|end| *end <= cut)
                    .max()
                    .unwrap()
            };
            if cut >= 24 && start == cut {
                assert!(error.is_none(), "cut at {cut}: {error:?}");
            } else {
                check_cut(error, cut, start);
            }
        }
    }
}

#[test]
fn pcapng_cut_at_every_byte() {
    for order in [LITTLE, Order::Big] {
        let (file, ends) = small_pcapng(order);
        let whole = read_whole(&file);
        assert_eq!(whole.len(), 4);
        for cut in 0..=file.len() {
            let (seen, error) = read(&file[..cut]);
            let (start, frames) = ends
                .iter()
                .copied()
                .filter(|(end, _)| *end <= cut)
                .max()
                .unwrap_or((0, 0));
            assert_eq!(seen, whole[..frames], "cut at {cut}");
            if start == cut && cut > 0 {
                assert!(error.is_none(), "cut at {cut}: {error:?}");
            } else {
                check_cut(error, cut, start);
            }
        }
    }
}

/// The error has the start of the truncated record, and the number of its bytes
/// present.
fn check_cut(error: Option<Error>, cut: usize, start: usize) {
    let Some(Error::Damaged {
        offset,
        damage: Damage::CutShort { have, need, region },
        ..
    }) = error
    else {
        panic!("cut at {cut}: {error:?}");
    };
    assert_eq!(offset, start as u64, "cut at {cut}");
    assert!(have < need, "cut at {cut}");
    let behind_header = if region == weir_link::pcap::Region::Frame {
        16
    } else {
        0
    };
    assert_eq!(have as usize + behind_header, cut - start, "cut at {cut}");
}

#[test]
fn packed_files_cut_at_every_byte_keep_what_unpacks() {
    let (file, _) = small_pcap(LITTLE);
    let whole = read_whole(&file);
    for packed in [gzip(&file), zstd(&file)] {
        let mut most = 0;
        for cut in 4..packed.len() {
            let (seen, error) = read(&packed[..cut]);
            assert!(whole.starts_with(&seen), "cut at {cut}");
            assert!(
                seen.len() >= most,
                "cut at {cut}: less than with fewer bytes"
            );
            most = seen.len();
            let Some(Error::Damaged {
                packing: Some(_),
                damage: Damage::Packed(_),
                ..
            }) = error
            else {
                panic!("cut at {cut}: {error:?}");
            };
        }
        // For gzip only the checksum is missing: all data was decompressed. A
        // zstd file this small is one block, complete or absent.
        let expected = if packed[0] == 0x1f { whole.len() } else { 0 };
        assert_eq!(most, expected);
    }
}

/// Blocks before a corrupt one are returned completely, even if one read call
/// meets both.
#[test]
fn corrupt_packed_data_keeps_what_came_before() {
    let mut file = pcap_header(LITTLE, MICRO, (2, 4), 0, 1);
    let mut rng = Rng::new(7);
    for _ in 0..3000 {
        let bytes: Vec<u8> = (0..300).map(|_| rng.bits() as u8).collect();
        pcap_frame(&mut file, LITTLE, (0, 0), (300, 300), &bytes);
    }
    let whole = read_whole(&file);
    for mut packed in [gzip(&file), zstd(&file)] {
        // Random bytes do not compress, so the middle of the file is the middle
        // of the data.
        let middle = packed.len() / 2;
        for byte in &mut packed[middle..middle + 200_000] {
            *byte = 0xff;
        }
        let (seen, error) = read(&packed);
        assert!(matches!(error, Some(Error::Damaged { .. })), "{error:?}");
        let packing = packed[0];
        assert!(
            seen.len() > whole.len() * 2 / 5,
            "{packing:x}: only {}",
            seen.len()
        );
        let same = seen.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        assert!(
            same > whole.len() * 2 / 5,
            "{packing:x}: only {same} are right"
        );
    }
}

#[test]
fn trailing_rubbish_behind_a_gzip_member_is_damage() {
    let (file, _) = small_pcap(LITTLE);
    let (seen, error) = read(&[gzip(&file), b"rubbish".to_vec()].concat());
    assert_eq!(seen.len(), 5);
    assert!(
        matches!(
            error,
            Some(Error::Damaged {
                damage: Damage::Packed(_),
                ..
            })
        ),
        "{error:?}"
    );
}

#[test]
fn random_corruption_never_panics() {
    let seeds = 0..4000;
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let order = if rng.chance(50) { LITTLE } else { Order::Big };
        let mut file = if rng.chance(50) {
            small_pcap(order).0
        } else {
            small_pcapng(order).0
        };
        let packing = rng.below(8);
        if packing == 1 {
            file = gzip(&file);
        } else if packing == 2 {
            file = zstd(&file);
        }
        for _ in 0..=rng.below(8) {
            let at = rng.below(file.len());
            match rng.below(4) {
                0 => file[at] = rng.bits() as u8,
                1 => file[at] ^= 1 << rng.below(8),
                2 => file[at] = [0, 0xff, 0x7f, 0x80][rng.below(4)],
                _ => file.truncate(at.max(1)),
            }
        }
        let caught = std::panic::catch_unwind(|| fuzz(&file));
        assert!(caught.is_ok(), "seed {seed}");
    }
}

#[test]
fn noise_behind_every_magic_never_panics() {
    let starts: [&[u8]; 6] = [
        &[0x1f, 0x8b, 8, 0],
        &[0x28, 0xb5, 0x2f, 0xfd],
        &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a],
        &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0],
        &[0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4],
        &[0x34, 0xcd, 0xb2, 0xa1, 2, 0, 4, 0],
    ];
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        for start in starts {
            let mut file = start.to_vec();
            let small = rng.chance(50);
            file.extend((0..rng.below(400)).map(|_| {
                if small {
                    rng.below(3) as u8
                } else {
                    rng.bits() as u8
                }
            }));
            let caught = std::panic::catch_unwind(|| fuzz(&file));
            assert!(caught.is_ok(), "seed {seed} {start:x?}");
        }
    }
}
