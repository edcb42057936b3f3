//! The interpreter runs if the system refuses memory for native code.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_filter::backend::Runner;
use weir_filter::backend::native::{ARENA_BYTES, Arch, NativeError};
use weir_filter::ir::Program;
use weir_lab::command::Command;

/// Environment variable with the test to run in a child, which has its own limits.
const CHILD: &str = "WEIR_TEST_CHILD";

/// Runs test `name` again in a child process; returns whether this is the child.
fn in_child(name: &str) -> bool {
    if std::env::var(CHILD).is_ok_and(|wanted| wanted == name) {
        return true;
    }
    let child = Command::itself()
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, name)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}: {errors}", child.status);
    false
}

fn limit(resource: Resource, bytes: u64) {
    let maximum = getrlimit(resource).maximum;
    let current = Some(bytes);
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

#[test]
fn a_limit_on_file_sizes_is_no_signal() {
    if Arch::host().is_none() || !in_child("a_limit_on_file_sizes_is_no_signal") {
        return;
    }
    let most = ARENA_BYTES as u64 - 1;
    limit(Resource::Fsize, most);
    let runner = Runner::new(Program::constant(5));
    let expected = NativeError::FileLimit {
        limit: most,
        wanted: ARENA_BYTES,
    };
    assert_eq!(runner.why_interpreted(), Some(&expected));
    assert!(expected.to_string().contains("ulimit -f"), "{expected}");
    assert_eq!(runner.run(&[], 0), 5);
    // With a sufficient limit there is native code.
    limit(Resource::Fsize, most + 1);
    let runner = Runner::new(Program::constant(6));
    assert_eq!(runner.why_interpreted(), None);
    assert_eq!(runner.run(&[], 0), 6);
}

#[test]
fn a_limit_on_memory_is_an_error() {
    if Arch::host().is_none() || !in_child("a_limit_on_memory_is_an_error") {
        return;
    }
    // An emulator has mappings of its own, and may ignore the limit.
    if cfg!(target_arch = "aarch64") {
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let used: u64 = used
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    // The first mapping fits, the second does not.
    limit(Resource::As, (used << 10) + ARENA_BYTES as u64 * 3 / 2);
    let runner = Runner::new(Program::constant(5));
    let why = runner.why_interpreted();
    assert!(matches!(why, Some(NativeError::Memory(_))), "{why:?}");
    assert_eq!(runner.run(&[], 0), 5);
    limit(Resource::As, (used << 10) + ARENA_BYTES as u64 * 3);
    let runner = Runner::new(Program::constant(6));
    assert_eq!(runner.why_interpreted(), None);
}

/// A program with more live values than native code supports.
fn wide_program() -> Program {
    use std::fmt::Write as _;
    const COUNT: usize = 1_200;
    let mut text = String::from("filter {\nb0:\n");
    for value in 0..COUNT {
        let _ = writeln!(text, "  v{value} = load.1 [{}]", value % 40);
    }
    let mut sum = 0;
    for (name, value) in (COUNT..).zip((1..COUNT).rev()) {
        let _ = writeln!(text, "  v{name} = add v{sum}, v{value}");
        sum = name;
    }
    let _ = writeln!(text, "  ret v{sum}\n}}");
    text.parse().unwrap()
}

#[test]
fn the_interpreter_stands_in_for_native_code_in_many_threads() {
    let program = wide_program();
    let runner = Runner::new(program.clone());
    assert!(runner.why_interpreted().is_some());
    let frames: Vec<Vec<u8>> = (0..60).map(|n| vec![n; usize::from(n)]).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for frame in frames.iter().cycle().take(600) {
                    let expected = if frame.len() < 40 {
                        0
                    } else {
                        1_200 * u32::from(frame[0])
                    };
                    assert_eq!(runner.run(frame, 0), expected);
                }
            });
        }
    });
}
