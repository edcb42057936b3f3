//! Epoll sets report the same of weir's connections as of the kernel's.

use crate::{bench, check_owner, exec};

const SCRIPT: &str = include_str!("sets.py");

#[test]
fn epoll_sets_report_what_the_kernels_report() {
    let Some(kernel) = bench("exec-sets", &["python3"]) else {
        return;
    };
    let script = kernel.folder.write("sets.py", SCRIPT.as_bytes());
    let run = |stack: &[&str]| {
        let ended = exec(
            &kernel,
            &[&["--stats"], stack].concat(),
            &["python3", &script],
        )
        .end();
        assert_eq!(ended.code, Some(0), "{stack:?}: {ended:?}");
        ended
    };
    let native = run(&["--stack", "sys"]);
    let weirs = run(&["--loopback"]);
    check_owner(&weirs);
    let pairs = native.stdout.lines().zip(weirs.stdout.lines());
    let differ: Vec<_> = pairs.filter(|(native, weirs)| native != weirs).collect();
    assert!(differ.is_empty(), "(kernel, weir): {differ:#?}");
    assert_eq!(native.stdout.lines().count(), weirs.stdout.lines().count());
    assert!(
        native.stdout.contains("forks, sent again: one IN"),
        "{native:?}"
    );
}
