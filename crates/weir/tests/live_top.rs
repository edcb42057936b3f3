//! `weir top` on a live link, and in a real terminal, that of tmux.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, capture, stdout};
use live::{Broker, Net, Running, WAIT_MAX, net, open_folder};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::Output;
use std::time::Instant;
use weir_lab::net::Signal;
use weir_lab::testenv;
use weir_lab::wait;
use weir_link::pcap::Reader;

/// Waits until a quiet command has its port.
fn has_port(net: &Net, command: &Running) {
    let pid = u64::from(command.id());
    wait::until("its port", || {
        let ports = net.weir(&["ports", "--json"]).end().json();
        let mut ports = ports.as_array().unwrap().iter();
        ports.any(|port| port["pid"].as_u64() == Some(pid))
    });
}

#[test]
fn live_counts_equal_those_of_listen_beside_it() {
    let Some(net) = net() else { return };
    let filter = "udp dst port 53";
    let top = net.weir(&["top", "eth0", filter, "--json"]);
    has_port(&net, &top);
    // Quiet, since its output is read only at its end.
    let listen = net.weir(&[
        "listen", "eth0", filter, "--count", "500", "--json", "--quiet",
    ]);
    has_port(&net, &listen);
    net.send(54, 100);
    net.send(53, 500);
    let listen = listen.end();
    top.signal(Signal::INT);
    let top = top.end();
    assert_eq!(top.code, Some(130), "{top:?}");
    let (listen, last) = (listen.json(), top.json());
    for member in ["frames", "bytes", "lost"] {
        assert_eq!(last[member], listen[member], "{member}: {top:?}");
    }
    let conversation = &last["conversations"][0];
    assert_eq!(
        conversation["a_to_b"]["frames"].as_u64().unwrap()
            + conversation["b_to_a"]["frames"].as_u64().unwrap(),
        500
    );
    let own = last["ports"]
        .as_array()
        .unwrap()
        .iter()
        .any(|port| port["filter"] == filter);
    assert!(own, "its own port is listed: {top:?}");
}

#[test]
fn what_waits_in_the_queue_at_the_end_is_counted() {
    let Some(net) = net() else { return };
    let top = net.weir(&["top", "eth0", "udp dst port 53", "--json"]);
    has_port(&net, &top);
    // More than a batch comes while it is stopped, and the end is what it hears of first.
    top.signal_at_once(Signal::STOP);
    net.send(53, 2_000);
    top.signal(Signal::INT);
    top.signal_at_once(Signal::CONT);
    let ended = top.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let last = ended.json();
    assert_eq!((&last["frames"], &last["lost"]), (&2_000.into(), &0.into()));
}

#[test]
fn a_process_is_found_by_its_socket() {
    let Some(net) = net() else { return };
    let _server = net.server(53);
    let top = net.weir(&["top", "eth0", "udp", "--json"]);
    has_port(&net, &top);
    let later = ["listen", "eth0", "udp", "--count", "20"];
    let later = net.weir(&later).until("weir: port");
    net.send(53, 20);
    later.end();
    // It takes what waits in its queue, and looks at processes, before its last line.
    top.signal(Signal::INT);
    let ended = top.end();
    let processes = ended.json()["processes"].clone();
    let own = u64::from(std::process::id());
    let found = processes
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["pid"].as_u64() == Some(own));
    let found = found.unwrap_or_else(|| panic!("no process {own}: {ended:?}"));
    assert_eq!(found["frames"], 20, "{ended:?}");
}

/// Reads lines of JSON until one satisfies the test; returns it.
fn until_line(out: &mut impl BufRead, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    let mut last = String::new();
    loop {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let value: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("no {what}: {error}: {line} after {last}"));
        if is_it(&value) {
            return value;
        }
        assert!(began.elapsed() < WAIT_MAX, "no {what}: {line}");
        last = line;
    }
}

/// The number of frames in a capture that is whole.
fn recorded(path: &str) -> u64 {
    let mut reader = Reader::open(path).unwrap();
    let mut frames = 0;
    while reader.next_frame().unwrap().is_some() {
        frames += 1;
    }
    frames
}

