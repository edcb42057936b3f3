//! Cancelled threads end as on the kernel's sockets, and hold nothing then.

use crate::{KERNEL, OURS, PEER, bench, check_owner, exec};

const SOURCE: &str = include_str!("cancel.c");

#[test]
fn cancelled_threads_end_as_on_the_kernels_sockets() {
    let Some(kernel) = bench("exec-cancel", &["python3", "cc"]) else {
        return;
    };
    let source = kernel.folder.write("cancel.c", SOURCE.as_bytes());
    let program = kernel.folder.path("cancel");
    kernel.run(&format!("cc -O1 -pthread -o {program} {source}"));
    let peer = kernel.folder.write("peer.py", PEER.as_bytes());
    let _peer = kernel.server(&format!("python3 {peer}"), 7);
    let at = KERNEL[0];
    let native = exec(&kernel, &["--stack", "sys"], &[&program, at, at, "7"]).end();
    assert_eq!(native.code, Some(0), "{native:?}");
    let native = native.stdout;
    assert!(native.contains("alone: poll: cancelled, 1 cleaned, echoes"));
    let ended = exec(&kernel, &["--stats"], &[&program, OURS[0], at, "7"]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let pairs = native.lines().zip(ended.stdout.lines());
    let differ: Vec<_> = pairs.filter(|(native, weirs)| native != weirs).collect();
    assert!(differ.is_empty(), "(kernel, weir): {differ:#?}");
    assert_eq!(native.lines().count(), ended.stdout.lines().count());
    check_owner(&ended);
}
