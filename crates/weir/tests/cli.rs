//! The binary as a user runs it: what it prints, writes and returns.

mod common;

use common::{Folder, capture, stdout, weir};
use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::command::Resource;

#[test]
fn demux_counts_ports_and_the_rest() {
    let folder = Folder::new("demux-counts");
    let file = folder.write("a.pcap", &capture(&[53, 53, 80, 99]));
    let run = weir(["demux", "--json", "-r", &file])
        .args(["--port", "dns=udp port 53", "--port", "web=udp port 80"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    assert_eq!(
        stdout(&run),
        "{\"frames\":4,\"ports\":[{\"name\":\"dns\",\"frames\":2,\"bytes\":128},\
         {\"name\":\"web\",\"frames\":1,\"bytes\":64}],\"default\":{\"frames\":1,\"bytes\":64}}\n"
    );
}

#[test]
fn a_copy_takes_nothing_away() {
    let folder = Folder::new("copy");
    let file = folder.write("a.pcap", &capture(&[53, 80]));
    let ports = ["--port", "all=", "--port", "dns=port 53"];
    let taking = weir(["demux", "--json", "-r", &file])
        .args(ports)
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&taking)).unwrap();
    assert_eq!(json["ports"][0]["frames"], 2);
    assert_eq!(json["ports"][1]["frames"], 0);
    assert_eq!(json["default"]["frames"], 0);

    let copying = weir(["demux", "--json", "--copy", "all", "-r", &file])
        .args(ports)
        .output();
    let json: serde_json::Value = serde_json::from_str(&stdout(&copying.unwrap())).unwrap();
    assert_eq!(json["ports"][0]["frames"], 2);
    assert_eq!(json["ports"][1]["frames"], 1);
    assert_eq!(
        json["default"]["frames"], 1,
        "a copy does not end a frame's way"
    );
}

#[test]
fn a_higher_priority_is_tried_first() {
    let folder = Folder::new("priority");
    let file = folder.write("a.pcap", &capture(&[53]));
    let config = folder.write(
        "ports.toml",
        b"[[port]]\nname = 'low'\nfilter = 'udp'\n[[port]]\nname = 'high'\nfilter = 'port 53'\npriority = 7\n",
    );
    let run = weir(["demux", "--json", "-r", &file, "--config", &config])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(
        (&json["ports"][0]["frames"], &json["ports"][1]["frames"]),
        (&0.into(), &1.into())
    );
    let raised = weir(["demux", "--json", "-r", &file, "--config", &config])
        .args(["--priority", "low=8"])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&raised)).unwrap();
    assert_eq!(json["ports"][0]["frames"], 1);
}