/// What is wrong by a line of JSON.
fn troubles(line: &Value) -> Vec<&str> {
    let troubles = line["troubles"].as_array();
    let troubles = troubles.into_iter().flatten();
    troubles.map(|trouble| trouble.as_str().unwrap()).collect()
}

#[test]
fn a_broker_that_restarts_is_said_and_no_frame_is_lost() {
    let Some(net) = net() else { return };
    let folder = open_folder("top-broker");
    let mut broker = Broker::start(&net, &folder);
    let (socket, file) = (folder.path("socket"), folder.path("rec.pcapng"));
    let arguments = ["top", "eth0", "udp dst port 53", "--json", "-w", &file];
    let arguments = [&arguments[..], &["--socket", &socket]].concat();
    let mut top = net.weir_as_nobody(&arguments);
    let mut out = BufReader::new(top.take_stdout());
    until_line(&mut out, "port", |line| {
        line["ports"][0]["filter"] == "udp dst port 53"
    });
    net.send(53, 100);
    until_line(&mut out, "100 frames", |line| line["frames"] == 100);
    broker.kill();
    let orphan = |line: &Value| troubles(line) == ["no broker runs"];
    let line = until_line(&mut out, "word of the broker's end", orphan);
    assert_eq!(line["frames"], 100, "{line}");
    net.send(53, 100);
    let line = until_line(&mut out, "200 frames", |line| line["frames"] == 200);
    assert!(orphan(&line), "{line}");
    broker.start_again();
    let is_back = |line: &Value| troubles(line).is_empty() && line["ports"].is_array();
    until_line(&mut out, "word of the next broker", is_back);
    net.send(53, 100);
    let line = until_line(&mut out, "300 frames", |line| line["frames"] == 300);
    assert_eq!(line["lost"], 0, "{line}");
    top.signal(Signal::INT);
    out.read_to_string(&mut String::new()).unwrap();
    let ended = top.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    for words in [
        "the broker has ended; frames continue",
        "there is a broker again",
    ] {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
    assert_eq!(recorded(&file), 300);
}

#[test]
fn an_interface_that_vanishes_ends_a_recording_that_is_whole() {
    let Some(net) = net() else { return };
    let folder = open_folder("top-vanishes");
    let file = folder.path("rec.pcapng");
    let top = net.weir(&["top", "eth0", "udp dst port 53", "--json", "-w", &file]);
    has_port(&net, &top);
    net.send(53, 500);
    net.eth_b.clone().delete().unwrap();
    let ended = top.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("interface eth0 is gone"), "{ended:?}");
    let last = ended.json();
    assert_eq!(troubles(&last), ["interface eth0 is gone"], "{ended:?}");
    assert_eq!((&last["frames"], &last["lost"]), (&500.into(), &0.into()));
    assert_eq!(recorded(&file), 500);
}

/// On the screen, which stays.
#[test]
fn the_screen_says_that_the_broker_or_the_interface_is_gone() {
    let Some(net) = net() else { return };
    let folder = open_folder("top-gone-screen");
    let mut broker = Broker::start(&net, &folder);
    let file = folder.path("rec.pcapng");
    let (weir, socket) = (binary(), folder.path("socket"));
    let command = format!("{weir} top eth0 'udp dst port 53' --socket {socket} -w {file}");
    let Some(tmux) = net.b.run(|| Tmux::start(&folder, (120, 24), &command)) else {
        return;
    };
    tmux.until("weir top eth0");
    net.send(53, 7);
    tmux.until("7 frames");
    broker.kill();
    let screen = tmux.until("no broker runs");
    assert!(screen.contains("7 frames"), "{screen}");
    net.send(53, 7);
    tmux.until("14 frames");
    broker.start_again();
    tmux.until("there is a broker again");
    let screen = tmux.screen();
    assert!(!screen.contains("no broker runs"), "{screen}");
    // A new filter needs the broker.
    tmux.keys(&["f", "C-u"]);
    tmux.text("udp");
    tmux.keys(&["Enter"]);
    tmux.until("[udp]");
    net.send(53, 3);
    tmux.until(" 3 frames");
    net.eth_b.clone().delete().unwrap();
    tmux.until("interface eth0 is gone");
    tmux.keys(&["7"]);
    tmux.until("10.0.0.1");
    tmux.keys(&["q"]);
    // As `weir listen`, after which nothing can be shown either.
    let screen = tmux.until("ended 1");
    assert!(screen.contains("weir: interface eth0 is gone"), "{screen}");
    assert_eq!(recorded(&file), 17);
}

