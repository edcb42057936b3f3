//! The monitor's screen without a terminal: keys in, pictures out.

use super::app::{Action, App, Over, View};
use super::{draw, keys};
use crate::monitor::input::{Came, Input, Replay, Speed};
use crate::monitor::session::Session;
use crate::monitor::views::Views;
use crate::signals::ShutdownSignal;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_link::pcap::{FrameRef, Interface, Reader, Writer};

/// A folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("weir-top-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An Ethernet frame of IPv4, from 10.0.0.`src` to 10.0.0.`dst`.
fn packet(protocol: u8, src: u8, dst: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src, 8, 0, 0x45, 0];
    frame.extend(((20 + body.len()) as u16).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, src, 10, 0, 0, dst]);
    frame.extend(body);
    frame
}

fn tcp(is_there: bool, seq: u32, payload: &[u8]) -> Vec<u8> {
    let (src, dst, from, to) = if is_there {
        (1, 2, 4000_u16, 80_u16)
    } else {
        (2, 1, 80, 4000)
    };
    let mut body = Vec::new();
    body.extend(from.to_be_bytes());
    body.extend(to.to_be_bytes());
    body.extend(seq.to_be_bytes());
    body.extend([0, 0, 0, 9, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    body.extend(payload);
    packet(6, src, dst, &body)
}

fn udp(src_port: u16, dst_port: u16) -> Vec<u8> {
    let mut body = Vec::new();
    for word in [src_port, dst_port, 16, 0] {
        body.extend(word.to_be_bytes());
    }
    body.extend([0x1b; 8]);
    packet(17, 3, 4, &body)
}

/// A connection of HTTP, and datagrams.
fn write_capture(path: &Path) -> usize {
    let mut frames = vec![
        tcp(
            true,
            100,
            b"GET /secret HTTP/1.1\r\nHost: example.com\r\n\r\n",
        ),
        tcp(false, 900, b"HTTP/1.1 200 OK\r\n\r\nhello \x1b[2J"),
    ];
    frames.extend((0..40).map(|port| udp(5000 + port, 53)));
    write_frames(path, &frames);
    frames.len()
}

fn write_frames(path: &Path, frames: &[Vec<u8>]) {
    let interface = Interface::ethernet();
    let mut writer = Writer::create(path).expect("a file");
    for (number, bytes) in frames.iter().enumerate() {
        let frame = FrameRef {
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: Some(number as i64 * 100_000_000),
            interface_index: 0,
            interface: &interface,
        };
        writer.write(&frame).expect("room");
    }
    writer.finish().expect("room");
}

fn app(path: &Path, speed: Speed) -> App {
    let stop = ShutdownSignal::watch().expect("signals");
    let replay = Replay::open(path, "", speed, None, &stop).expect("a capture");
    let input = Input::File(Box::new(replay));
    App::new(input, Session::new(64 << 20, None, None), &stop)
}

/// Takes all frames in.
fn read(app: &mut App) {
    while app
        .input
        .take_in(&mut app.session, Duration::ZERO)
        .expect("readable")
        != Came::End
    {}
    app.tick();
    while !app.frames.refresh(&app.session.store) {}
}

fn press(app: &mut App, keys: &str) {
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        keys::key(app, KeyEvent::new(code, KeyModifiers::NONE));
    }
}

/// The screen's lines.
fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    while !app.frames.refresh(&app.session.store) {}
    let buffer = draw::screen(app, (width, height));
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width.into()).map(|row| row.concat()).collect()
}

fn shows(app: &mut App, text: &str) -> bool {
    screen(app, 80, 24).iter().any(|line| line.contains(text))
}

#[test]
fn every_view_draws_at_every_size() {
    let folder = Folder::new("sizes");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    let draw_all = |app: &mut App| {
        for view in [
            "1",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
            "?",
            "f",
            "\u{1b}7\n",
            "\u{1b}F",
            "x",
        ] {
            press(app, view);
            for width in [1, 2, 3, 7, 20, 40, 73, 74, 80, 132, 300] {
                for height in (1..=26).chain([60]) {
                    screen(app, width, height);
                }
            }
        }
        press(app, "\u{1b}\u{1b}");
    };
    draw_all(&mut app);
    read(&mut app);
    draw_all(&mut app);
}

#[test]
fn the_first_frames_are_shown_before_the_first_tick() {
    let folder = Folder::new("first");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    assert!(!app.takes_first() && !shows(&mut app, "10.0.0.4"));
    while app.session.model.totals().frames == 0 {
        let came = app.input.take_in(&mut app.session, Duration::ZERO);
        assert_ne!(came.expect("readable"), Came::Nothing);
    }
    assert!(
        !shows(&mut app, "10.0.0.4"),
        "the tables are not in order yet"
    );
    assert!(app.takes_first());
    assert!(shows(&mut app, "10.0.0.4"));
    assert!(!app.takes_first(), "only once");
}