#[test]
fn each_port_gets_a_file_of_its_own() {
    let folder = Folder::new("files");
    let file = folder.write("a.pcap", &capture(&[53, 80, 53]));
    let out = folder.path("out");
    let run = weir(["demux", "-q", "-r", &file, "-w", &out])
        .args(["-p", "dns=port 53", "-p", "none=tcp"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    for (port, frames) in [("dns", 2), ("none", 0)] {
        let written = format!("{out}/{port}.pcapng");
        let run = weir(["filter", "", "--json", "--run", &written])
            .output()
            .unwrap();
        let expected = format!("{{\"frames\":{frames},\"accepted\":{frames}}}\n");
        assert_eq!(stdout(&run), expected, "{port}: {run:?}");
    }
}

#[test]
fn an_input_is_never_overwritten() {
    let folder = Folder::new("overwrite");
    let bytes = capture(&[53]);
    let file = folder.write("dns.pcapng", &bytes);
    let run = weir([
        "demux",
        "-r",
        &file,
        "-p",
        "dns=udp",
        "-w",
        &folder.path(""),
    ])
    .output()
    .unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(
        String::from_utf8_lossy(&run.stderr).contains("is being read"),
        "{run:?}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

#[test]
fn a_damaged_file_is_reported_as_far_as_it_goes() {
    let folder = Folder::new("damage");
    let mut bytes = capture(&[53, 53, 80]);
    bytes.truncate(bytes.len() - 1);
    let file = folder.write("a.pcap", &bytes);
    let out = folder.path("out");
    let run = weir([
        "demux",
        "--json",
        "-r",
        &file,
        "-p",
        "dns=port 53",
        "-w",
        &out,
    ])
    .output()
    .unwrap();
    assert_eq!(run.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(
        (&json["frames"], &json["ports"][0]["frames"]),
        (&2.into(), &2.into())
    );
    let offset = (24 + 2 * 80).to_string();
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        errors.contains(&offset) && errors.contains("a.pcap"),
        "{errors}"
    );
    let written = format!("{out}/dns.pcapng");
    let kept = weir(["filter", "", "--json", "--run", &written])
        .output()
        .unwrap();
    assert_eq!(stdout(&kept), "{\"frames\":2,\"accepted\":2}\n");
    let filtered = weir(["filter", "udp", "--json", "--run", &file])
        .output()
        .unwrap();
    assert_eq!(filtered.status.code(), Some(1));
    let counts: serde_json::Value = serde_json::from_str(&stdout(&filtered)).unwrap();
    assert_eq!(
        (&counts["frames"], &counts["accepted"]),
        (&2.into(), &2.into())
    );
    let said = counts["error"].as_str().unwrap();
    assert!(
        said.contains("a.pcap: at byte") && said.contains(&offset),
        "{said}"
    );
}

#[test]
fn standard_input_is_a_file_too() {
    let mut child = weir(["demux", "--json", "-r", "-", "-p", "dns=port 53"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&capture(&[53, 80]))
        .unwrap();
    let run = child.wait_with_output().unwrap();
    assert!(stdout(&run).starts_with("{\"frames\":2,\"ports\":[{\"name\":\"dns\",\"frames\":1,"));
}

/// `weir listen -r` is `tcpdump -r`: the same filter, lines, count, snap length and file.
#[test]
fn listen_reads_captures() {
    let folder = Folder::new("listen-r");
    let file = folder.write("a.pcapng", &capture(&[53, 80, 53, 99, 53]));
    let run = |args: &[&str]| {
        let mut command = weir(["listen", "-r", &file]);
        command.args(args).output().unwrap()
    };
    let all = stdout(&run(&["-t"]));
    assert_eq!(all.lines().count(), 6, "{all}");
    assert!(all.ends_with("\n5 frames, 320 bytes\n"), "{all}");
    assert!(!all.contains("In "), "no direction is known: {all}");
    let dns = stdout(&run(&["udp", "port", "53", "-c", "2", "--json"]));
    let lines: Vec<serde_json::Value> = dns
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((lines.len(), &lines[2]["frames"]), (3, &2.into()), "{dns}");
    for (name, magic) in [("b.pcap", 0xa1b2_3c4d_u32), ("b.pcapng", 0x0a0d_0d0a)] {
        let out = folder.path(name);
        let written = run(&["port 53", "-s", "40", "-w", &out]);
        assert_eq!(written.status.code(), Some(0), "{written:?}");
        let bytes = std::fs::read(&out).unwrap();
        assert_eq!(bytes[..4], magic.to_le_bytes(), "{name}");
        let again = stdout(&weir(["listen", "-r", &out, "--json"]).output().unwrap());
        let first: serde_json::Value = serde_json::from_str(again.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&first["len"], &first["captured"]),
            (&64.into(), &40.into())
        );
        assert_eq!(again.lines().count(), 4, "{again}");
    }
    for (args, said) in [
        (&["-w", &file][..], "is being read"),
        (&["no such filter"], "no such"),
        (&["--take"], "--take"),
        (&["-i", "eth0"], "--interface"),
    ] {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(errors.contains(said), "{errors}");
    }
    let gone = folder.path("none.pcap");
    let missing = weir(["listen", "-r", &gone]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}

#[test]
fn a_signal_ends_it_with_a_report() {
    let folder = Folder::new("signal");
    let out = folder.path("out");
    let mut child = weir([
        "demux",
        "--json",
        "-r",
        "-",
        "-p",
        "dns=port 53",
        "-w",
        &out,
    ])
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&capture(&[53, 53])).unwrap();
    stdin.flush().unwrap();
    // The port's file is created after the input's header was read.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !folder.has("out/dns.pcapng") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Waits until the process waits for more input.
    common::until_read(&stdin);
    common::interrupt(&child);
    let run = child.wait_with_output().unwrap();
    assert_eq!(run.status.code(), Some(130), "{run:?}");
    assert!(stdout(&run).starts_with("{\"frames\":2,"), "{run:?}");
    assert!(stdout(&run).contains("stopped by SIGINT"), "{run:?}");
    drop(stdin);
    let written = format!("{out}/dns.pcapng");
    let kept = weir(["filter", "", "--json", "--run", &written])
        .output()
        .unwrap();
    assert_eq!(stdout(&kept), "{\"frames\":2,\"accepted\":2}\n");
}

#[test]
fn a_signal_ends_waiting_for_a_pipe_with_a_name() {
    let folder = Folder::new("fifo");
    let fifo = folder.path("fifo");
    common::make_fifo(&fifo);
    // No process has opened the other end; then one has, and writes no more.
    for (frames, bytes) in [(0, None), (2, Some(capture(&[53, 53])))] {
        let mut child = weir(["filter", "udp", "--json", "--run", &fifo])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let writer = bytes.map(|bytes| {
            let mut writer = File::options().write(true).open(&fifo).unwrap();
            writer.write_all(&bytes).unwrap();
            writer
        });
        match &writer {
            Some(writer) => common::until_read(writer),
            None => std::thread::sleep(Duration::from_millis(300)),
        }
        common::interrupt(&child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it waits on");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(writer);
        let run = child.wait_with_output().unwrap();
        assert_eq!(run.status.code(), Some(130), "{run:?}");
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(errors.contains("stopped by SIGINT"), "{errors}");
        assert_eq!(
            stdout(&run),
            format!(
                "{{\"frames\":{frames},\"accepted\":{frames},\"error\":\"stopped by SIGINT\"}}\n"
            )
        );
    }
}

/// The report has no reader, and the pipe has no room for it.
#[test]
fn a_later_signal_ends_what_does_not_end_by_itself() {
    let folder = Folder::new("stuck");
    let fifo = folder.path("fifo");
    common::make_fifo(&fifo);
    let (_reader, mut writer) = std::io::pipe().unwrap();
    let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![0; room]).unwrap();
    let mut child = weir(["filter", "udp", "--json", "--run", &fifo])
        .stdout(writer)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        common::interrupt(&child);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it stays");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn the_status_is_right_even_if_nothing_can_be_said() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let folder = Folder::new("mute");
    let file = folder.write("a.pcap", &capture(&[53]));
    for (arguments, status) in [
        (&["filter", "tcp prot 80"][..], 2),
        (&["filter", "tcp", "--run", "/none"], 1),
        (&["demux", "-r", &file, "-p", "a=udp", "--explain"], 0),
    ] {
        let run = weir([]).args(arguments).stderr(full()).output().unwrap();
        assert_eq!(run.status.code(), Some(status), "{arguments:?}: {run:?}");
    }
}

#[test]
fn requests_that_mean_nothing_are_refused_with_a_remedy() {
    let folder = Folder::new("refused");
    let file = folder.write("a.pcap", &capture(&[53]));
    let config = folder.write("bad.toml", b"[[port]]\nname = 'a'\nfiltre = 'udp'\n");
    let filters = "[[port]]\nname = 'a'\nfilter = 'tcp'\n\n[[port]]\nname = 'b'\nfilter = 'upd'\n";
    let filters = folder.write("filters.toml", filters.as_bytes());
    for (arguments, fault) in [
        (vec!["-p", "a"], "no `=`"),
        (vec!["-p", "a=udp", "-p", "a=tcp"], "given twice"),
        (vec!["-p", "a/b=udp"], "only letters, digits"),
        (vec!["-p", "a=upd"], "udp"),
        (vec!["-p", "a=udp", "--copy", "b"], "no port has this name"),
        (vec!["-p", "a=udp", "--priority", "a=99999"], "0 to 65535"),
        (vec!["-p", "a=udp", "--lang", "lua"], "expr, cbpf and cspf"),
        (
            vec!["--config", &config],
            "bad.toml:3:1: unknown field `filtre`",
        ),
        (
            vec!["--config", &filters],
            "filters.toml:5: port `b`: `upd` is no test",
        ),
        (vec!["-p", "a=outbound"], "such as `ether src ADDR` with"),
        (vec!["--config", &file], "TOML"),
        (vec!["--config", "/dev/null"], "/dev/null: it has no ports"),
        (vec![], "no ports"),
    ] {
        let run = weir(["demux", "-r", &file])
            .args(&arguments)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(fault), "{arguments:?}: {errors}");
        assert!(run.stdout.is_empty(), "{arguments:?}");
    }
}

/// Every kind of file: the message names it, and the exit status is that for a
/// file.
#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = Folder::new("unread");
    let capture = folder.write("in.pcap", b"");
    let here = folder.path("");
    let missing = folder.path("none");
    for file in [&here, &missing] {
        for arguments in [
            &["demux", "-r", &capture, "-c", file][..],
            &["filter", "--lang", "cspf", "-F", file],
            &["broker", "--config", file],
            &["rarpd", "lo", "--table", file],
            &["route", "--config", file],
        ] {
            let run = weir([]).args(arguments).output().unwrap();
            let errors = String::from_utf8_lossy(&run.stderr).into_owned();
            assert_eq!(run.status.code(), Some(1), "{arguments:?}: {errors}");
            assert!(
                errors.contains(&format!("cannot read {file}: ")),
                "{arguments:?}: {errors}"
            );
        }
    }
}

#[test]
fn a_missing_file_is_named_and_a_damaged_one_reported() {
    let folder = Folder::new("missing");
    let garbage = folder.write("garbage", b"GET / HTTP/1.1");
    let empty = folder.write("empty", b"");
    let missing = folder.path("none.pcap");
    let here = folder.path("");
    let (demux_nothing, filter_nothing) = (
        "{\"frames\":0,\"ports\":[",
        "{\"frames\":0,\"accepted\":0,\"error\":\"",
    );
    for (file, fault, demuxed, filtered) in [
        (&missing, "No such file", "", ""),
        (&here, "is a directory", "", ""),
        (&empty, "the file is empty", demux_nothing, filter_nothing),
        (&garbage, "47 45 54 20", demux_nothing, filter_nothing),
    ] {
        for (run, report) in [
            (
                weir(["demux", "--json", "-r", file, "-p", "a=udp"]),
                demuxed,
            ),
            (weir(["filter", "udp", "--json", "--run", file]), filtered),
        ] {
            let run = { run }.output().unwrap();
            assert_eq!(run.status.code(), Some(1), "{run:?}");
            let errors = String::from_utf8_lossy(&run.stderr).into_owned();
            assert!(errors.contains(file.as_str()), "{run:?}");
            assert!(errors.contains(fault), "{run:?}");
            let out = stdout(&run);
            assert!(out.starts_with(report), "{run:?}");
            assert_eq!(out.is_empty(), report.is_empty(), "{run:?}");
        }
    }
}

#[test]
fn a_file_of_an_expression_may_hold_comments() {
    let folder = Folder::new("comments");
    let file = folder.write("f", b"udp # not tcp\nport 53 # dns\n#");
    let commented = weir(["filter", "--as", "cbpf", "-F", &file]).output();
    let plain = weir(["filter", "--as", "cbpf", "udp port 53"]).output();
    assert_eq!(stdout(&commented.unwrap()), stdout(&plain.unwrap()));
}

#[test]
fn a_file_of_a_filter_that_is_refused_is_named() {
    let folder = Folder::new("filter-named");
    let jpeg = folder.write("a.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF\0");
    let expression = folder.write("f", b"upd");
    let capture = folder.write("a.pcap", &capture(&[53]));
    for arguments in [
        &["-F", &jpeg][..],
        &["--lang", "cbpf", &jpeg],
        &["--lang", "cspf", &jpeg],
        &["-F", &expression],
        &["-F", &expression, "--run", &capture],
    ] {
        let run = weir(["filter"]).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        let file = arguments.iter().find(|word| word.starts_with('/')).unwrap();
        assert!(errors.starts_with(&format!("weir: {file}: ")), "{errors}");
    }
}

#[test]
fn a_filter_may_come_through_a_pipe_with_a_name() {
    let decimal = weir(["filter", "udp", "--as", "cbpf"]).output().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&decimal.stdout).unwrap();
    drop(writer);
    // As a shell's <(…) does.
    let again = weir(["filter", "--lang", "cbpf", "/dev/stdin", "--as", "cbpf"])
        .stdin(reader)
        .output()
        .unwrap();
    assert_eq!(stdout(&again), stdout(&decimal), "{again:?}");
}

#[test]
fn messages_do_not_drive_the_terminal() {
    for (arguments, status) in [
        (["filter", "tcp\u{1b}[31m port"], 2),
        (["filter", "-F/none\u{1b}[31m"], 1),
    ] {
        let run = weir([]).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(status), "{run:?}");
        assert!(!run.stderr.contains(&0x1b), "{run:?}");
    }
}