/// A tmux server of its own with one session, that runs a command.
struct Tmux {
    socket: String,
}

impl Tmux {
    fn start(folder: &Folder, size: (u16, u16), command: &str) -> Option<Tmux> {
        testenv::programs(&["tmux"]).then_some(())?;
        let tmux = Tmux {
            socket: folder.path("tmux"),
        };
        let (width, height) = (size.0.to_string(), size.1.to_string());
        // The shell stays, so that its screen is seen afterwards.
        let line = format!("{command}; echo ended $?; stty -a | grep -o -e '-*icanon'; read _");
        let run = tmux.run(&["new-session", "-d", "-x", &width, "-y", &height, &line]);
        assert!(run.status.success(), "{run:?}");
        Some(tmux)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut tmux = testenv::program("tmux").unwrap();
        // No settings of the user, and UTF-8 whatever the locale is.
        tmux.args(["-u", "-f", "/dev/null", "-S", &self.socket])
            .args(arguments);
        tmux.env("TERM", "screen-256color")
            .env("SHELL", "/bin/sh")
            .env_remove("TMUX");
        tmux.output().unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        for key in keys {
            let run = self.run(&["send-keys", key]);
            assert!(run.status.success(), "{run:?}");
        }
    }

    fn text(&self, text: &str) {
        let run = self.run(&["send-keys", "-l", text]);
        assert!(run.status.success(), "{run:?}");
    }

    fn screen(&self) -> String {
        stdout(&self.run(&["capture-pane", "-p"]))
    }

    /// Waits until the screen contains the words.
    fn until(&self, words: &str) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains(words) {
                return screen;
            }
            assert!(began.elapsed() < WAIT_MAX, "no `{words}` in:\n{screen}");
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
    }

    /// The process in the pane's foreground.
    fn top_pid(&self) -> i32 {
        let pane = stdout(&self.run(&["display-message", "-p", "#{pane_pid}"]));
        let children = format!("/proc/{0}/task/{0}/children", pane.trim());
        let children = std::fs::read_to_string(children).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        let run = self.run(&["resize-window", "-x", &width, "-y", &height]);
        assert!(run.status.success(), "{run:?}");
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_weir")
}

#[test]
fn tmux_drives_the_monitor() {
    let folder = Folder::new("top-tmux");
    let ports: Vec<u16> = (0..300).map(|number| 53 + number % 3).collect();
    let path = folder.write("a.pcap", &capture(&ports));
    let command = format!("{} top -r {path}", binary());
    let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
        return;
    };
    tmux.until("300 frames");
    tmux.keys(&["3"]);
    tmux.until("0.0.0.0:53");
    tmux.keys(&["7"]);
    tmux.until("300 frames\n");
    // The filter, as it is typed and wrong, and then right.
    tmux.keys(&["f"]);
    tmux.text("udp prot");
    tmux.until("filter: udp prot");
    tmux.keys(&["BSpace", "BSpace", "BSpace", "BSpace"]);
    tmux.text("dst port 54");
    tmux.until("100 frames by udp dst port 54");
    tmux.keys(&["Enter"]);
    tmux.until("[udp dst port 54]");
    // Sizes.
    for (width, height) in [(1, 1), (2, 2), (20, 5), (200, 50), (80, 24)] {
        tmux.resize(width, height);
    }
    tmux.until("[udp dst port 54]");
    tmux.keys(&["C-l"]);
    tmux.until("[udp dst port 54]");
    // A frame, and a save that tshark opens.
    tmux.keys(&["Enter"]);
    tmux.until("Destination port: 54");
    tmux.keys(&["Escape"]);
    tmux.until("? help");
    tmux.keys(&["w"]);
    tmux.until("save frames to: ");
    tmux.keys(&["C-u"]);
    let saved = folder.path("saved.pcapng");
    tmux.text(&saved);
    tmux.keys(&["Enter"]);
    tmux.until("100 frames saved");
    if let Some(mut tshark) = testenv::program("tshark") {
        let run = tshark.args(["-n", "-r", &saved]).output().unwrap();
        assert_eq!(stdout(&run).lines().count(), 100, "{run:?}");
    }
    tmux.keys(&["q"]);
    let screen = tmux.until("ended 0");
    assert!(
        !screen.contains("weir top"),
        "the screen is the shell's again: {screen}"
    );
}

