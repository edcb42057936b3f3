use super::*;
use std::cell::RefCell;
use std::task::Waker;

/// Bytes that are sent at once.
const BLOCK_LEN: usize = 4096;

/// A client whose bytes come in pieces, and which takes this many at a time.
struct Client {
    says: RefCell<VecDeque<Vec<u8>>>,
    takes: usize,
    took: RefCell<Vec<u8>>,
    /// How much more it takes.
    room: RefCell<usize>,
}

impl Client {
    fn says(pieces: &[&[u8]]) -> Client {
        Client {
            says: RefCell::new(pieces.iter().map(|piece| piece.to_vec()).collect()),
            takes: usize::MAX,
            took: RefCell::default(),
            room: RefCell::new(usize::MAX),
        }
    }
}

impl Pipe for Client {
    fn poll_read(&self, _: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(bytes) = self.says.borrow_mut().pop_front() else {
            return Poll::Pending;
        };
        out[..bytes.len()].copy_from_slice(&bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write(&self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut room = self.room.borrow_mut();
        let count = bytes.len().min(self.takes).min(*room);
        if count == 0 {
            return Poll::Pending;
        }
        *room -= count;
        self.took.borrow_mut().extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }
}

struct Site {
    path: std::path::PathBuf,
    folder: Folder,
}

impl Site {
    fn new(name: &str) -> Site {
        let path = std::env::temp_dir().join(format!("weir-http-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("a"), b"alpha").unwrap();
        std::fs::write(path.join("b"), vec![b'b'; 3 * BLOCK_LEN + 5]).unwrap();
        let folder = Folder::open(&path).unwrap();
        Site { path, folder }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn turn(site: &Site, connection: &mut Connection, client: &Client, now: Instant) -> Turn {
    let mut common = Common {
        folder: &site.folder,
        block: vec![0; 1 << 16],
        block_len: BLOCK_LEN,
        ends: false,
        log: &|_| {},
        logs: false,
    };
    let mut context = Context::from_waker(Waker::noop());
    connection.step(client, &mut context, now, &mut common)
}

fn run(site: &Site, connection: &mut Connection, client: &Client, now: Instant) -> Turn {
    for _ in 0..10_000 {
        match turn(site, connection, client, now) {
            Turn::GoesOn => {}
            other => return other,
        }
    }
    panic!("it has no end");
}

fn bodies(took: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let (mut left, mut all) = (took, Vec::new());
    while !left.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(used) = head.parse(left).unwrap() else {
            panic!("half a head");
        };
        let len = super::super::values(head.headers, "content-length").next();
        let len: usize = std::str::from_utf8(len.unwrap()).unwrap().parse().unwrap();
        all.push((head.code.unwrap(), left[used..used + len].to_vec()));
        left = &left[used + len..];
    }
    all
}

#[test]
fn requests_in_a_row_are_answered_in_order_however_they_are_cut() {
    let site = Site::new("pipelined");
    let asked = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n\
        GET /none HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\nRange: bytes=1-2\r\n\r\n";
    for cut in [1, 7, 40, asked.len()] {
        for takes in [1000, 70_000, usize::MAX] {
            let pieces: Vec<&[u8]> = asked.chunks(cut).collect();
            let client = Client {
                takes,
                ..Client::says(&pieces)
            };
            let mut connection = Connection::new(Instant::now());
            let turn = run(&site, &mut connection, &client, Instant::now());
            assert!(matches!(turn, Turn::Waits), "{turn:?}");
            let found = bodies(&client.took.borrow());
            let statuses: Vec<u16> = found.iter().map(|(status, _)| *status).collect();
            assert_eq!(statuses, [200, 200, 404, 206]);
            assert_eq!(found[0].1, b"alpha");
            assert!(found[1].1 == vec![b'b'; 3 * BLOCK_LEN + 5]);
            assert_eq!(found[3].1, b"lp");
        }
    }
}

/// A client that takes all at once has its turns, like the others.
#[test]
fn a_long_file_takes_turns() {
    let site = Site::new("turns");
    std::fs::write(site.path.join("long"), vec![b'l'; 40 * BLOCK_LEN]).unwrap();
    let client = Client::says(&[b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"]);
    let mut connection = Connection::new(Instant::now());
    let mut turns = 0;
    while let Turn::GoesOn = turn(&site, &mut connection, &client, Instant::now()) {
        turns += 1;
        assert!(client.took.borrow().len() < (turns * TURN + 1) * BLOCK_LEN + 1000);
    }
    assert!(turns >= 2, "{turns} turns");
    assert!(bodies(&client.took.borrow())[0].1 == vec![b'l'; 40 * BLOCK_LEN]);
}

#[test]
fn a_head_that_comes_slowly_has_one_deadline_and_an_answer_a_new_one_by_progress() {
    let site = Site::new("slow");
    let began = Instant::now();
    let mut connection = Connection::new(began);
    assert_eq!(connection.deadline(), began + HEAD_TIME);
    let second = began + Duration::from_secs(1);
    let client = Client::says(&[b"GET /b HTTP/1.1\r\nX: "]);
    run(&site, &mut connection, &client, second);
    let due = connection.deadline();
    assert_eq!(due, second + HEAD_TIME);
    // Byte after byte moves it no further.
    for later in 2..9 {
        client.says.borrow_mut().push_back(b"y"[..].to_vec());
        run(
            &site,
            &mut connection,
            &client,
            began + Duration::from_secs(later),
        );
        assert_eq!(connection.deadline(), due);
    }
    let mut connection = Connection::new(began);
    let client = Client::says(&[b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"]);
    *client.room.borrow_mut() = 100;
    assert!(matches!(
        run(&site, &mut connection, &client, second),
        Turn::Waits
    ));
    assert!(connection.is_answering());
    assert_eq!(connection.deadline(), second + IO_TIMEOUT);
    // What takes nothing has no more time.
    run(&site, &mut connection, &client, second + HEAD_TIME);
    assert_eq!(connection.deadline(), second + IO_TIMEOUT);
    *client.room.borrow_mut() = usize::MAX;
    run(&site, &mut connection, &client, second + HEAD_TIME);
    assert!(!connection.is_answering());
    assert_eq!(bodies(&client.took.borrow()).len(), 1);
}

/// The block of a client that takes nothing is freed, and read again when it takes more.
#[test]
fn the_block_of_a_client_that_takes_nothing_is_freed() {
    let site = Site::new("stalled");
    let long: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(site.path.join("long"), &long).unwrap();
    let client = Client::says(&[b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"]);
    let now = Instant::now();
    let mut connection = Connection::new(now);
    for room in [0, 100, 3000, 5000, 100_000, 1, 150_000] {
        *client.room.borrow_mut() = room;
        assert!(matches!(
            run(&site, &mut connection, &client, now),
            Turn::Waits
        ));
        connection.stall();
        assert!(connection.out.capacity() < 1000 && connection.is_answering());
        connection.stall();
    }
    *client.room.borrow_mut() = usize::MAX;
    run(&site, &mut connection, &client, now);
    assert!(!connection.is_answering());
    assert!(bodies(&client.took.borrow())[0].1 == long);
}

#[test]
fn what_is_wrong_is_answered_and_ends_the_connection() {
    let site = Site::new("wrong");
    let long = vec![b'x'; super::super::HEAD_LEN_MAX + 1];
    let with = |begin: &[u8], end: &[u8]| [begin, &long, end].concat();
    let long_target = with(b"GET /", b"");
    let long_field = with(b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"\r\n\r\n");
    let long_path = format!("GET /{} HTTP/1.0\r\n\r\n", "x".repeat(4096)).into_bytes();
    for (asked, status) in [
        (&b"nonsense\r\n\r\n"[..], 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\n\r\n", 505),
        (b"GET /a HTTP/1.0\r\n\r\n", 200),
        (
            b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
            405,
        ),
        (&long, 431),
        (&long_target, 414),
        (&long_path, 414),
        (&long_field, 431),
    ] {
        let pieces: Vec<&[u8]> = asked.chunks(9000).collect();
        let client = Client::says(&pieces);
        let mut connection = Connection::new(Instant::now());
        let turn = run(&site, &mut connection, &client, Instant::now());
        assert!(matches!(turn, Turn::Over), "{status}: {turn:?}");
        assert_eq!(bodies(&client.took.borrow())[0].0, status);
    }
}

/// A head is not parsed anew with each byte that comes: all connections wait for it.
#[test]
fn heads_that_come_byte_by_byte_are_parsed_a_few_times() {
    let site = Site::new("bytes");
    let folded = format!("GET /a HTTP/1.1\r\nHost: x\r\nX: {}", "y".repeat(60_000));
    let head = folded + "\r\nConnection: close\r\n\r\n";
    let blank = "\r\n".repeat(20_000) + "GET /a HTTP/1.0\n\n";
    for text in [&head, &blank] {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        let client = Client::says(&pieces);
        let now = Instant::now();
        let mut connection = Connection::new(now);
        assert!(matches!(
            run(&site, &mut connection, &client, now),
            Turn::Over
        ));
        assert_eq!(bodies(&client.took.borrow()), [(200, b"alpha".to_vec())]);
    }
    let (mut parsed, mut count) = (0, 0);
    for len in 1..=head.len() {
        if worth_parsing(&head.as_bytes()[..len], parsed, len - 1) {
            (parsed, count) = (len, count + 1);
        }
    }
    assert!(parsed == head.len() && count < 20, "{count} times");
    // What is wrong is said at once, also without a line's end.
    let client = Client::says(&[b"\x16\x03\x01\x02"]);
    let mut connection = Connection::new(Instant::now());
    run(&site, &mut connection, &client, Instant::now());
    assert_eq!(bodies(&client.took.borrow())[0].0, 400);
}

/// Also where many connections have short blocks: only what a client takes first is read twice.
#[test]
fn the_block_of_a_client_that_takes_more_is_kept() {
    let site = Site::new("kept");
    std::fs::write(site.path.join("long"), vec![b'l'; 20 * BLOCK_LEN]).unwrap();
    let client = Client::says(&[b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"]);
    let now = Instant::now();
    let mut connection = Connection::new(now);
    *client.room.borrow_mut() = 0;
    let mut released = 0;
    for taken in 0..36 {
        run(&site, &mut connection, &client, now);
        let file = connection.file.as_ref();
        let is_kept = file.is_none_or(|rest| rest.read_len > 0);
        assert!(!is_kept || taken > 1, "{taken}");
        released += usize::from(!is_kept);
        *client.room.borrow_mut() = BLOCK_LEN / 2 + 10;
    }
    assert!(
        (2..8).contains(&released),
        "{released} blocks were read twice"
    );
}
