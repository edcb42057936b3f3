//! `weir get` and `weir serve` against the kernel's TCP, python's server and
//! curl, over a TAP interface, without privilege.

mod common;
#[path = "common/live.rs"]
mod live;
#[path = "common/tap.rs"]
mod tap;

use common::Folder;
use live::{Running, open_folder};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};
use tap::{KERNEL, Kernel, OURS, kernel, kernel_with};
use weir_lab::command::Resource;
use weir_lab::net::{Signal, unprivileged};
use weir_lab::{testenv, wait};

/// Lengths that have something about them: nothing, less than a segment, the
/// edges of one, more than the buffers.
const LENGTHS: [usize; 7] = [0, 1, 1447, 1448, 1449, 65_536, 5_000_000];
/// Once each way; a build without optimisation takes its time.
const LONG: usize = if cfg!(debug_assertions) {
    20_000_000
} else {
    100_000_000
};

fn body(len: usize) -> Vec<u8> {
    let byte = |at: usize| {
        (at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_be_bytes()[1]
    };
    (0..len).map(byte).collect()
}

fn site(name: &str) -> Folder {
    let folder = open_folder(name);
    for len in LENGTHS {
        folder.write(&format!("{len}.bin"), &body(len));
    }
    folder
}

fn url(at: &str, port: u16, path: &str) -> String {
    if at.contains(':') {
        format!("http://[{at}]:{port}{path}")
    } else {
        format!("http://{at}:{port}{path}")
    }
}

/// Another's server of a folder, on the kernel's side.
fn python(kernel: &Kernel, folder: &str) -> Running {
    let line = format!("python3 -m http.server 8000 --bind :: --directory {folder}");
    kernel.server(&line, 8000)
}

#[test]
fn get_has_what_a_server_has() {
    let Some(kernel) = kernel_with(&["python3"]) else {
        return;
    };
    let folder = site("get");
    folder.write("long.bin", &body(LONG));
    let site = folder.path("");
    let _server = python(&kernel, &site);
    let out = folder.path("out");
    for at in KERNEL {
        for len in LENGTHS {
            let url = url(at, 8000, &format!("/{len}.bin"));
            let got = kernel.weir(&["get", &url, "-o", &out, "--json"]).end();
            assert_eq!(got.code, Some(0), "{got:?}");
            assert_eq!(got.json()["status"], 200);
            assert_eq!(got.json()["bytes"], len);
            assert!(fs::read(&out).unwrap() == body(len), "{url}");
        }
    }
    let got = kernel.weir(&["get", &url(KERNEL[0], 8000, "/long.bin"), "-o", &out]);
    let got = got.end();
    assert_eq!((got.code, &*got.stderr), (Some(0), ""));
    assert!(fs::read(&out).unwrap() == body(LONG));
}

#[test]
fn get_fails_as_it_says() {
    let Some(kernel) = kernel_with(&["python3"]) else {
        return;
    };
    let folder = site("get-fails");
    let site = folder.path("");
    let _server = python(&kernel, &site);
    let missing = url(KERNEL[0], 8000, "/missing");
    let got = kernel.weir(&["get", &missing]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(got.stdout.contains("404"), "{got:?}");
    for (arguments, code, why) in [
        (&["get", &*missing, "--fail"][..], 1, "status is 404"),
        (&["get", "http://192.0.2.1:81/"], 1, "Connection refused"),
        (&["get", "http://198.51.100.1/"], 1, "192.0.2.5"),
        (
            &["get", "http://192.0.2.77/", "--connect-timeout", "0.2"],
            1,
            "192.0.2.77:80: timed out",
        ),
        (&["get", "https://192.0.2.1/"], 2, "only http"),
        (&["get", "http://no.such.host.invalid/"], 1, "resolver"),
        (
            &["get", &*missing, "-o", "/no/such/folder/x"],
            1,
            "/no/such/folder/x",
        ),
    ] {
        let got = kernel.weir(arguments).end();
        assert_eq!(got.code, Some(code), "{arguments:?}: {got:?}");
        let said = got.stderr.contains(why) || why == "192.0.2.5" && got.stderr.contains("198.51");
        assert!(said, "{arguments:?}: {got:?}");
        assert_eq!(got.stdout, "");
    }
    let head = kernel
        .weir(&["get", "-I", &url(KERNEL[1], 8000, "/1.bin")])
        .end();
    assert!(head.stdout.starts_with("HTTP/1.0 200 OK\r\n"), "{head:?}");
    assert!(head.stdout.ends_with("\r\n\r\n"), "{head:?}");
}

#[test]
fn a_file_that_is_not_whole_is_not_there() {
    let Some(kernel) = kernel_with(&["python3"]) else {
        return;
    };
    let folder = site("get-part");
    folder.write("long.bin", &body(LONG));
    let site = folder.path("");
    let _server = python(&kernel, &site);
    let url = url(KERNEL[0], 8000, "/long.bin");
    let full = kernel.weir(&["get", &url, "-o", "/dev/full"]).end();
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.stderr.contains("make room"), "{full:?}");
    // No file may be longer: the disk is full in its midst.
    let out = folder.path("part");
    let mut command = unprivileged::command(env!("CARGO_BIN_EXE_weir"));
    command
        .limit(Resource::Fsize, 100 * 512)
        .args(["get", &url]);
    command.args(["-o", &out, "--link", "tap0", "--addr", "192.0.2.5/24"]);
    let cut = kernel.host.output(command).unwrap();
    let said = String::from_utf8_lossy(&cut.stderr);
    assert!(
        cut.status.code() == Some(1) && said.contains(&out),
        "{cut:?}"
    );
    assert!(!fs::exists(&out).unwrap());
    assert!(!fs::exists(format!("{out}.part")).unwrap());
    let wrong = kernel.weir(&["get", &url, "-m", "-1"]).end();
    assert!(wrong.stderr.contains("give seconds above 0"), "{wrong:?}");
}

#[test]
fn a_server_says_which_port_it_got_and_logs_what_it_refuses() {
    let Some(kernel) = kernel_with(&["curl"]) else {
        return;
    };
    let folder = site("serve-any");
    let site = folder.path("");
    let server = kernel.weir(&["serve", &site, "--port", "0", "--log"]);
    let server = server.until("ready at port ");
    let port = server.said().trim().rsplit(' ').next().unwrap().to_owned();
    for at in OURS {
        let at = if at.contains(':') {
            format!("[{at}]")
        } else {
            at.to_owned()
        };
        let line = format!("curl -sS -d x=y http://{at}:{port}/upload");
        let said = kernel.run(&line);
        assert!(said.starts_with(b"405"), "{said:?}");
    }
    // No request controls the terminal of a reader of the log.
    kernel.host.run(|| {
        let to = format!("{}:{port}", OURS[0]).parse().unwrap();
        let mut stream = wait::connect(to).unwrap();
        let request = "GET /\u{9b}31m\u{202e} HTTP/1.0\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    server.signal(weir_lab::net::Signal::INT);
    let ended = server.end();
    assert_eq!(
        ended.stdout.matches("\"POST /upload\" 405").count(),
        2,
        "{ended:?}"
    );
    let escaped = "\"GET /\\u{9b}31m\\u{202e}\" 404";
    assert!(ended.stdout.contains(escaped), "{ended:?}");
}

/// RFC 9110 §13, §14.2. The file has neither an entity tag nor another date.
#[test]
fn serve_keeps_to_conditions() {
    const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
    const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
    const AFTER: &str = "Sun, 09 Sep 2001 01:46:41 GMT";
    let Some(kernel) = kernel_with(&["curl"]) else {
        return;
    };
    let folder = site("serve-conditions");
    let modify = |name: &str, at| {
        let file = fs::File::options().write(true).open(folder.path(name));
        file.unwrap().set_modified(at).unwrap();
    };
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    modify("1448.bin", at);
    modify("1449.bin", SystemTime::now() + Duration::from_secs(86_400));
    let _server = kernel.weir(&["serve", &folder.path("")]).until("ready");
    let curl = |more: &[String], path: &str| {
        let mut curl = testenv::program("curl").expect("the test has asked for it");
        curl.args([
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %header{last-modified}",
        ]);
        curl.args(more).arg(format!("http://{}/{path}", OURS[0]));
        let said = kernel.host.output(curl).unwrap().stdout;
        String::from_utf8(said).unwrap()
    };
    for (fields, status) in [
        (vec!["Range: bytes=0-9".to_owned()], 206),
        (
            vec!["Range: bytes=0-9".into(), format!("If-Range: {DATE}")],
            206,
        ),
        (
            vec!["Range: bytes=0-9".into(), format!("If-Range: {BEFORE}")],
            200,
        ),
        (
            vec!["Range: bytes=0-9".into(), format!("If-Range: {AFTER}")],
            200,
        ),
        (
            vec!["Range: bytes=0-9".into(), "If-Range: \"x\"".into()],
            200,
        ),
        (vec![format!("If-Modified-Since: {DATE}")], 304),
        (vec![format!("If-Modified-Since: {BEFORE}")], 200),
        (
            vec![
                format!("If-Modified-Since: {DATE}"),
                "If-None-Match: \"x\"".into(),
            ],
            200,
        ),
        (vec!["If-None-Match: *".into()], 304),
        (vec![format!("If-Unmodified-Since: {DATE}")], 200),
        (vec![format!("If-Unmodified-Since: {BEFORE}")], 412),
        (vec!["If-Unmodified-Since: nonsense".into()], 200),
        (
            vec![
                "If-Match: *".into(),
                format!("If-Unmodified-Since: {BEFORE}"),
            ],
            200,
        ),
        (vec!["If-Match: \"x\"".into()], 412),
    ] {
        let given = fields
            .iter()
            .flat_map(|field| ["-H".to_owned(), field.clone()]);
        let said = curl(&given.collect::<Vec<_>>(), "1448.bin");
        let wanted = match status {
            412 => "412 ".to_owned(),
            status => format!("{status} {DATE}"),
        };
        assert_eq!(said, wanted, "{fields:?}");
    }
    let words = |words: &str| words.split('|').map(str::to_owned).collect::<Vec<_>>();
    let head = curl(&words("-I|-H|Range: bytes=0-9"), "1448.bin");
    assert_eq!(head, format!("200 {DATE}"));
    let said = curl(&[], "1449.bin");
    let date = said.strip_prefix("200 ").unwrap();
    let more = words(&format!("-H|Range: bytes=0-9|-H|If-Range: {date}"));
    assert_eq!(curl(&more, "1449.bin"), said, "it may be modified again");
}

/// A server of the kernel's that answers once, whatever is asked.
fn answering(kernel: &Kernel, port: u16, answer: &'static [u8]) -> JoinHandle<Vec<u8>> {
    let listener = kernel
        .host
        .run(|| TcpListener::bind((KERNEL[0], port)))
        .unwrap();
    thread::spawn(move || {
        let (mut stream, _) = wait::accept(&listener).unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        stream.write_all(answer).unwrap();
        request
    })
}

#[test]
fn every_framing_is_read_and_none_that_is_broken() {
    let Some(kernel) = kernel() else { return };
    let cases: [(&[u8], Option<i32>, &str, &str); 6] = [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            Some(0),
            "abcde",
            "",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil closed", Some(0), "until closed", ""),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 2\r\n\r\nno",
            Some(0),
            "no",
            "",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            Some(1),
            "abc",
            "6 bytes early",
        ),
        (b"", Some(1), "", "without a response"),
        (b"SSH-2.0-x\r\n\r\n", Some(1), "", "no response of HTTP/1"),
    ];
    for (at, (answer, code, stdout, stderr)) in cases.into_iter().enumerate() {
        let port = 8100 + at as u16;
        let server = answering(&kernel, port, answer);
        let got = kernel
            .weir(&["get", &url(KERNEL[0], port, "/x?y"), "-H", "X: y"])
            .end();
        assert_eq!((got.code, &*got.stdout), (code, stdout), "{got:?}");
        assert!(got.stderr.contains(stderr), "{got:?}");
        let request = String::from_utf8(server.join().unwrap()).unwrap();
        assert!(
            request.starts_with("GET /x?y HTTP/1.1\r\nHost: 192.0.2.1:"),
            "{request}"
        );
        assert!(request.contains("\r\nX: y\r\n"), "{request}");
    }
}

#[test]
fn a_signal_ends_get() {
    let Some(kernel) = kernel() else { return };
    let listener = kernel
        .host
        .run(|| TcpListener::bind((KERNEL[0], 8200)))
        .unwrap();
    let got = kernel.weir(&["get", &url(KERNEL[0], 8200, "/")]);
    let (mut stream, _) = wait::accept(&listener).unwrap();
    let began = Instant::now();
    got.signal(Signal::INT);
    assert_eq!(got.end().code, Some(130));
    // The server learns, too.
    let mut request = Vec::new();
    let _ = stream.read_to_end(&mut request);
    assert!(began.elapsed().as_secs() < 4, "{:?}", began.elapsed());
}

/// Its output has no reader, and one signal is enough.
#[test]
fn a_signal_ends_get_that_waits_for_its_reader() {
    let Some(kernel) = kernel_with(&["python3"]) else {
        return;
    };
    let folder = site("get-unread");
    folder.write("text", &vec![b'x'; 5_000_000]);
    let _server = python(&kernel, &folder.path(""));
    let url = url(KERNEL[0], 8000, "/text");
    let got = kernel.weir(&["get", &url]).until_full();
    got.signal(Signal::TERM);
    let ended = got.end();
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
}

#[test]
fn get_leaves_the_files_of_others() {
    let Some(kernel) = kernel_with(&["python3"]) else {
        return;
    };
    let folder = site("get-files");
    let _server = python(&kernel, &folder.path(""));
    let url = url(KERNEL[0], 8000, "/1447.bin");
    let (out, beside) = (folder.path("out"), folder.path("out.part"));
    // A user that may not read it, nor write the other.
    let nobodys = |path: &str, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
    };
    folder.write("out.part", b"mine");
    folder.write("out", b"before");
    nobodys(&beside, 0o644);
    nobodys(&out, 0o600);
    let got = kernel.weir(&["get", &url, "-o", &out]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(fs::read(&out).unwrap() == body(1447));
    assert_eq!(fs::read(&beside).unwrap(), b"mine");
    let mode = fs::metadata(&out).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "as it was");
    folder.write("kept", b"before");
    let kept = folder.path("kept");
    nobodys(&kept, 0o444);
    let got = kernel.weir(&["get", &url, "-o", &kept]).end();
    let said = format!("weir: cannot write {kept}: Permission denied");
    assert!(got.code == Some(1) && got.stderr.contains(&said), "{got:?}");
    assert_eq!(fs::read(&kept).unwrap(), b"before");
}

#[test]
fn get_writes_to_standard_output_by_its_name() {
    let Some(kernel) = kernel() else { return };
    let _one = answering(&kernel, 8000, b"HTTP/1.1 200 OK\r\n\r\nhello");
    let url = url(KERNEL[0], 8000, "/");
    let got = kernel.weir(&["get", &url, "-o", "-"]).end();
    assert_eq!((got.code, &*got.stdout), (Some(0), "hello"), "{got:?}");
    let got = kernel.weir(&["get", &url, "-o", "-", "--json"]).end();
    assert_eq!(got.code, Some(2), "{got:?}");
    assert!(got.stderr.contains("give a file with -o"), "{got:?}");
}

/// No server gives the host an address.
#[test]
fn get_gives_up_altogether_in_time() {
    let Some(kernel) = kernel() else { return };
    for (source, whose) in [("dhcp", "DHCP server"), ("auto", "router")] {
        let words = ["get", "http://192.0.2.1/", "--link", "tap0", "-m", "0.5"];
        let all = [&words[..], &["--addr", source]].concat();
        let ended = kernel.weir_as_said(&all).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let said = ended.stderr.contains(whose) && ended.stderr.contains("within 0.5 s");
        assert!(said, "{ended:?}");
    }
}

#[test]
fn curl_has_what_serve_has() {
    let Some(kernel) = kernel_with(&["curl"]) else {
        return;
    };
    let folder = site("serve");
    folder.write("long.bin", &body(LONG));
    let server = kernel
        .weir(&["serve", &folder.path(""), "--port", "8080"])
        .until("ready");
    for at in OURS {
        // All by one connection, then all at once.
        let urls: Vec<String> = LENGTHS
            .map(|len| url(at, 8080, &format!("/{len}.bin")))
            .to_vec();
        let all: Vec<u8> = LENGTHS.into_iter().flat_map(body).collect();
        assert!(
            kernel.run(&format!("curl -sS {}", urls.join(" "))) == all,
            "{at}"
        );
        let outs = |at: usize| format!("-o {}", folder.path(&format!("out{at}")));
        let pairs: Vec<String> = (0..urls.len())
            .map(|at| format!("{} {}", outs(at), urls[at]))
            .collect();
        kernel.run(&format!(
            "curl -sS --parallel --parallel-immediate {}",
            pairs.join(" ")
        ));
        for (at, len) in LENGTHS.into_iter().enumerate() {
            let got = fs::read(folder.path(&format!("out{at}"))).unwrap();
            assert!(got == body(len), "{len}");
        }
    }
    let long = kernel.run(&format!("curl -sS {}", url(OURS[0], 8080, "/long.bin")));
    assert!(long == body(LONG));
    server.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""), "{ended:?}");
}