/// The ports of a's conversations from top to bottom.
fn order(screen: &str) -> String {
    let ports = ["53", "54", "55"];
    let of = |line: &str| {
        ports
            .into_iter()
            .find(|port| line.contains(&format!(":{port} ")))
    };
    screen.lines().filter_map(of).collect::<Vec<_>>().join(" ")
}

#[test]
fn tmux_sorts_a_table_and_shows_a_frame_by_tshark() {
    let folder = Folder::new("top-sort");
    let path = folder.write("a.pcap", &capture(&[55, 54, 54, 53, 53, 53]));
    let command = format!("{} top -r {path}", binary());
    let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
        return;
    };
    tmux.until("6 frames");
    // What a key changes, the column that sorts then, and the rows.
    for (key, column, rows) in [
        ("3", "bytesv", "53 54 55"),
        ("i", "bytes^", "55 54 53"),
        ("<", "framesv", "53 54 55"),
        // Rows of which the column says nothing are as they came.
        ("Left", "process^", "55 54 53"),
        ("Left", "name^", "55 54 53"),
        ("Left", "b^", "53 54 55"),
        ("i", "bv", "55 54 53"),
        ("Right", "name^", "55 54 53"),
    ] {
        tmux.keys(&[key]);
        let screen = tmux.until(column);
        assert_eq!(order(&screen), rows, "{key}: {screen}");
    }
    if !testenv::programs(&["tshark"]) {
        return;
    }
    tmux.keys(&["7", "g", "Enter"]);
    tmux.until("Destination port: 55");
    tmux.keys(&["t"]);
    tmux.until("User Datagram Protocol, Src Port: 0, Dst Port: 55");
    tmux.keys(&["t"]);
    tmux.until("Destination port: 55");
    tmux.keys(&["q", "q"]);
    tmux.until("ended 0");
}

#[test]
fn tmux_shows_a_protocol_by_a_view_in_python() {
    let folder = Folder::new("top-view");
    let path = folder.write("a.pcap", &capture(&[53, 4242]));
    let text =
        "match = 'udp port 4242'\ndef view(payload):\n    return f'{len(payload)} of greeting'\n";
    let view = folder.write("greeting.py", text.as_bytes());
    let command = format!("{} top -r {path} --view {view}", binary());
    if !testenv::programs(&["python3"]) {
        return;
    }
    let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
        return;
    };
    tmux.until("2 frames");
    tmux.keys(&["7"]);
    let screen = tmux.until("greeting: ");
    assert_eq!(screen.matches("of greeting").count(), 1, "{screen}");
    tmux.keys(&["Enter"]);
    tmux.until("UDP: 0 > 4242");
    tmux.until("of greeting");
    tmux.keys(&["q", "q"]);
    tmux.until("ended 0");
}

#[test]
fn the_screen_says_that_the_disk_is_full_and_what_was_recorded_is_whole() {
    let folder = Folder::new("top-full-screen");
    let path = folder.write("a.pcap", &capture(&[53; 2_000]));
    let file = folder.path("rec.pcapng");
    // 100 blocks of 512 bytes.
    let top = format!("{} top -r {path} -w {file}", binary());
    let command = format!("ulimit -f 100; {top}");
    let Some(tmux) = Tmux::start(&folder, (120, 24), &command) else {
        return;
    };
    let screen = tmux.until("recording has ended");
    assert!(screen.contains("2,000 frames"), "{screen}");
    tmux.keys(&["q"]);
    tmux.until("ended 1");
    let frames = recorded(&file);
    assert!((300..2_000).contains(&frames), "{frames}");
}

