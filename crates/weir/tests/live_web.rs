//! `weir web`: a file's page in a real browser, and a live port's data.

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "common/live.rs"]
mod live;

use browser::Page;
use common::{Folder, capture, stdout, weir};
use live::{Broker, Running, net, open_folder};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use weir_lab::command::Command;
use weir_lab::net::{Process, Signal};
use weir_lab::testenv;
use weir_lab::wait::{self, Limited};

/// The address and the token of the line that weir web prints.
fn address(out: impl Read) -> (SocketAddr, String) {
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).unwrap();
    let rest = line.trim().strip_prefix("http://").unwrap();
    let (at, token) = rest.split_once("/?token=").unwrap();
    (at.parse().unwrap(), token.to_owned())
}

/// The body of an answer.
fn get(at: SocketAddr, token: &str, path: &str) -> Vec<u8> {
    let mut client = wait::connect(at).unwrap();
    write!(
        client,
        "GET {path} HTTP/1.0\r\nHost: {at}\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    assert!(
        bytes.starts_with(b"HTTP/1.0 200 "),
        "{}",
        bytes.escape_ascii()
    );
    let head = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    bytes.split_off(head + 4)
}

fn state(at: SocketAddr, token: &str) -> Value {
    serde_json::from_slice(&get(at, token, "/state.json")).unwrap()
}

/// Ends it by SIGTERM.
fn end(mut web: Process) {
    common::until_it_hears(web.id());
    web.signal(Signal::TERM).unwrap();
    let status = web.wait(live::WAIT_MAX).unwrap().expect("it ends");
    assert_eq!(status.code(), Some(143));
}

/// Of a file, until it has been read: weir web, its address, its token.
fn of_file(file: &str) -> (Process, SocketAddr, String) {
    started(&mut weir(["web", "-r", file, "--listen", "127.0.0.1:0"]))
}

fn started(command: &mut Command) -> (Process, SocketAddr, String) {
    let mut web = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = web.child_mut().stdout.take().unwrap();
    let (at, token) = address(Limited::new(out, "the address of the page"));
    wait::until("the end of the file", || state(at, &token)["live"] == false);
    (web, at, token)
}

#[test]
fn a_files_frames_are_counted_and_can_be_downloaded() {
    let folder = Folder::new("web-file");
    let file = folder.write("in.pcap", &capture(&[53, 53, 80]));
    let (web, at, token) = of_file(&file);
    let state = state(at, &token);
    assert_eq!(state["source"], "in.pcap");
    assert_eq!(state["state"]["frames"], 3, "{state}");
    assert_eq!(state["rates"].as_array().unwrap().len(), 3, "{state}");
    let top = weir(["top", "-r", &file, "--once", "--json"]).output();
    let top: Value = serde_json::from_slice(&top.unwrap().stdout).unwrap();
    assert_eq!(state["state"], top);
    let saved = folder.path("saved.pcapng");
    fs::write(&saved, get(at, &token, "/capture.pcapng")).unwrap();
    let lines = |file: &str| stdout(&weir(["listen", "-r", file, "-n"]).output().unwrap());
    assert_eq!(lines(&saved), lines(&file));
    // Nothing is left out of a long key log.
    let keys = "CLIENT_RANDOM 00 00\n".repeat(160_000);
    let log = folder.write("keys.log", keys.as_bytes());
    let mut command = weir([
        "web",
        "-r",
        &file,
        "--listen",
        "127.0.0.1:0",
        "--tls-keys",
        &log,
    ]);
    let (with_keys, at, token) = started(&mut command);
    let saved = get(at, &token, "/capture.pcapng");
    assert!(saved.len() > keys.len(), "{} bytes", saved.len());
    end(with_keys);
    end(web);
}

#[test]
fn a_browser_shows_tables_and_plots() {
    let Some(chromium) = testenv::program("chromium") else {
        return;
    };
    drop(chromium);
    let folder = Folder::new("web-browser");
    // Text of the file that is no text of the page.
    let file = folder.write("<b>in.pcap", &capture(&[53; 40]));
    let (web, at, token) = of_file(&file);
    let url = format!("http://{at}/?token={token}");
    let profile = format!("--user-data-dir={}", folder.path("profile"));
    let mut page = String::new();
    wait::until("a page with a table", || {
        let mut chromium = testenv::program("chromium").unwrap();
        chromium.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--timeout=3000",
        ]);
        chromium.args([&profile, "--dump-dom", &url]);
        let run = chromium.env("HOME", folder.path("")).output().unwrap();
        page = stdout(&run);
        page.contains("<tbody><tr>")
    });
    for part in [
        "40 frames, 2,560 bytes, 0 lost, 39.0 s (the end of the file)",
        "&lt;b&gt;in.pcap",
        "<td>0.0.0.0</td>",
        "1 of 1 rows",
        ">conversations</button>",
        ">last frames</button>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<b>"), "{page}");
    assert!(!page.contains(&token), "{page}");
    end(web);
}