#[test]
fn serve_keeps_to_http_and_to_its_folder() {
    let Some(kernel) = kernel_with(&["curl"]) else {
        return;
    };
    let folder = site("serve-rules");
    folder.write("index.html", b"<p>hello");
    folder.write(".secret", b"no");
    fs::create_dir(folder.path("sub")).unwrap();
    fs::write(folder.path("sub/index.html"), b"below").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path("out")).unwrap();
    folder.write("mine", b"no");
    let mine = fs::Permissions::from_mode(0o600);
    fs::set_permissions(folder.path("mine"), mine).unwrap();
    let server = kernel
        .weir(&[
            "serve",
            &folder.path(""),
            "--json",
            "--metrics",
            "127.0.0.1:0",
        ])
        .until("ready");
    let at = format!("http://{}", OURS[0]);
    let curl = |arguments: &str| {
        let said = kernel.run(&format!("curl -sSi --path-as-is {arguments}"));
        String::from_utf8_lossy(&said).into_owned()
    };
    for (arguments, status, has) in [
        (format!("{at}/"), "200 OK", "<p>hello"),
        (format!("{at}/sub/?q"), "200 OK", "below"),
        (format!("{at}/sub?q"), "301 Moved", "Location: /sub/?q"),
        (
            format!("-I {at}/1448.bin"),
            "200 OK",
            "Content-Length: 1448",
        ),
        (
            format!("-r 1-3 {at}/index.html"),
            "206 Partial",
            "Content-Range: bytes 1-3/8",
        ),
        (format!("-r 99- {at}/index.html"), "416 Range", "bytes */8"),
        (format!("{at}/missing"), "404 Not Found", ""),
        (format!("{at}/.secret"), "404 Not Found", ""),
        (format!("{at}/out"), "404 Not Found", ""),
        (format!("{at}/mine"), "403 Forbidden", ""),
        (format!("{at}/../../../etc/passwd"), "400 Bad", ""),
        (format!("{at}/%2e%2e/%2e%2e/etc/passwd"), "400 Bad", ""),
        (format!("-X DELETE {at}/"), "405 Method", "Allow: GET, HEAD"),
        (format!("-d x=y {at}/"), "405 Method", "Allow: GET, HEAD"),
        (format!("-X GET -d x=y {at}/"), "413 Content", ""),
        (format!("-H Host: {at}/"), "400 Bad", ""),
    ] {
        let said = curl(&arguments);
        let first = said.lines().next().unwrap_or_default();
        assert!(
            first.contains(status) && said.contains(has),
            "{arguments}: {said}"
        );
        assert!(
            !said.contains("root:") && !said.ends_with("no"),
            "{arguments}: {said}"
        );
    }
    let modified = curl(&format!("-I {at}/"));
    let date = modified
        .lines()
        .find_map(|line| line.strip_prefix("Last-Modified: "));
    let date = date.unwrap().trim().to_owned();
    let mut again = testenv::program("curl").expect("the test has asked for it");
    again.args([
        "-sSi",
        "-H",
        &format!("If-Modified-Since: {date}"),
        &format!("{at}/"),
    ]);
    let again = kernel.host.output(again).unwrap().stdout;
    assert!(again.starts_with(b"HTTP/1.1 304 "), "{again:?}");
    let counted = ["404\"} 3\n", "304\"} 1\n"];
    let counted = counted.map(|end| format!("weir_serve_responses_total{{status=\"{end}"));
    server.until_metrics(&kernel.host, &counted.each_ref().map(String::as_str));
    server.signal(Signal::INT);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let last = ended.json();
    assert_eq!(
        (&last["status"], &last["target"]),
        (&304.into(), &"/".into())
    );
}