#[test]
fn tmux_follows_a_connection() {
    let folder = Folder::new("top-follow");
    let Some(captures) = testenv::captures() else {
        return;
    };
    let path = captures.join("http_ip4and6.pcapng");
    let command = format!("{} top -r {} --no-color", binary(), path.display());
    let Some(tmux) = Tmux::start(&folder, (100, 30), &command) else {
        return;
    };
    tmux.until("20 frames");
    tmux.keys(&["3", "/"]);
    tmux.text("tcp");
    tmux.keys(&["Enter", "F"]);
    tmux.until("HTTP/1.1");
    tmux.keys(&["x"]);
    tmux.until("> 000000");
    tmux.keys(&["Escape"]);
    tmux.until("? help");
    tmux.keys(&["q"]);
    tmux.until("ended ");
}

/// The hang-up signal alone may be missed: a process in another session gets none.
#[test]
fn the_monitor_ends_when_its_terminal_is_gone() {
    let folder = Folder::new("top-gone");
    let path = folder.write("a.pcap", &capture(&[53; 10]));
    let command = format!("trap '' HUP; {} top -r {path}", binary());
    let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
        return;
    };
    tmux.until("10 frames");
    let pid = rustix::process::Pid::from_raw(tmux.top_pid()).unwrap();
    drop(tmux);
    wait::until("the end of the monitor", || {
        rustix::process::test_kill_process(pid).is_err()
    });
}

#[test]
fn the_terminal_is_restored_after_signals() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let folder = Folder::new(&format!("top-signal-{status}"));
        let path = folder.write("a.pcap", &capture(&[53; 10]));
        let command = format!("echo before; {} top -r {path}", binary());
        let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
            return;
        };
        tmux.until("10 frames");
        let pid = rustix::process::Pid::from_raw(tmux.top_pid()).unwrap();
        common::until_it_hears(pid.as_raw_nonzero().get() as u32);
        rustix::process::kill_process(pid, signal).unwrap();
        tmux.until(&format!("ended {status}"));
        // What `stty` says comes a moment later.
        let screen = tmux.until("icanon");
        assert!(screen.contains("before"), "{screen}");
        assert!(
            !screen.contains("-icanon"),
            "lines are read as before: {screen}"
        );
    }
}

/// As when a connection by SSH ends.
#[test]
fn it_ends_with_its_terminal() {
    let folder = Folder::new("top-hangup");
    let path = folder.write("a.pcap", &capture(&[53; 10]));
    let command = format!("{} top -r {path}", binary());
    let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
        return;
    };
    tmux.until("10 frames");
    let process = format!("/proc/{}", tmux.top_pid());
    drop(tmux);
    wait::until("the end of the monitor", || {
        !std::path::Path::new(&process).exists()
    });
}

#[test]
fn colours_are_off_where_asked() {
    for (before, after, has_colours) in [
        ("", "", true),
        ("NO_COLOR=1 ", "", false),
        ("", " --no-color", false),
    ] {
        let folder = Folder::new(&format!("top-colour-{}", before.len() + 2 * after.len()));
        let path = folder.write("a.pcap", &capture(&[53; 10]));
        let command = format!("{before}{} top -r {path}{after}", binary());
        let Some(tmux) = Tmux::start(&folder, (80, 24), &command) else {
            return;
        };
        tmux.until("10 frames");
        let screen = stdout(&tmux.run(&["capture-pane", "-p", "-e"]));
        // 39 is the default colour.
        let mut codes = screen.split("\x1b[").skip(1);
        let colours = codes.any(|code| {
            let mut code = code.chars();
            code.next() == Some('3') && code.next().is_some_and(|c| ('0'..='8').contains(&c))
        });
        assert_eq!(colours, has_colours, "{command}: {screen:?}");
    }
}

/// The whole of what a reader of `--json` sees is one object a line.
#[test]
fn lines_of_json_come_every_second() {
    use std::io::{BufRead, BufReader};
    let Some(net) = net() else { return };
    let mut top = net.weir(&["top", "eth0", "--json"]);
    let began = Instant::now();
    let mut out = BufReader::new(top.take_stdout());
    for _ in 0..3 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let object: Value = serde_json::from_str(&line).unwrap();
        assert!(object["frames"].is_u64(), "{line}");
    }
    // Not sooner; later on a busy machine.
    assert!(began.elapsed().as_secs_f64() > 2.9, "{:?}", began.elapsed());
    top.signal(Signal::INT);
    top.end();
}
