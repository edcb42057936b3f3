//! Tests of the arena, and of its behaviour after `fork(2)`.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn arena(len: usize) -> Arena {
    Arena::new(len).unwrap()
}

fn bytes(span: &Span) -> &[u8] {
    // SAFETY: installed code is initialised memory of this length.
    unsafe { std::slice::from_raw_parts(span.start.as_ptr(), span.len) }
}

#[test]
fn programs_lie_packed_on_lines_of_their_own_and_keep_their_bytes() {
    let mut arena = arena(1 << 16);
    let codes: Vec<Vec<u8>> = (1..200_u8).map(|n| vec![n; usize::from(n)]).collect();
    let spans: Vec<Span> = codes
        .iter()
        .map(|code| arena.install(code).unwrap())
        .collect();
    for (code, span) in codes.iter().zip(&spans) {
        assert_eq!(bytes(span), code);
        assert_eq!(span.start.addr().get() % GRANULE, 0);
    }
    let granules: u32 = codes.iter().map(|code| granules(code.len())).sum();
    assert_eq!(arena.free.used(), granules);
    for span in spans {
        arena.free(&span);
    }
    assert_eq!(arena.free.used(), 0);
}

#[test]
fn freed_memory_traps_and_is_used_again() {
    let mut arena = arena(1 << 16);
    let first = arena.install(&[1; 100]).unwrap();
    let start = first.start;
    arena.free(&first);
    // SAFETY: inside the arena's mapping.
    let rest = || unsafe { std::slice::from_raw_parts(start.as_ptr(), 128) };
    assert_eq!(rest(), [TRAP; 128]);
    let second = arena.install(&[2; 65]).unwrap();
    assert_eq!(bytes(&second), [2; 65]);
    if arena.reuses {
        assert_eq!(second.start, start);
        assert_eq!(rest()[65..], [TRAP; 63]);
    }
}

#[test]
fn where_cores_cannot_be_synchronised_no_memory_is_used_twice() {
    let mut arena = arena(1 << 16);
    arena.reuses = true;
    arena.sync_cores = || true;
    let spans = [1, 2, 3].map(|n| arena.install(&[n; 100]).unwrap());
    let starts = spans.each_ref().map(|span| span.start);
    let [first, second, third] = spans;
    arena.free(&first);
    arena.free(&third);
    arena.sync_cores = || false;
    let fourth = arena.install(&[4; 100]).unwrap();
    assert!(!arena.reuses);
    assert!(!starts.contains(&fourth.start));
    assert_eq!(bytes(&fourth), [4; 100]);
    // Neither memory free before nor memory freed later is reused.
    arena.free(&second);
    let fifth = arena.install(&[5; 10]).unwrap();
    assert!(fifth.start > fourth.start);
    assert_eq!(arena.free.used(), 3);
    arena.free(&fourth);
    arena.free(&fifth);
    assert_eq!(arena.free.used(), 0);
}

#[test]
fn code_that_replaces_code_is_synchronised() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mut arena = arena(1 << 16);
    arena.reuses = true;
    arena.sync_cores = || {
        CALLS.fetch_add(1, Ordering::Relaxed);
        true
    };
    let span = arena.install(&[1; 10]).unwrap();
    let fresh = usize::from(icache::FRESH_TOO);
    assert_eq!(CALLS.load(Ordering::Relaxed), fresh);
    arena.free(&span);
    arena.install(&[2; 10]).unwrap();
    assert_eq!(CALLS.load(Ordering::Relaxed), fresh + 1);
}

#[test]
fn pages_are_there_before_they_are_written() {
    let mut arena = arena(16 * RESERVE_BYTES);
    let resident = |arena: &Arena| {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let row = format!("{:x}-", arena.write.addr());
        let part = maps.split_once(&row).unwrap().1;
        let rss = part.split_once("Rss:").unwrap().1.trim_start();
        rss.split_once(' ').unwrap().0.parse::<usize>().unwrap() << 10
    };
    assert_eq!(resident(&arena), 0);
    for (count, end) in [(10, 1), (RESERVE_BYTES, 2), (5 * RESERVE_BYTES, 7)] {
        arena.install(&vec![1; count]).unwrap();
        assert_eq!(arena.reserved, end * RESERVE_BYTES);
        // An emulator may not know the advice that allocates pages.
        let is_emulated = cfg!(target_arch = "aarch64");
        assert!(is_emulated || resident(&arena) >= arena.reserved);
    }
}

/// Runs `child` in a process made by fork(2); returns whether `child` returned true.
fn forked(child: impl FnOnce() -> bool) -> bool {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    // No thread may hold the lock at that moment.
    let guard = lock();
    // SAFETY: the child calls nothing that another thread might have
    // locked: it does not panic, and glibc's fork takes care of `malloc`.
    let process = unsafe { fork() };
    drop(guard);
    assert!(process >= 0, "fork failed");
    if process == 0 {
        let status = i32::from(!child());
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { _exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for a write.
    let waited = unsafe { waitpid(process, &raw mut status, 0) };
    waited == process && status == 0
}

#[test]
fn a_child_leaves_the_memory_of_its_parent_alone() {
    use crate::backend::native::Code;

    let Ok(code) = Code::compile(&Program::constant(7)) else {
        return;
    };
    let bytes_of = |code: &Code| bytes(&code.memory.0).to_vec();
    let before = bytes_of(&code);
    let mut code = Some(code);
    let child = forked(|| {
        let own = Code::compile(&Program::constant(8));
        let runs = code.as_ref().is_some_and(|code| code.run(&[], 0) == 7);
        let start = own.as_ref().map(|own| own.memory.start());
        let apart = start.ok() != code.as_ref().map(|code| code.memory.start());
        // This must not overwrite the parent's code.
        drop(code.take());
        let own = own.is_ok_and(|own| own.run(&[], 0) == 8);
        let is_own = lock().as_ref().is_some_and(|arena| arena.owner.is_here());
        runs && apart && own && is_own
    });
    assert!(child);
    let code = code.expect("only the child dropped its copy");
    assert_eq!(bytes_of(&code), before);
    assert_eq!(code.run(&[], 0), 7);
}

#[test]
fn a_child_is_not_the_owner_and_a_thread_is() {
    let owner = ForkGuard::new().unwrap();
    assert!(owner.is_here());
    assert!(forked(|| !owner.is_here()));
    assert!(owner.is_here());
    let thread = std::thread::spawn(move || owner.is_here());
    assert!(thread.join().unwrap());
}

#[test]
fn a_full_arena_says_so_and_recovers() {
    let mut arena = arena(1 << 12);
    let mut spans: Vec<Span> = (0..64)
        .map(|n| arena.install(&[n; GRANULE]).unwrap())
        .collect();
    let error = arena.install(&[0]).unwrap_err();
    assert!(error.to_string().contains("4096"), "{error}");
    arena.free(&spans.swap_remove(17));
    let span = arena.install(&[9; GRANULE]).unwrap();
    assert_eq!(bytes(&span), [9; GRANULE]);
    spans.push(span);
    for span in spans {
        arena.free(&span);
    }
    assert!(arena.install(&[0; 1 << 12]).is_ok());
}

#[test]
fn no_mapping_of_the_arena_is_writable_and_executable() {
    let arena = arena(1 << 16);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for (start, want) in [(arena.write, "rw-s"), (arena.run, "r-xs")] {
        let row = format!("{:x}-", start.addr());
        let line = maps.lines().find(|line| line.starts_with(&row));
        let access = line.and_then(|line| line.split(' ').nth(1));
        assert_eq!(access, Some(want), "{maps}");
    }
}