#[test]
fn filter_compiles_or_refuses() {
    for filter in ["tcp port 80", "", "not (udp or icmp)"] {
        let run = weir(["filter", filter]).output().unwrap();
        assert_eq!(run.status.code(), Some(0), "{filter}: {run:?}");
    }
    for (arguments, fault) in [
        (vec!["tcp prot 80"], "did you mean `port`"),
        (vec!["tcp port 80", "--linktype", "token"], "EN10MB"),
        (vec!["tcp port 80", "--linktype", "147"], "147"),
        (vec!["--lang", "cbpf", "1,2,3"], ""),
        (vec!["--lang", "cspf", "PUSHWURD+1"], ""),
        (vec!["--lang", "cspf", "no-such-file.enet"], "no such file"),
        (vec!["--lang", "cspf"], "no filter"),
    ] {
        let run = weir(["filter"]).args(&arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(
            errors.contains(fault) && !errors.trim().is_empty(),
            "{arguments:?}: {errors}"
        );
        assert!(run.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn filter_prints_every_form() {
    for form in [
        "ir", "ir-plain", "cbpf", "cbpf-d", "cbpf-dd", "ebpf", "x86-64", "aarch64", "cspf", "dot",
    ] {
        let run = weir(["filter", "tcp[tcpflags] & tcp-syn != 0", "--as", form])
            .output()
            .unwrap();
        assert!(
            run.status.success() && !run.stdout.is_empty(),
            "{form}: {run:?}"
        );
    }
    let decimal = weir(["filter", "ip", "--as", "cbpf"]).output().unwrap();
    assert_eq!(
        stdout(&decimal),
        "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n"
    );
}

#[test]
fn a_program_read_back_counts_the_same() {
    let folder = Folder::new("read-back");
    let file = folder.write("a.pcap", &capture(&[53, 80, 53]));
    let decimal = weir(["filter", "udp port 53", "--as", "cbpf"])
        .output()
        .unwrap();
    let program = folder.write("dns.bpf", &decimal.stdout);
    let run = weir([
        "filter", "--lang", "cbpf", &program, "--json", "--run", &file,
    ])
    .output();
    assert_eq!(stdout(&run.unwrap()), "{\"frames\":3,\"accepted\":2}\n");
}

/// A soft limit that can be raised, and one that cannot.
#[test]
fn little_stack_is_enough() {
    const BYTES: u64 = 64 << 10;
    for arguments in [&["demo", "-n", "100"][..], &["filter", "tcp"], &["--help"]] {
        let soft = weir([])
            .args(arguments)
            .soft_limit(Resource::Stack, BYTES)
            .output();
        let hard = weir([])
            .args(arguments)
            .limit(Resource::Stack, BYTES)
            .output();
        for run in [soft.unwrap(), hard.unwrap()] {
            assert!(run.status.success(), "{arguments:?}: {run:?}");
        }
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = weir(["filter", "tcp"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.ended(weir_lab::command::LIMIT).unwrap().success());
}

#[test]
fn the_demo_agrees_with_itself() {
    let run = weir(["demo", "--json", "-n", "2000"]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let json: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(json["verdicts_differ"], 0);
    assert_eq!(json["sent"], 2000);
    for port in json["ports"].as_array().unwrap() {
        assert!(port["frames"].as_u64().unwrap() > 0, "{port}");
    }
}

#[test]
fn the_demo_writes_captures_to_try_weir_on() {
    let folder = Folder::new("demo-captures");
    let out = folder.path("captures");
    let run = weir(["demo", "--json", "-n", "2000", "-w", &out])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let told: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
    for (name, linktype, filter, at_least) in [
        ("office.pcapng", "EN10MB", "tcp port 80 or 443", 100),
        ("pup.pcapng", "EN3MB", "", 1000),
    ] {
        let file = format!("{out}/{name}");
        let reader = weir_link::pcap::Reader::open(&file).unwrap();
        assert_eq!(reader.interfaces()[0].linktype.to_string(), linktype);
        let run = weir(["filter", filter, "--json", "--run", &file]).output();
        let counts: serde_json::Value = serde_json::from_str(&stdout(&run.unwrap())).unwrap();
        assert!(counts["accepted"].as_u64() >= Some(at_least), "{counts}");
        if linktype == "EN10MB" {
            assert_eq!(counts["frames"], told["frames"]);
        }
    }
    let run = weir(["demo", "-n", "100", "-w", &out]).output().unwrap();
    let told = stdout(&run);
    assert!(
        told.contains(&format!("Written: {out}/office.pcapng")),
        "{told}"
    );
}

#[test]
fn a_demo_that_finds_no_room_leaves_a_whole_capture() {
    let folder = Folder::new("demo-full");
    let out = folder.path("out");
    let run = weir([])
        .limit(Resource::Fsize, 100 * 512)
        .args(["demo", "-n", "2000", "-w", &out])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        errors.contains("office.pcapng: ") && errors.contains("it ends there"),
        "{errors}"
    );
    let file = format!("{out}/office.pcapng");
    let kept = weir(["filter", "", "--json", "--run", &file])
        .output()
        .unwrap();
    assert_eq!(kept.status.code(), Some(0), "{kept:?}");
}

/// A file that cannot be written is a failure, not an invalid option, in every
/// command.
#[test]
fn statistics_that_cannot_be_written_are_a_failure() {
    for command in ["bridge", "route"] {
        let run = weir([command, "a", "b", "--stats-json", "/nowhere/stats.json"])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.contains("cannot write /nowhere/stats.json"), "{said}");
        let run = weir([command, "a", "b", "--stats-json", "/"]).output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.contains("name a file in it"), "{said}");
        assert_eq!(run.status.code(), Some(1), "{said}");
    }
}

/// Help that cannot be written is a failure; a closed reader is not.
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for arguments in [&["--help"][..], &["--version"], &["listen", "--help"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = weir([]);
        command.args(arguments).stdout(Stdio::from(full));
        let run = command.output().unwrap();
        assert_eq!(run.status.code(), Some(1), "{arguments:?}: {run:?}");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.contains("cannot write to standard output"), "{said}");
    }
}
