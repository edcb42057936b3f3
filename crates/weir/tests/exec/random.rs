//! Random calls on random descriptors return what the kernel's do.

use crate::{Bench, bench, check_owner, exec};
use std::collections::BTreeMap;
use weir_lab::seeds::seeds;

const SCRIPT: &str = include_str!("random_calls.py");
const CALLS: &str = "150";
/// Runs of one process.
const RUNS: u64 = 10;
/// Milliseconds that packets have after each call. A difference counts if it is there with all of these.
const SETTLES: [&str; 3] = ["2", "20", "80"];

/// What the runs from a seed on print, by seed.
fn runs(
    kernel: &Bench,
    stack: &[&str],
    first: u64,
    count: u64,
    settle: &str,
) -> BTreeMap<u64, Vec<String>> {
    let script = kernel.folder.path("random_calls.py");
    let (first, count) = (first.to_string(), count.to_string());
    let program = ["python3", &script, &first, &count, CALLS, settle];
    let ended = exec(kernel, &[&["--stats"], stack].concat(), &program).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    if stack == ["--loopback"] {
        check_owner(&ended);
    }
    let mut runs: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut seed = None;
    for line in ended.stdout.lines() {
        if let Some(number) = line.strip_prefix("seed ") {
            seed = Some(number.parse().unwrap());
        } else if let Some(seed) = seed {
            runs.entry(seed).or_default().push(line.to_owned());
        }
    }
    assert_eq!(runs.len().to_string(), count, "{ended:?}");
    runs
}

/// The lines before the first difference between the kernel and weir, and the two that differ.
fn difference(kernels: &[String], weirs: &[String]) -> Option<String> {
    let lines = kernels.len().max(weirs.len());
    let at = (0..lines).find(|at| kernels.get(*at) != weirs.get(*at))?;
    let before = &kernels[..at];
    let of = |lines: &[String]| lines.get(at).cloned().unwrap_or_default();
    let (before, kernel, weir) = (before.join("\n"), of(kernels), of(weirs));
    Some(format!("{before}\nkernel: {kernel}\nweir:   {weir}"))
}

fn differs(kernel: &Bench, first: u64, count: u64, settle: &str) -> Vec<(u64, String)> {
    let kernels = runs(kernel, &["--stack", "sys"], first, count, settle);
    let weirs = runs(kernel, &["--loopback"], first, count, settle);
    let pairs = kernels.iter().zip(weirs.values());
    let differ = pairs.filter_map(|((seed, kernels), weirs)| {
        difference(kernels, weirs).map(|difference| (*seed, difference))
    });
    differ.collect()
}

#[test]
fn random_calls_return_what_the_kernels_return() {
    let Some(kernel) = bench("exec-random", &["python3"]) else {
        return;
    };
    kernel.folder.write("random_calls.py", SCRIPT.as_bytes());
    let mut seeds = seeds(20).peekable();
    while let Some(first) = seeds.next() {
        let mut count = 1;
        while count < RUNS && seeds.next_if_eq(&(first + count)).is_some() {
            count += 1;
        }
        for (seed, mut found) in differs(&kernel, first, count, SETTLES[0]) {
            let remains = SETTLES[1..].iter().all(|settle| {
                let again = differs(&kernel, seed, 1, settle);
                let found_again = again.into_iter().next();
                found_again.is_some_and(|(_, again)| {
                    found = again;
                    true
                })
            });
            assert!(!remains, "WEIR_SEED={seed}:\n{found}");
        }
    }
}