#[test]
fn eighty_by_twenty_four_shows_what_matters() {
    let folder = Folder::new("plain");
    let path = folder.0.join("a.pcapng");
    let frames = write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    assert!(shows(&mut app, &format!("a.pcapng  {frames} frames")));
    assert!(shows(&mut app, "0 lost"));
    assert!(shows(&mut app, "IPv4/UDP/dns"));
    press(&mut app, "3");
    assert!(shows(&mut app, "10.0.0.1:4000") && shows(&mut app, "10.0.0.2:80"));
    press(&mut app, "2");
    assert!(shows(&mut app, "10.0.0.4"));
    press(&mut app, "7");
    assert!(
        shows(&mut app, "10.0.0.3.5039 > 10.0.0.4.53")
            || shows(&mut app, "10.0.0.3:5039 > 10.0.0.4:53")
    );
    assert_eq!(
        keys::key(
            &mut app,
            KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)
        ),
        Action::Quit
    );
}

/// However little room there is, or no reader would know by what.
#[test]
fn the_column_that_sorts_is_shown() {
    let folder = Folder::new("sorts");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    for view in ["2", "3", "4"] {
        press(&mut app, view);
        for _ in 0..8 {
            press(&mut app, "<");
            let head = screen(&mut app, 80, 24)[2].replace("recv ", "");
            let mut names = head.split_whitespace();
            assert!(names.any(|name| name.ends_with(['v', '^'])), "{head}");
        }
    }
}

/// An Ethernet frame of UDP over IPv6.
fn udp6(src: [u8; 16], dst: [u8; 16]) -> Vec<u8> {
    let mut frame = vec![
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 17, 64,
    ];
    frame.extend(src);
    frame.extend(dst);
    for word in [50_000_u16, 60_000, 16, 0] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend([0x1b; 8]);
    frame
}