fn connect(kernel: &Kernel, port: u16) -> TcpStream {
    let stream = kernel
        .host
        .run(|| TcpStream::connect((OURS[0], port)))
        .unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// Clients that send a byte now and then keep no other from being served, and not
/// their own place for ever.
#[test]
fn slow_clients_harm_no_other() {
    const SLOW: usize = 1500;
    let Some(kernel) = kernel_with(&["curl"]) else {
        return;
    };
    let folder = open_folder("serve-slow");
    folder.write("index.html", b"here");
    let server = kernel
        .weir(&["serve", &folder.path(""), "--port", "8080"])
        .until("ready");
    let began = Instant::now();
    let mut slow: Vec<TcpStream> = (0..SLOW).map(|_| connect(&kernel, 8080)).collect();
    for (at, stream) in slow.iter_mut().enumerate() {
        let head = b"GET / HTTP/1.1\r\nHost: x\r\nX: y";
        stream.write_all(&head[..at % head.len()]).unwrap();
    }
    let page = kernel.run(&format!("curl -sS -m 5 {}", url(OURS[0], 8080, "/")));
    assert_eq!(page, b"here");
    // More of the head at the end of its time moves that no further.
    let (first, last) = (&mut slow[1], began + Duration::from_secs(60));
    let mut ended = false;
    while !ended && Instant::now() < last {
        thread::sleep(Duration::from_millis(500));
        ended = first.write_all(b"x").is_err();
    }
    assert!(ended, "a head has no time for ever");
    assert!(
        began.elapsed() >= Duration::from_secs(9),
        "a head has its time"
    );
    let page = kernel.run(&format!("curl -sS -m 5 {}", url(OURS[0], 8080, "/")));
    assert_eq!(page, b"here");
    server.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Requests sent without waiting for answers, and a connection that stays.
#[test]
fn requests_in_a_row_are_answered_in_order() {
    const ROUNDS: usize = 200;
    let Some(kernel) = kernel() else { return };
    let folder = open_folder("serve-row");
    folder.write("a", b"alpha");
    folder.write("b", &body(100_000));
    let server = kernel
        .weir(&["serve", &folder.path(""), "--port", "8080"])
        .until("ready");
    let mut stream = connect(&kernel, 8080);
    let one = "GET /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /b HTTP/1.1\r\nHost: x\r\n\r\n\
        GET /b HTTP/1.1\r\nHost: x\r\nRange: bytes=7-9\r\n\r\n";
    let mut asks = stream.try_clone().unwrap();
    let asking = thread::spawn(move || {
        asks.write_all(one.repeat(ROUNDS).as_bytes()).unwrap();
        asks.write_all(b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
    });
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    asking.join().unwrap();
    let part = &body(100_000)[7..10];
    let mut left = &all[..];
    let mut next = |has_body: bool| {
        let end = left
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap()
            + 4;
        let head = String::from_utf8(left[..end].to_vec()).unwrap();
        let len = head.split("Content-Length: ").nth(1).unwrap();
        let len: usize = len.lines().next().unwrap().parse().unwrap();
        let len = if has_body { len } else { 0 };
        let found = (head, left[end..end + len].to_vec());
        left = &left[end + len..];
        found
    };
    for _ in 0..ROUNDS {
        assert_eq!(next(true).1, b"alpha");
        let (head, none) = next(false);
        assert!(head.contains("Content-Length: 100000") && none.is_empty());
        let (head, bytes) = next(true);
        assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
        assert_eq!(bytes, part);
    }
    assert!(next(true).0.starts_with("HTTP/1.1 404 "));
    assert!(left.is_empty());
    server.signal(Signal::TERM);
    assert_eq!(server.end().code, Some(0));
}

#[test]
fn a_server_under_load_ends_on_a_signal() {
    let Some(kernel) = kernel() else { return };
    let folder = open_folder("serve-load");
    folder.write("long.bin", &vec![7; 64 << 20]);
    let server = kernel
        .weir(&["serve", &folder.path(""), "--port", "8080"])
        .until("ready");
    let mut readers: Vec<TcpStream> = (0..50).map(|_| connect(&kernel, 8080)).collect();
    for stream in &mut readers {
        stream
            .write_all(b"GET /long.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        // It has begun, and most take nothing more.
        stream.read_exact(&mut [0; 100]).unwrap();
    }
    let began = Instant::now();
    server.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

/// The tutorial's block on hosts, line by line, as its reader types it.
#[test]
fn the_tutorial_is_right() {
    if !testenv::root() || !testenv::tun() || !testenv::programs(&["sh", "ip", "curl", "python3"]) {
        return;
    }
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let tutorial = fs::read_to_string(root.join("docs/tutorials/sockets.md")).unwrap();
    let mut blocks = tutorial.split("```console\n").skip(1);
    let block = blocks.find(|block| block.contains("weir serve")).unwrap();
    let block = block.split("```").next().unwrap();
    let lines: Vec<String> = block
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .map(|line| line.replace("sudo ", "").replace("$USER", "root"))
        .collect();
    // A background job says when it is ready, which its reader sees; of the
    // other's it is seen by asking.
    let (served, asked) = lines
        .iter()
        .partition::<Vec<_>, _>(|line| line.ends_with(" &"));
    let [served, site] = served[..] else {
        panic!("{served:?}");
    };
    let (setup, asked): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|line| line.starts_with("ip "));
    let lab = weir_lab::net::Lab::new();
    let host = lab.host("reader").unwrap();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_weir"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let shell = |line: &str| {
        let mut command = testenv::program("sh").expect("the test has asked for it");
        command
            .args(["-c", line])
            .current_dir(root)
            .env("PATH", &path);
        command
    };
    for line in setup {
        let done = host.output(shell(line)).unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
    }
    let start = |line: &str| {
        let line = format!("exec {}", line.trim_end_matches(" &"));
        Running::start(&host, shell(&line), &[])
    };
    let server = start(served);
    let server = server.until("ready");
    let page = fs::read(root.join("docs/tutorials/sockets.md")).unwrap();
    let _other = start(site);
    let began = Instant::now();
    while host
        .run(|| std::net::TcpStream::connect("192.0.2.1:8000"))
        .is_err()
    {
        assert!(began.elapsed() < live::WAIT_MAX);
        thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut server = Some(server);
    for line in asked {
        if line == "kill %1" {
            let server = server.take().unwrap();
            server.signal(Signal::TERM);
            assert_eq!(server.end().code, Some(0));
            continue;
        }
        let done = host.output(shell(line)).unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
        if line.starts_with("curl") {
            assert!(done.stdout == page, "{line}")
        } else {
            assert!(
                String::from_utf8_lossy(&done.stdout).contains("echo.rs"),
                "{line}"
            )
        }
    }
}
