//! Programs that call sockets in ways of their own.

use super::*;

const NUMBERED: &str = include_str!("numbered.c");

/// What a program prints on the kernel's sockets, and with weir's own addresses of loopback.
fn on_both(kernel: &Bench, program: &[&str]) -> [String; 2] {
    let [kernels, weirs] = [&["--stack", "sys"][..], &["--stats", "--loopback"]].map(|options| {
        let ended = exec(kernel, options, program).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {ended:?}");
        if options.len() == 2 && options[0] == "--stats" {
            check_owner(&ended);
        }
        ended.stdout
    });
    [kernels, weirs]
}

/// libuv closes by syscall(2), and so does Node.js.
#[test]
fn calls_by_number_are_weirs() {
    let Some(kernel) = bench("exec-numbered", &["cc"]) else {
        return;
    };
    let source = kernel.folder.write("numbered.c", NUMBERED.as_bytes());
    let program = kernel.folder.path("numbered");
    kernel.run(&format!("cc -O1 -w -o {program} {source}"));
    let [kernels, weirs] = on_both(&kernel, &[&program, "127.0.0.1"]);
    assert!(
        kernels.contains("epoll_pwait 1\nend 0\nclose 0\nagain EBADF\n"),
        "{kernels}"
    );
    assert_eq!(kernels, weirs);
}
