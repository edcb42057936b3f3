//! The memory of a shared link: frames of all lengths, full rings, and a process that writes anything.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use weir_lab::rng::Rng;
use weir_ring::SharedLink;
use weir_ring::frame_ring::FRAME_LEN_MAX;
use weir_ring::shared_link::{FILE_BYTES, RING_BYTES, STATIONS_MAX};

fn memory() -> OwnedFd {
    memfd_create("link", MemfdFlags::CLOEXEC).unwrap()
}

/// Bytes that show where they belong.
fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 13) as u8).collect()
}

#[test]
fn frames_of_all_lengths_arrive_in_order_over_the_end_of_the_ring() {
    let file = memory();
    let link = SharedLink::map(file.as_fd()).unwrap();
    let (mut to, mut from) = (link.producers(3), link.consumers(5));
    let (mut rng, mut taken, mut out) = (Rng::new(7), 0, vec![0; FRAME_LEN_MAX]);
    let mut waiting = std::collections::VecDeque::new();
    for number in 0.. {
        let len = match number % 3 {
            0 => rng.below(100),
            1 => rng.below(1515),
            _ => rng.below(FRAME_LEN_MAX + 1),
        };
        let sent = frame(number, len);
        let (head, rest) = sent.split_at(len / 3);
        while !to[5].put(&[head, rest]) {
            to[5].submit();
            let expected: Vec<u8> = waiting.pop_front().expect("a full ring has frames");
            let len = from[3].peek().unwrap();
            from[3].read(0, &mut out[..len]);
            from[3].take(len);
            assert!(out[..len] == expected, "frame of {len} bytes");
            taken += 1;
        }
        waiting.push_back(sent);
        if taken > 500 {
            break;
        }
    }
    assert!(
        from.iter_mut()
            .enumerate()
            .all(|(at, ring)| at == 3 || ring.peek().is_none())
    );
}

#[test]
fn a_full_ring_takes_nothing_and_says_when_there_is_room() {
    let file = memory();
    let link = SharedLink::map(file.as_fd()).unwrap();
    let (mut to, mut from) = (link.producers(0), link.consumers(1));
    let sent = frame(1, 4088);
    let count = RING_BYTES / 4096;
    assert!((0..count).all(|_| to[1].put(&[&sent])));
    assert!(!to[1].put(&[]) && to[1].wait_for_room(0));
    assert!(from[0].peek().is_none(), "it is not published");
    assert!(!to[1].submit(), "nothing sleeps");
    assert!(!to[1].put(&[&[0; FRAME_LEN_MAX + 1]]));
    let len = from[0].peek().unwrap();
    from[0].take(len);
    assert!(from[0].has_taken() && !from[0].has_taken(), "once");
    assert!(!to[1].wait_for_room(4088) && to[1].put(&[&sent]));
}

#[test]
fn a_new_process_at_a_place_begins_without_the_old_ones_frames() {
    let file = memory();
    let link = SharedLink::map(file.as_fd()).unwrap();
    let (mut to, first) = (link.producers(0), link.consumers(1));
    assert!(to[1].put(&[b"old"]));
    to[1].submit();
    drop(first);
    let mut second = SharedLink::map(file.as_fd()).unwrap().consumers(1);
    assert!(second[0].peek().is_none());
    assert!(to[1].put(&[b"new"]));
    to[1].submit();
    assert_eq!(second[0].peek(), Some(3));
    // And the new sender at a place goes on where the old one was.
    let mut to = link.producers(0);
    assert!(to[1].put(&[b"newer"]));
    to[1].submit();
    second[0].take(3);
    assert_eq!(second[0].peek(), Some(5));
}

#[test]
fn a_file_of_another_length_or_layout_is_refused() {
    let file = memory();
    ftruncate(&file, FILE_BYTES as u64 - 4096).unwrap();
    assert!(SharedLink::map(file.as_fd()).is_err());
    let file = memory();
    rustix::io::pwrite(&file, &[1], 0).unwrap();
    ftruncate(&file, FILE_BYTES as u64).unwrap();
    assert!(SharedLink::map(file.as_fd()).is_err());
}

/// Such a position is no frame: the receiver sleeps although it is there.
#[test]
fn a_position_between_words_is_no_frame() {
    let file = memory();
    let link = SharedLink::map(file.as_fd()).unwrap();
    let mut from = link.consumers(1);
    rustix::io::pwrite(&file, &[1], 4096 + STATIONS_MAX as u64 * 128).unwrap();
    assert!(from[0].peek().is_none());
    assert!(weir_ring::frame_ring::arm(&from));
}

/// Without memory of its own, the last write of a frame could end the process.
#[test]
fn a_ring_gets_all_its_memory_at_once() {
    let file = memory();
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks * 512;
    let link = SharedLink::map(file.as_fd()).unwrap();
    let before = blocks();
    assert!(before >= 36_864, "{before}");
    link.allocate(2, 1).unwrap();
    let allocated = blocks();
    assert!(allocated >= before + RING_BYTES as i64, "{allocated}");
    link.allocate(2, 1).unwrap();
    let mut to = link.producers(2);
    while to[1].put(&[&[7; 60_000]]) {}
    assert_eq!(blocks(), allocated);
}

/// Writes a word over the words of some rings, the first frames of one, or anywhere.
fn write_anything(file: &OwnedFd, rng: &mut Rng) {
    let at = match rng.below(4) {
        0 | 1 => 4096 + STATIONS_MAX * 128 + rng.below(64) * 8,
        2 => 36_864 + STATIONS_MAX * RING_BYTES + rng.below(1024) * 8,
        _ => rng.below(FILE_BYTES / 8) * 8,
    };
    let word = match rng.below(4) {
        0 => rng.bits(),
        1 => rng.below(1 << 20) as u64,
        2 => rng.below(1 << 20) as u64 * 8,
        _ => u64::MAX - rng.below(1 << 17) as u64,
    };
    rustix::io::pwrite(file, &word.to_ne_bytes(), at as u64).unwrap();
}

/// Whatever is written, the sides neither panic nor read or write elsewhere, and go on with frames once
/// the writing ends.
#[test]
fn a_process_that_writes_anything_harms_nothing_but_frames() {
    let file = memory();
    let link = SharedLink::map(file.as_fd()).unwrap();
    let (mut to, mut from) = (link.producers(0), link.consumers(1));
    let (mut rng, mut out, mut emptied) = (Rng::new(1), vec![0; FRAME_LEN_MAX], 0);
    for _ in 0..200_000 {
        let len = rng.below(2000);
        to[1].put(&[&out[..len]]);
        to[1].submit();
        to[1].wait_for_room(len);
        if rng.below(2) == 0 {
            write_anything(&file, &mut rng);
        }
        if rng.below(2) == 0 {
            while from[0].is_ready() {
                let Some(len) = from[0].peek() else {
                    emptied += 1;
                    break;
                };
                from[0].read(0, &mut out[..len]);
                from[0].take(len);
            }
        }
        from[0].has_taken();
        weir_ring::frame_ring::arm(&from);
    }
    assert!(emptied > 0, "the test did nothing");
    // Both sides state their positions again.
    let sent = frame(5, 1000);
    let mut arrived = false;
    for _ in 0..4 {
        weir_ring::frame_ring::arm(&from);
        to[1].put(&[&sent]);
        to[1].submit();
        while let Some(len) = from[0].peek() {
            from[0].read(0, &mut out[..len]);
            from[0].take(len);
            arrived |= out[..len] == sent;
        }
    }
    assert!(arrived);
}
