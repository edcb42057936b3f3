//! The files and messages of `weir demux` and `weir filter --run` when an input
//! is refused or an operation fails midway.

mod common;

use common::{Folder, capture, frame, interface, interrupt, section, stdout, until_read, weir};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Output, Stdio};
use weir_lab::command::Resource;
use weir_link::pcap::Reader;
use weir_wire::LinkType;

const ETHERNET: u16 = 1;
const RAW: u16 = 101;
const TOKEN_RING: u16 = 6;

fn stderr(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

fn json(run: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(run)).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn demux(file: &str, more: &[&str]) -> Output {
    weir(["demux", "--json", "-r", file])
        .args(more)
        .output()
        .unwrap()
}

#[test]
fn a_refused_filter_leaves_the_old_files() {
    let folder = Folder::new("keep-old");
    let out = folder.path("out");
    fs::create_dir(&out).unwrap();
    fs::write(format!("{out}/a.pcapng"), b"precious").unwrap();
    let frames = [section(), interface(ETHERNET), frame(0, 14, 53)].concat();
    for (name, bytes) in [
        ("a.pcapng", frames),
        (
            "no-frames.pcapng",
            [section(), interface(ETHERNET)].concat(),
        ),
        ("nothing.pcapng", section()),
        ("a.pcap", capture(&[53])),
    ] {
        let file = folder.write(name, &bytes);
        let run = demux(&file, &["-p", "a=udp prot 53", "-w", &out]);
        assert_eq!(run.status.code(), Some(2), "{name}: {run:?}");
        assert!(stderr(&run).contains("`a`"), "{name}: {run:?}");
        assert!(run.stdout.is_empty(), "{name}: {run:?}");
        let kept = fs::read(format!("{out}/a.pcapng")).unwrap();
        assert_eq!(kept, b"precious", "{name}");
        let run = weir(["filter", "udp prot 53", "--run", &file]).output();
        assert_eq!(run.unwrap().status.code(), Some(2), "{name}");
    }
}

#[test]
fn files_are_emptied_only_when_all_can_be_opened() {
    let folder = Folder::new("all-or-none");
    let out = folder.path("out");
    // A folder has the path of the second port's file.
    fs::create_dir_all(format!("{out}/b.pcapng")).unwrap();
    fs::write(format!("{out}/a.pcapng"), b"precious").unwrap();
    let file = folder.write("in.pcap", &capture(&[53]));
    let run = demux(&file, &["-p", "a=udp", "-p", "b=tcp", "-w", &out]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(stderr(&run).contains("b.pcapng"), "{run:?}");
    assert_eq!(
        fs::read(format!("{out}/a.pcapng")).unwrap(),
        b"precious",
        "{run:?}"
    );
}

#[test]
fn an_input_is_known_by_any_name() {
    let folder = Folder::new("links");
    let bytes = capture(&[53]);
    let file = folder.write("in.pcap", &bytes);
    fs::hard_link(&file, folder.path("a.pcapng")).unwrap();
    symlink(&file, folder.path("b.pcapng")).unwrap();
    for port in ["a=udp", "b=udp"] {
        let run = demux(&file, &["-p", port, "-w", &folder.path("")]);
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(stderr(&run).contains("is being read"), "{run:?}");
        let run = weir(["demux", "-r", "-", "-p", port, "-w", &folder.path("")])
            .stdin(fs::File::open(&file).unwrap())
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

#[test]
fn no_output_becomes_an_input() {
    let folder = Folder::new("own-output");
    let file = folder.write("in.pcap", &capture(&[53]));
    let out = folder.path("out");
    fs::create_dir(&out).unwrap();
    let dangling = folder.path("dangling");
    symlink(format!("{out}/a.pcapng"), &dangling).unwrap();
    for input in [format!("{out}/a.pcapng"), dangling] {
        let run = weir([])
            // Reading the growing file would never end.
            .limit(Resource::Fsize, 2000 * 512)
            .args(["demux", "-r", &file, "-r", &input, "-p", "a=", "-w", &out])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        assert!(stderr(&run).contains("cannot open"), "{run:?}");
        assert!(run.stdout.is_empty() && !folder.has("out/a.pcapng"));
    }
}

#[test]
fn two_ports_never_share_a_file() {
    let folder = Folder::new("shared");
    let file = folder.write("in.pcap", &capture(&[53]));
    folder.write("a.pcapng", b"precious");
    symlink(folder.path("a.pcapng"), folder.path("b.pcapng")).unwrap();
    let run = demux(
        &file,
        &["-p", "a=udp", "-p", "b=tcp", "-w", &folder.path("")],
    );
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(stderr(&run).contains("port `a`"), "{run:?}");
    assert_eq!(fs::read(folder.path("a.pcapng")).unwrap(), b"precious");
}

#[test]
fn a_file_without_frames_still_has_a_link_type() {
    let folder = Folder::new("empty-port");
    let file = folder.write(
        "in.pcapng",
        &[section(), interface(RAW), frame(0, 0, 53)].concat(),
    );
    let out = folder.path("out");
    let run = demux(&file, &["-p", "none=tcp", "-w", &out]);
    assert!(run.status.success(), "{run:?}");
    let reader = Reader::open(format!("{out}/none.pcapng")).unwrap();
    let linktypes: Vec<_> = reader.interfaces().iter().map(|i| i.linktype).collect();
    assert_eq!(linktypes, [LinkType::RAW]);
}

#[test]
fn a_later_link_type_that_refuses_a_filter_loses_nothing() {
    let folder = Folder::new("later-refusal");
    let bytes = [
        section(),
        interface(ETHERNET),
        frame(0, 14, 53),
        interface(TOKEN_RING),
        frame(1, 14, 53),
        frame(0, 14, 53),
        interface(RAW),
        frame(2, 0, 53),
    ]
    .concat();
    let file = folder.write("in.pcapng", &bytes);
    let out = folder.path("out");
    let more = ["-p", "dns=udp port 53", "-p", "rest=", "-w", &out];
    let run = demux(&file, &more);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let counted = json(&run);
    assert_eq!(counted["frames"], 4, "{counted}");
    assert_eq!(counted["ports"][0]["frames"], 3, "{counted}");
    assert_eq!(counted["ports"][1]["frames"], 1, "{counted}");
    let said = counted["error"].as_str().unwrap();
    assert!(said.contains("1 frame of link type"), "{said}");
    assert!(said.contains("port `dns`"), "{said}");
    for (port, frames) in [("dns", 3), ("rest", 1)] {
        let written = format!("{out}/{port}.pcapng");
        let run = weir(["filter", "", "--json", "--run", &written])
            .output()
            .unwrap();
        assert_eq!(json(&run)["frames"], frames, "{port}: {run:?}");
    }

    let run = weir(["filter", "udp port 53", "--json", "--run", &file])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let counted = json(&run);
    assert_eq!(
        (&counted["frames"], &counted["accepted"]),
        (&4.into(), &3.into())
    );
    let said = counted["error"].as_str().unwrap();
    assert!(said.contains("1 frame of link type"), "{said}");
    assert!(stderr(&run).contains("1 frame of link type"), "{run:?}");
}

/// A capture with a frame of each of that many link types, the first of which
/// is Ethernet, and another Ethernet frame.
fn of_link_types(count: u16) -> Vec<u8> {
    let mut bytes = section();
    for number in 0..count {
        let linktype = if number == 0 {
            ETHERNET
        } else {
            0x4000 + number
        };
        bytes.extend(interface(linktype));
        bytes.extend(frame(number.into(), 14, 53));
    }
    bytes.extend(frame(0, 14, 53));
    bytes
}

#[test]
fn no_file_has_filters_compiled_for_every_link_type_there_is() {
    let folder = Folder::new("link-types");
    let file = folder.write("in.pcapng", &of_link_types(1000));
    let run = demux(&file, &["-p", "dns=udp port 53", "-p", "all="]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let counted = json(&run);
    assert_eq!(counted["frames"], 1001, "{run:?}");
    assert_eq!(counted["ports"][0]["frames"], 2, "{run:?}");
    // 64 link types have a plan; frames of others go to no port.
    assert_eq!(counted["ports"][1]["frames"], 63, "{run:?}");
    assert_eq!(counted["default"]["frames"], 936, "{run:?}");
    let said = counted["error"].as_str().unwrap();
    assert!(said.contains("936 frames of other link types"), "{said}");

    let run = weir(["filter", "len > 0", "--json", "--run", &file]).output();
    let run = run.unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let counted = json(&run);
    assert_eq!(counted["accepted"], 65, "{counted}");
    let said = counted["error"].as_str().unwrap();
    assert!(said.contains("936 frames of other link types"), "{said}");
}

#[test]
fn a_signal_gives_the_status_whatever_else_went_wrong() {
    let folder = Folder::new("signal-amid");
    let bytes = [of_link_types(1), interface(TOKEN_RING), frame(1, 14, 53)].concat();
    let out = folder.path("out");
    for (arguments, json_begins) in [
        (
            &[
                "demux",
                "--json",
                "-r",
                "-",
                "-p",
                "dns=udp port 53",
                "-w",
                &out,
            ][..],
            "{\"frames\":3,\"ports\":[{\"name\":\"dns\",\"frames\":2,",
        ),
        (
            &["filter", "--json", "udp port 53", "--run", "-"],
            "{\"frames\":3,\"accepted\":2,",
        ),
    ] {
        let mut child = weir([])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&bytes).unwrap();
        // Waits until the process has read them and waits for more.
        until_read(&stdin);
        interrupt(&child);
        let run = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(run.status.code(), Some(130), "{run:?}");
        assert!(stdout(&run).starts_with(json_begins), "{run:?}");
        let said = json(&run)["error"].as_str().unwrap().to_owned();
        for said in [said, stderr(&run)] {
            assert!(said.contains("1 frame of link type"), "{said}");
            assert!(said.contains("stopped by SIGINT"), "{said}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named_in_the_report() {
    let folder = Folder::new("full");
    // Few frames fail when the file is completed, many while it is written.
    for frames in [3, 5000] {
        let file = folder.write("in.pcap", &capture(&vec![53; frames]));
        let out = folder.path(&format!("out-{frames}"));
        fs::create_dir(&out).unwrap();
        symlink("/dev/full", format!("{out}/dns.pcapng")).unwrap();
        let more = ["-p", "dns=udp", "-p", "copy=", "--copy", "copy", "-w", &out];
        let run = demux(&file, &more);
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        let counted = json(&run);
        let read = counted["frames"].as_u64().unwrap();
        assert!(read > 0, "{counted}");
        assert_eq!(counted["ports"][0]["frames"], read, "{counted}");
        assert!(
            counted["error"].as_str().unwrap().contains("dns.pcapng"),
            "{counted}"
        );
        let errors = stderr(&run);
        assert_eq!(errors.matches("dns.pcapng").count(), 1, "{errors}");
        // The other port's file is complete.
        let kept = weir([
            "filter",
            "",
            "--json",
            "--run",
            &format!("{out}/copy.pcapng"),
        ])
        .output()
        .unwrap();
        assert_eq!(json(&kept)["frames"], read, "{kept:?}");
        let table = weir(["demux", "-r", &file]).args(more).output().unwrap();
        assert!(stdout(&table).contains("(all)"), "{table:?}");
        assert_eq!(table.status.code(), Some(1));
    }
}

#[test]
fn a_limit_on_file_size_is_reported_too() {
    let folder = Folder::new("fsize");
    let file = folder.write("in.pcap", &capture(&vec![53; 5000]));
    let out = folder.path("out");
    let run = weir([])
        .limit(Resource::Fsize, 300 * 512)
        .args(["demux", "--json", "-r", &file, "-p", "dns=udp", "-w", &out])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let counted = json(&run);
    assert!(counted["frames"].as_u64().unwrap() > 1000, "{counted}");
    assert!(stderr(&run).contains("dns.pcapng"), "{run:?}");
    // The frames written form a valid capture: each frame takes 96 bytes.
    let kept = weir([
        "filter",
        "",
        "--json",
        "--run",
        &format!("{out}/dns.pcapng"),
    ])
    .output()
    .unwrap();
    assert_eq!(kept.status.code(), Some(0), "{kept:?}");
    let kept = json(&kept)["frames"].as_u64().unwrap();
    assert!(kept > 1500 && kept < 1600, "{kept}");
}

#[test]
fn more_ports_than_open_files_are_refused_beforehand() {
    let folder = Folder::new("nofile");
    let file = folder.write("in.pcap", &capture(&[53]));
    let ports: String = (0..300)
        .map(|port| format!("[[port]]\nname = 'p{port}'\nfilter = 'udp port {port}'\n"))
        .collect();
    let config = folder.write("ports.toml", ports.as_bytes());
    let out = folder.path("out");
    for (limit, code) in [("hard", 1), ("soft", 0)] {
        let mut command = weir([]);
        match limit {
            "hard" => command.limit(Resource::Nofile, 100),
            _ => command.soft_limit(Resource::Nofile, 100),
        };
        let run = command
            .args(["demux", "-r", &file, "-c", &config, "-w", &out])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(code), "{limit}: {run:?}");
        assert_eq!(folder.has("out"), code == 0, "{limit}: {run:?}");
        assert_eq!(stderr(&run).contains("ulimit"), code == 1, "{run:?}");
    }
}

#[test]
fn damage_counts_more_than_a_closed_output() {
    let folder = Folder::new("closed");
    let mut bytes = capture(&[53, 53]);
    bytes.truncate(bytes.len() - 1);
    let file = folder.write("a.pcap", &bytes);
    for arguments in [
        &["demux", "-r", &file, "-p", "dns=udp"][..],
        &["filter", "udp", "--run", &file],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = weir([]).args(arguments).stdout(writer).output().unwrap();
        assert_eq!(run.status.code(), Some(1), "{arguments:?}: {run:?}");
    }
}

#[test]
fn endless_files_of_filters_are_refused() {
    let folder = Folder::new("endless");
    let file = folder.write("a.pcap", &capture(&[53]));
    for arguments in [
        &["filter", "-F", "/dev/zero"][..],
        &["filter", "--lang", "cbpf", "/dev/zero"],
        &["filter", "--lang", "cspf", "/dev/zero"],
        &["demux", "-r", &file, "--config", "/dev/zero"],
    ] {
        let run = weir([]).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {run:?}");
        let errors = stderr(&run);
        assert!(
            errors.contains("/dev/zero") && errors.contains("longer than"),
            "{arguments:?}: {errors}"
        );
    }
}

#[test]
fn a_folder_that_is_a_file_is_named() {
    let folder = Folder::new("no-folder");
    let file = folder.write("in.pcap", &capture(&[53]));
    let run = demux(&file, &["-p", "a=udp", "-w", &file]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(stderr(&run).contains("is not a folder"), "{run:?}");
}

#[test]
fn of_several_captures_none_is_passed_over_in_silence() {
    let folder = Folder::new("several");
    let mut bytes = capture(&[53, 53]);
    let whole = folder.write("whole.pcap", &bytes);
    bytes.truncate(bytes.len() - 1);
    let torn = folder.write("torn.pcap", &bytes);
    let run = demux(&whole, &["-r", &torn, "-r", &whole, "-p", "dns=udp"]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert_eq!(json(&run)["frames"], 3, "{run:?}");
    let errors = stderr(&run);
    assert!(errors.contains("torn.pcap: at byte 104"), "{errors}");
    assert!(errors.contains("1 file after it not read"), "{errors}");

    // A missing input is reported before anything is read or written.
    let out = folder.path("out");
    let missing = folder.path("missing.pcap");
    let run = demux(&whole, &["-r", &missing, "-p", "dns=udp", "-w", &out]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(stderr(&run).contains("missing.pcap"), "{run:?}");
    assert!(run.stdout.is_empty() && !folder.has("out"), "{run:?}");
}