#[test]
fn long_addresses_can_be_read_at_eighty_columns() {
    let folder = Folder::new("ipv6");
    let path = folder.0.join("a.pcapng");
    let address = |last| {
        let mut address = [0xfd; 16];
        address[15] = last;
        address
    };
    write_frames(&path, &[udp6(address(1), address(2))]);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    let whole = |last| format!("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd0{last}");
    press(&mut app, "2");
    let lines = screen(&mut app, 80, 24);
    for last in [1, 2] {
        let row = lines.iter().find(|line| line.starts_with(&whole(last)));
        assert!(row.is_some(), "{lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains('~')), "{lines:#?}");
    // Two of them have no room in one line: the selected row is below, in full.
    press(&mut app, "3");
    let lines = screen(&mut app, 80, 24);
    assert!(lines.iter().any(|line| line.contains('~')), "{lines:#?}");
    let below: Vec<&str> = lines[20..23].iter().map(|line| line.trim()).collect();
    let below = below.join(" ");
    for (name, last, port) in [("a", 1, 50_000), ("b", 2, 60_000)] {
        let end = format!("{name}: [{}]:{port}", whole(last));
        assert!(below.contains(&end), "{end}: {lines:#?}");
    }
    // Where there is room, both are in the row.
    let lines = screen(&mut app, 140, 24);
    assert!(!lines.iter().any(|line| line.contains('~')), "{lines:#?}");
}

#[test]
fn messages_are_wrapped_and_not_cut() {
    let folder = Folder::new("wrapped");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    let long = "the policy grants user 1001 nothing on interface enp130s0f0np0 at all: ask the \
                administrator of this machine for the last word";
    app.session.troubles = vec![long.to_owned(), "no broker runs".to_owned()];
    app.say(format!("new: {long}"));
    for width in [60, 80] {
        let lines: Vec<String> = screen(&mut app, width, 24);
        let joined: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
        let joined = joined.join(" ");
        assert!(
            joined.contains(&format!("{long}; no broker runs")),
            "{lines:#?}"
        );
        assert!(joined.contains(&format!("new: {long}")), "{lines:#?}");
    }
    app.news = None;
    app.session.troubles.clear();
    press(&mut app, "fudp and (port 53 or porq 54 and host 192.0.2.1");
    let lines = screen(&mut app, 80, 24);
    assert!(
        lines[22].starts_with("filter: udp and (port 53"),
        "{lines:#?}"
    );
    assert!(
        !lines[23].trim().is_empty(),
        "the fault is below: {lines:#?}"
    );
}

#[test]
fn the_list_follows_the_filter_as_it_is_typed() {
    let folder = Folder::new("filter");
    let path = folder.0.join("a.pcapng");
    let frames = write_capture(&path) as u64;
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    press(&mut app, "7ftcp");
    screen(&mut app, 80, 24);
    assert_eq!(app.frames.len(&app.session.store), 2);
    press(&mut app, " por");
    assert!(
        app.prompt
            .as_ref()
            .is_some_and(|prompt| prompt.error.is_some())
    );
    assert!(shows(&mut app, "filter: tcp por"));
    assert_eq!(app.frames.filter(), "tcp", "the last good filter stays");
    // A filter with an error is not taken, and the line stays.
    press(&mut app, "\n");
    assert!(app.prompt.is_some());
    assert_eq!(app.session.model.totals().frames, frames);
    press(&mut app, "\u{1b}");
    assert_eq!(app.frames.filter(), "", "as before");
    press(&mut app, "fudp port 5001\n");
    assert!(app.prompt.is_none());
    read(&mut app);
    assert_eq!(
        app.session.model.totals().frames,
        1,
        "counts are of the filter too"
    );
    assert_eq!(app.input.filter(), "udp port 5001");
}

#[test]
fn the_help_is_whole_at_eighty_columns_and_says_what_q_does() {
    let folder = Folder::new("help");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    press(&mut app, "?");
    let mut all = screen(&mut app, 80, 24).join("\n");
    press(&mut app, "G");
    all += &screen(&mut app, 80, 24).join("\n");
    for (_, what) in keys::HELP {
        for word in what.split_whitespace() {
            assert!(all.contains(word), "{word}: {all}");
        }
    }
    let quit = |app: &mut App| {
        let q = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        keys::key(app, q) == Action::Quit
    };
    // It leaves a window, and ends the monitor in every view, also in the list of a row's frames.
    assert!(!quit(&mut app));
    press(&mut app, "7\n");
    assert!(matches!(app.over, Over::Detail(_)));
    assert!(!quit(&mut app));
    assert!(matches!(app.over, Over::Nothing));
    assert!(quit(&mut app));
    press(&mut app, "3\n");
    assert_eq!(app.view, View::Frames);
    assert!(quit(&mut app));
}

/// A pipe cannot be read again: its counts are of the frames that are kept.
#[test]
fn a_filter_selects_from_what_a_stream_has_brought() {
    let folder = Folder::new("stream");
    let path = folder.0.join("a.pcapng");
    let frames = write_capture(&path) as u64;
    let fifo = folder.0.join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
    let writer = fifo.clone();
    let writer = std::thread::spawn(move || {
        let bytes = std::fs::read(path).expect("the capture");
        std::fs::write(writer, bytes).expect("a reader");
    });
    let mut app = app(&fifo, Speed::Max);
    read(&mut app);
    writer.join().expect("all is written");
    let counted = |app: &mut App, filter: &str| {
        press(app, "f");
        press(app, &"\u{8}".repeat(40));
        press(app, &format!("{filter}\n"));
        read(app);
        app.session.model.totals().frames
    };
    assert_eq!(app.session.model.totals().frames, frames);
    assert_eq!(counted(&mut app, "tcp"), 2);
    press(&mut app, "7");
    assert!(
        shows(&mut app, "10.0.0.1"),
        "{:#?}",
        screen(&mut app, 80, 24)
    );
    // Another filter selects from all that was read, not from what the last one left.
    assert_eq!(counted(&mut app, "udp port 5001"), 1);
    assert_eq!(counted(&mut app, ""), frames);
}

#[test]
fn a_connection_is_followed_and_a_frame_has_its_fields() {
    let folder = Folder::new("follow");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    press(&mut app, "7g\n");
    assert!(shows(&mut app, "Request line: GET /secret HTTP/1.1"));
    press(&mut app, "g");
    assert!(shows(&mut app, "000000  02 00 00 00 00 02"));
    press(&mut app, "F");
    let Over::Follow(_) = app.over else {
        panic!("it follows");
    };
    assert!(shows(&mut app, "> GET /secret HTTP/1.1"));
    assert!(shows(&mut app, "< HTTP/1.1 200 OK"));
    assert!(
        shows(&mut app, "< hello .[2J"),
        "control characters are not sent to the terminal"
    );
    press(&mut app, "x");
    assert!(shows(&mut app, "> 000000  47 45 54 20"));
    press(&mut app, "\u{1b}");
    // The row of a conversation leads to its frames.
    press(&mut app, "3/example.com\n\n");
    assert_eq!(app.view, View::Frames);
    screen(&mut app, 80, 24);
    assert_eq!(app.frames.len(&app.session.store), 2);
}

#[test]
fn frames_of_the_list_are_saved_and_what_comes_is_recorded() {
    let folder = Folder::new("save");
    let path = folder.0.join("a.pcapng");
    let frames = write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    let count = |path: &Path| {
        let mut reader = Reader::open(path).expect("a capture");
        let mut count = 0;
        while reader.next_frame().expect("whole").is_some() {
            count += 1;
        }
        count
    };
    let erase = "\u{8}".repeat(20);
    let saved = folder.0.join("saved.pcapng");
    press(&mut app, "7ftcp\u{1b}");
    app.frames.set_filter("tcp");
    press(&mut app, &format!("w{erase}{}\n", saved.display()));
    assert!(app.prompt.is_none(), "{:?}", app.prompt);
    assert_eq!(count(&saved), 2);
    press(&mut app, &format!("w{erase}{}\n", saved.display()));
    let error = app.prompt.as_ref().and_then(|prompt| prompt.error.clone());
    assert!(
        error.is_some_and(|error| error.contains("exists")),
        "nothing is overwritten"
    );
    press(&mut app, "\u{1b}");
    let recorded = folder.0.join("recorded.pcapng");
    press(&mut app, &format!("r{erase}{}\nR", recorded.display()));
    read(&mut app);
    assert!(shows(&mut app, "REC "));
    press(&mut app, "r");
    assert_eq!(count(&recorded), frames);
}

#[test]
fn a_replay_takes_its_time_and_pauses() {
    let folder = Folder::new("speed");
    let path = folder.0.join("a.pcapng");
    let frames = write_capture(&path) as u64;
    // 4.1 seconds of frames.
    let mut app = app(&path, Speed::Times(1.0));
    app.input
        .take_in(&mut app.session, Duration::ZERO)
        .expect("readable");
    let early = app.session.model.totals().frames;
    assert!(early >= 1 && early < frames, "{early}");
    press(&mut app, " ");
    let paused = app.input.take_in(&mut app.session, Duration::ZERO);
    assert_eq!(paused.expect("readable"), Came::Nothing);
    press(&mut app, " ++++++++++");
    read(&mut app);
    assert_eq!(app.session.model.totals().frames, frames);
}

/// Draws until the screen has the text: a view's answer comes when it comes.
fn until_shown(app: &mut App, text: &str) {
    let began = std::time::Instant::now();
    while !shows(app, text) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no {text}: {:#?}",
            screen(app, 80, 24)
        );
        std::thread::sleep(Duration::from_millis(5));
        app.take_views();
    }
}

#[test]
fn a_view_in_python_is_in_the_list_and_in_the_frame() {
    if !weir_lab::testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("views");
    let path = folder.0.join("a.pcapng");
    write_capture(&path);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    let file = folder.0.join("mine.py");
    let text = "import time\nname = 'Mine'\nmatch = 'udp dst port 53'\ndef view(payload):\n    \
                return 'first is \\x1b', [('Octet', hex(payload[0]), 0, 1)]\n";
    std::fs::write(&file, text).expect("room");
    app.views = Views::load(std::slice::from_ref(&file)).expect("a good file");
    press(&mut app, "7");
    // Its control character is no command to the terminal.
    until_shown(&mut app, "Mine: first is \\u{1b}");
    press(&mut app, "\n");
    until_shown(&mut app, "Octet: 0x1b");
    for line in ["UDP: 5039 > 53", "Mine: first is"] {
        assert!(shows(&mut app, line), "{line}");
    }
    assert!(!shows(&mut app, "DNS"), "{:#?}", screen(&mut app, 80, 24));
    // What goes wrong is said, and weir's own view is there.
    for (body, said) in [
        (
            "return payload[99]",
            "mine.py:4: IndexError: index out of range",
        ),
        ("time.sleep(100)", "mine.py: took longer than 2 s"),
    ] {
        let text = format!("import time\nmatch = 'udp'\ndef view(payload):\n    {body}\n");
        std::fs::write(&file, text).expect("room");
        app.views = Views::load(std::slice::from_ref(&file)).expect("a good file");
        press(&mut app, "\u{1b}\n");
        until_shown(&mut app, said);
        assert!(shows(&mut app, "DNS"), "{:#?}", screen(&mut app, 80, 24));
    }
    // Other frames are as ever.
    press(&mut app, "\u{1b}g\n");
    assert!(shows(&mut app, "HTTP"), "{:#?}", screen(&mut app, 80, 24));
}

#[test]
fn rows_beyond_a_table_are_counted() {
    let folder = Folder::new("many");
    let path = folder.0.join("a.pcapng");
    let frames: Vec<Vec<u8>> = (0..100_100_u32)
        .map(|number| {
            let mut frame = udp((number / 1000) as u16 + 1, (number % 1000) as u16 + 1);
            // The address of the sender: another one for each thousand frames.
            frame[28] = (number / 1000) as u8;
            frame
        })
        .collect();
    write_frames(&path, &frames);
    let mut app = app(&path, Speed::Max);
    read(&mut app);
    press(&mut app, "3");
    assert!(shows(&mut app, "others: 100 frames"));
    let table = app.session.model.conversations();
    let rows: u64 = table.rows().iter().map(|row| row.total().frames).sum();
    assert_eq!(
        rows + table.overflow().frames,
        app.session.model.totals().frames
    );
}
