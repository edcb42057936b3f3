use super::server::{MonitorRequest, REQUESTS_MAX, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const TOKEN: &str = "0123456789abcdef";

/// A server whose monitor has this update.
fn server(news: &str) -> (Server, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (requests, asked) = sync_channel(REQUESTS_MAX);
    let names = ["Monitor.Example".to_owned()];
    let server = Server::start(listener, TOKEN, &names, requests).unwrap();
    let news: Arc<str> = Arc::from(news);
    // It ends with the server.
    std::thread::spawn(move || {
        for ask in asked {
            if let MonitorRequest::Update(waiting) = ask {
                let _ = waiting.send(Arc::clone(&news));
            }
        }
    });
    (server, at)
}

/// The whole answer to a request with these fields.
fn ask(at: SocketAddr, line: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    write!(
        stream,
        "{line} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn status(answer: &str) -> u16 {
    let word = answer.split(' ').nth(1);
    word.and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn nothing_is_shown_without_the_token() {
    let (_server, at) = server("{\"secret\":1}");
    let host = "Host: localhost\r\n";
    for path in [
        "/",
        "/page.js",
        "/state.json",
        "/events",
        "/capture.pcapng",
        "/frames.json",
        "/frame.json?number=1",
        "/none",
    ] {
        for field in [
            "",
            "Authorization: Bearer 0123456789abcdee\r\n",
            "Authorization: Bearer 0123456789abcdef0\r\n",
            "Authorization: Bearer \r\n",
            "Cookie: weir-1=0123456789abcdef\r\n",
        ] {
            let answer = ask(at, &format!("GET {path}"), &format!("{host}{field}"));
            assert_eq!(status(&answer), 401, "{path} {field}: {answer}");
            assert!(!answer.contains("secret"), "{answer}");
        }
    }
    assert_eq!(status(&ask(at, "GET /?token=0123456789abcdee", host)), 401);
    assert_eq!(
        status(&ask(at, "GET /state.json?token=0123456789abcdef", host)),
        401
    );
}

#[test]
fn the_address_with_the_token_sets_a_cookie_that_shows_the_page() {
    let (_server, at) = server("{\"frames\":7}");
    let host = "Host: 127.0.0.1:1\r\n";
    let answer = ask(at, &format!("GET /?token={TOKEN}"), host);
    assert_eq!(status(&answer), 303, "{answer}");
    let lower = answer.to_lowercase();
    assert!(lower.contains("location: /\r\n"), "{answer}");
    let cookie = lower.split("set-cookie: ").nth(1).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    assert!(
        cookie.starts_with(&format!("weir-{}=", at.port())),
        "{cookie}"
    );
    assert!(lower.contains("httponly") && lower.contains("samesite=lax"));
    let fields = format!("{host}Cookie: other=1; {cookie}\r\n");
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/state.json", "application/json"),
    ] {
        let answer = ask(at, &format!("GET {path}"), &fields);
        assert_eq!(status(&answer), 200, "{path}: {answer}");
        assert!(
            answer.contains(&format!("content-type: {kind}")),
            "{answer}"
        );
        assert!(answer.contains("default-src 'none'"), "{answer}");
        assert!(answer.contains("no-store"), "{answer}");
    }
    assert!(ask(at, "GET /state.json", &fields).contains("{\"frames\":7}"));
    assert_eq!(status(&ask(at, "GET /none", &fields)), 404);
    assert_eq!(status(&ask(at, "POST /state.json", &fields)), 405);
}

#[test]
fn names_in_events_end_no_element_of_the_page() {
    let (_server, at) = server("{\"source\":\"</script><b>\"}");
    let fields = format!("Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n");
    let page = ask(at, "GET /", &fields);
    let news = "{\"source\":\"\\u003c/script>\\u003cb>\"}";
    assert!(page.contains(news) && !page.contains("<b>"), "{page}");
}

#[test]
fn names_of_other_sites_are_refused() {
    let (_server, at) = server("{}");
    let asked = |host: &str| {
        let fields = format!("{host}Authorization: Bearer {TOKEN}\r\n");
        status(&ask(at, "GET /state.json", &fields))
    };
    for known in [
        "localhost:8080",
        "192.0.2.1:8080",
        "[::1]:8080",
        "monitor.example",
    ] {
        assert_eq!(asked(&format!("Host: {known}\r\n")), 200, "{known}");
    }
    for unknown in [
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
    ] {
        assert_eq!(asked(&format!("Host: {unknown}\r\n")), 403, "{unknown}");
    }
    // Without a name, or with a wrong one.
    for none in ["", "Host: \r\n", "Host: a b\r\n"] {
        assert!(matches!(asked(none), 400 | 403), "{none}");
    }
}

#[test]
fn events_are_sent_on_changes_and_streams_are_limited() {
    let (server, at) = server("{}");
    assert!(!server.is_watched());
    let open = || {
        let mut stream = TcpStream::connect(at).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        write!(
            stream,
            "GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        )
        .unwrap();
        stream
    };
    let until = |stream: &mut TcpStream, wanted: &str| {
        let mut text = String::new();
        while !text.contains(wanted) {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "{text}");
            text += std::str::from_utf8(&buffer[..count]).unwrap();
        }
        text
    };
    let mut first = open();
    let text = until(&mut first, "data: {}");
    assert!(text.contains("text/event-stream"), "{text}");
    assert!(server.is_watched());
    server.publish(Arc::from("{\"news\":1}"));
    until(&mut first, "data: {\"news\":1}\n");
    let mut all = vec![first];
    for _ in 1..32 {
        let mut stream = open();
        until(&mut stream, "data: ");
        all.push(stream);
    }
    let mut refused = open();
    assert!(until(&mut refused, "try again").contains(" 503 "));
    drop(server);
    // Ended: no browser waits for ever.
    let mut rest = Vec::new();
    all[0].read_to_end(&mut rest).unwrap_or_default();
}