/// As a user does: with the mouse, on a link whose frames come meanwhile.
#[test]
fn a_browser_is_driven_over_a_live_link() {
    let Some(net) = net() else { return };
    let folder = Folder::new("web-driven");
    let mut web = net.weir(&["web", "eth0", "udp", "--listen", "127.0.0.1:0"]);
    let (at, token) = address(web.take_stdout());
    let url = format!("http://{at}/?token={token}");
    let Some(mut page) = Page::open(&net.b, &folder, &url) else {
        return;
    };
    let frames = "byId('totals').textContent.split(' ')[0]";
    page.until(frames, "0");
    // The plots and the counts are of frames that come after the page.
    let drawn = "['plot-frames', 'plot-bits'].map(id => byId(id).toDataURL()).join()";
    let before = page.value(drawn);
    net.send(53, 30);
    page.until(frames, "30");
    let peak = "String(Math.max(...news.rates.map(rate => rate[0])) > 0)";
    page.until(peak, "true");
    let between = page.value(drawn);
    assert_ne!(before, between, "the plots");
    // A point a second, with frames or without.
    page.until(
        &format!("String({drawn} !== '{}')", between.as_str().unwrap()),
        "true",
    );
    let button = |name: &str| {
        format!(
            "[...document.querySelectorAll('#tabs button')].find(b => b.textContent === '{name}')"
        )
    };
    let cell = |row: usize, column: usize| {
        format!("byId('table').tBodies[0].rows[{row}].cells[{column}].textContent")
    };
    // A table, sorted both ways, and searched.
    net.send(80, 10);
    page.until(frames, "40");
    page.click(&button("conversations"));
    let heading = "byId('table').tHead.rows[0].cells[5]";
    page.click(heading);
    page.until(&format!("{heading}.textContent"), "frames ▼");
    let both = format!("{} + ' ' + {}", cell(0, 5), cell(1, 5));
    page.until(&both, "30 10");
    page.click(heading);
    page.until(&both, "10 30");
    page.click("byId('find')");
    page.type_text(":80");
    page.until("byId('shown').textContent", "1 of 2 rows");
    page.until(&cell(0, 5), "10");
    // The fields and bytes of a frame.
    page.click(&button("last frames"));
    page.until("byId('shown').textContent", "10 of 40 rows");
    // A row is clicked though more frames come before the button is up.
    let first = "byId('table').tBodies[0].rows[0].cells[2]";
    let at = page.press(first, "left");
    net.send(80, 1);
    page.until(frames, "41");
    std::thread::sleep(Duration::from_millis(200));
    page.release(&at);
    page.until("byId('shown').textContent", "11 of 41 rows");
    page.until(
        "String(byId('frame').textContent.includes('Destination port: http (80)'))",
        "true",
    );
    // A menu may keep the release of another button.
    page.press(first, "right");
    net.send(80, 1);
    page.until("byId('shown').textContent", "12 of 42 rows");
    // The ports, with the page's own.
    page.click("byId('find')");
    page.value("byId('find').select()");
    page.type_text("udp");
    page.click(&button("ports"));
    page.until(&cell(0, 2), "udp");
    page.click("byId('capture')");
    wait::until("the download", || folder.has("capture.pcapng"));
    let saved = folder.path("capture.pcapng");
    let lines = stdout(&weir(["listen", "-r", &saved, "-n"]).output().unwrap());
    assert_eq!(lines.matches("UDP, length 4").count(), 42, "{lines}");
    // The end of the command is shown, and what there was stays.
    web.signal(Signal::TERM);
    assert_eq!(web.end().code, Some(143));
    page.until("byId('totals').className", "ended");
    page.until(frames, "42");
    page.close();
}

#[test]
fn the_last_frames_have_their_fields_also_by_a_view_in_python() {
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("web-frames");
    let file = folder.write("in.pcap", &capture(&[53, 4242]));
    let text = "match = 'udp port 4242'\ndef view(payload):\n    \
                return 'hello \\x1b', [('Length', len(payload))]\n";
    let view = folder.write("greeting.py", text.as_bytes());
    let mut command = weir([
        "web",
        "-r",
        &file,
        "--listen",
        "127.0.0.1:0",
        "--view",
        &view,
    ]);
    let (web, at, token) = started(&mut command);
    let json = |path: &str| -> Value { serde_json::from_slice(&get(at, &token, path)).unwrap() };
    let frames = json("/frames.json");
    assert_eq!(frames.as_array().unwrap().len(), 2, "{frames}");
    assert_eq!(
        (&frames[1]["number"], &frames[1]["length"]),
        (&2.into(), &64.into())
    );
    let line = frames[0]["line"].as_str().unwrap();
    assert!(
        line.contains("0.0.0.0.53") || line.contains("0.0.0.0:53"),
        "{line}"
    );
    let mut frame = Value::Null;
    wait::until("the view's answer", || {
        std::thread::sleep(Duration::from_millis(20));
        frame = json("/frame.json?number=2");
        frame["waiting"] == false
    });
    let fields = frame["fields"].as_array().unwrap().iter();
    let fields: Vec<&str> = fields.map(|line| line["text"].as_str().unwrap()).collect();
    assert!(fields.contains(&"greeting: hello \\u{1b}"), "{frame}");
    assert!(
        fields.iter().any(|field| field.starts_with("Length: ")),
        "{frame}"
    );
    assert_eq!(frame["hex"].as_array().unwrap().len(), 4, "{frame}");
    let line = json("/frames.json")[1]["line"].as_str().unwrap().to_owned();
    assert!(line.starts_with("greeting: hello"), "{line}");
    for (path, status) in [
        ("/frame.json?number=3", 404),
        ("/frame.json?number=0", 404),
        ("/frame.json", 400),
    ] {
        let mut client = wait::connect(at).unwrap();
        let request =
            format!("GET {path} HTTP/1.0\r\nHost: {at}\r\nAuthorization: Bearer {token}\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with(&format!("HTTP/1.0 {status} ")),
            "{path}: {text}"
        );
    }
    end(web);
}

