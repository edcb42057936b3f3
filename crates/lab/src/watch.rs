//! A time limit for every test that uses the lab.
//!
//! The lab's waits have limits of their own, with messages. This limit covers
//! all other waits, such as a read of a socket without a timeout: when a test
//! takes longer than [`LIMIT`], a thread ends the test process and prints the
//! test's name and where the kernel has its threads wait.
//!
//! `WEIR_TEST_LIMIT=seconds` sets another limit, 0 none. A test with more
//! random runs than usual has no limit; see [`seeds`](crate::seeds).

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a test. The longest takes two minutes on two cores that other
/// tests share.
const LIMIT: Duration = Duration::from_secs(900);

/// Polling interval of the limit.
const INTERVAL: Duration = Duration::from_secs(1);

/// The running tests, by the id of their thread.
static TESTS: Mutex<Option<HashMap<u32, Test>>> = Mutex::new(None);

struct Test {
    name: String,
    /// Start of the thread, in ticks since boot, to distinguish a later thread
    /// with the same id.
    thread_start: Option<u64>,
    began: Instant,
}

/// Starts the limit of the calling test, at its first call. The main thread
/// belongs to no test.
pub(crate) fn this_test() {
    let thread = thread::current();
    let Some(name) = thread.name().filter(|name| *name != "main") else {
        return;
    };
    let id = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs();
    let thread_start = thread_start(id);
    let mut tests = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let tests = tests.get_or_insert_default();
    let known = tests.get(&id);
    if known.is_some_and(|test| test.name == name && test.thread_start == thread_start) {
        return;
    }
    let test = Test {
        name: name.to_owned(),
        thread_start,
        began: Instant::now(),
    };
    tests.insert(id, test);
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        if let Some(limit) = limit() {
            thread::spawn(move || watch(limit));
        }
    });
}

fn limit() -> Option<Duration> {
    let said = std::env::var("WEIR_TEST_LIMIT").ok();
    let asked_for_more = ["WEIR_SECONDS", "WEIR_RUNS"];
    let said = said.map(|text| {
        text.parse()
            .expect("WEIR_TEST_LIMIT is a number of seconds")
    });
    match said {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None if asked_for_more
            .map(std::env::var_os)
            .iter()
            .any(Option::is_some) =>
        {
            None
        }
        None => Some(LIMIT),
    }
}

fn watch(limit: Duration) {
    loop {
        thread::sleep(INTERVAL);
        let mut tests = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = tests.get_or_insert_default();
        tests.retain(|id, test| test.thread_start == thread_start(*id));
        if let Some((id, test)) = tests.iter().find(|(_, test)| test.began.elapsed() > limit) {
            let mut text = format!("\n{}: not over within {limit:?}\n", test.name);
            let _ = write!(text, "its thread {}", waits(*id));
            for other in threads().into_iter().filter(|other| other != id) {
                let _ = write!(text, "thread {other} {}", waits(other));
            }
            crate::testenv::write_stderr(&text);
            std::process::abort();
        }
    }
}

fn threads() -> Vec<u32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// A thread's name, and where it waits in the kernel.
fn waits(id: u32) -> String {
    let read = |what: &str| {
        let text = fs::read_to_string(format!("/proc/self/task/{id}/{what}"));
        text.unwrap_or_default().trim().to_owned()
    };
    format!(
        "({}) is in `{}` of the kernel, system call {}\n",
        read("comm"),
        read("wchan"),
        read("syscall")
    )
}

/// Start of a thread of this process; `None` if it does not exist. See
/// proc_pid_stat(5).
fn thread_start(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    // The name, in parentheses, may contain blanks; the start time is field 22.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