#[test]
fn a_live_page_has_counts_and_ports() {
    let Some(net) = net() else { return };
    let mut web: Running = net.weir(&["web", "eth0", "udp dst port 53", "--listen", "127.0.0.1:0"]);
    let (at, token) = address(web.take_stdout());
    net.send(53, 100);
    net.send(54, 50);
    net.b.run(|| {
        wait::until("100 frames and the port", || {
            let state = state(at, &token);
            let ports = state["state"]["ports"].as_array();
            let has_port = ports.is_some_and(|ports| {
                let mut filters = ports.iter().map(|port| port["filter"].as_str());
                filters.any(|filter| filter == Some("udp dst port 53"))
            });
            std::thread::sleep(Duration::from_millis(50));
            state["state"]["frames"] == 100 && has_port
        });
        let frames = get(at, &token, "/capture.pcapng");
        assert!(frames.len() > 100 * 60, "{} bytes", frames.len());
    });
    web.signal(Signal::TERM);
    let ended = web.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
}

#[test]
fn a_page_says_that_the_broker_or_the_interface_is_gone_and_keeps_the_frames() {
    let Some(net) = net() else { return };
    let folder = open_folder("web-gone");
    let mut broker = Broker::start(&net, &folder);
    let socket = folder.path("socket");
    let web = ["web", "eth0", "udp dst port 53", "--listen", "127.0.0.1:0"];
    let mut web = net.weir(&[&web[..], &["--socket", &socket]].concat());
    let (at, token) = address(web.take_stdout());
    let until = |what: &str, is_it: &(dyn Fn(&Value) -> bool + Sync)| {
        net.b.run(|| {
            wait::until(what, || {
                std::thread::sleep(Duration::from_millis(50));
                is_it(&state(at, &token))
            });
        });
    };
    let troubles = |state: &Value| state["state"]["troubles"].clone();
    net.send(53, 10);
    until("10 frames", &|state| state["state"]["frames"] == 10);
    broker.kill();
    until("word of the broker's end", &|state| {
        troubles(state) == serde_json::json!(["no broker runs"])
    });
    net.send(53, 10);
    until("20 frames", &|state| state["state"]["frames"] == 20);
    broker.start_again();
    until("word of the next broker", &|state| {
        troubles(state).is_null()
    });
    net.eth_b.clone().delete().unwrap();
    until("word of the interface's end", &|state| {
        troubles(state) == serde_json::json!(["interface eth0 is gone"])
            && state["live"] == false
            && state["state"]["frames"] == 20
    });
    let capture = net.b.run(|| get(at, &token, "/capture.pcapng"));
    let capture = folder.write("saved.pcapng", &capture);
    let lines = stdout(&weir(["listen", "-r", &capture, "-n"]).output().unwrap());
    assert_eq!(lines.matches("UDP, length 4").count(), 20, "{lines}");
    web.signal(Signal::TERM);
    let ended = web.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
}

/// Of connections that show no token, the oldest makes room.
#[test]
fn idle_connections_keep_the_owner_out_no_longer() {
    let folder = Folder::new("web-idle");
    let file = folder.write("in.pcap", &capture(&[53]));
    let (web, at, token) = of_file(&file);
    let idle: Vec<_> = (0..200).map(|_| wait::connect(at).unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(state(at, &token)["live"], false);
    }
    drop(idle);
    end(web);
}

#[test]
fn what_is_wrong_is_named() {
    let folder = Folder::new("web-wrong");
    let file = folder.write("in.pcap", &capture(&[53]));
    let short = folder.write("short", b"abc\n");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (arguments, code, words) in [
        (["--listen", "127.0.0.1"], 2, "127.0.0.1"),
        (["--token-file", &short], 2, "16 to 256 letters and digits"),
        (["--token-file", "/nonexistent"], 2, "/nonexistent"),
        (["--listen", &taken], 1, "--listen"),
    ] {
        let mut command = weir(["web", "-r", &file]);
        let run = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
