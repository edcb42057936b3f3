use super::*;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use weir_monitor::Meta;

/// Longest wait for an answer: of a view that is ended six times.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("weir-views-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A frame of UDP to this port.
fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend([
        8,
        0,
        0x45,
        0,
        0,
        28 + payload.len() as u8,
        0,
        0,
        0,
        0,
        64,
        17,
        0,
        0,
    ]);
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 8 + payload.len() as u8, 0, 0]);
    bytes.extend(payload);
    // Padding, which is no payload.
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

fn kept(number: u64, bytes: &[u8]) -> StoredFrame<'_> {
    StoredFrame {
        number,
        bytes,
        meta: Meta {
            len: bytes.len() as u32,
            time_ns: None,
            linktype: LinkType::EN10MB,
            interface: 0,
            is_outgoing: None,
            lost_before: 0,
        },
    }
}

/// What the view of a name says of a frame in the end; `None` if none says anything.
fn said(views: &mut Views, frame: &StoredFrame<'_>) -> Option<(String, Said)> {
    let began = Instant::now();
    loop {
        match views.look(frame) {
            Look::Said(name, said) => return Some((name.to_owned(), said.clone())),
            Look::Nothing => return None,
            Look::Asked(_) => {}
        }
        assert!(began.elapsed() < WAIT_MAX, "no answer");
        std::thread::sleep(Duration::from_millis(2));
        views.take_answers();
    }
}

fn failure(views: &mut Views, frame: &StoredFrame<'_>) -> String {
    match said(views, frame) {
        Some((_, Said::Failed(why))) => why,
        other => panic!("no failure: {other:?}"),
    }
}

fn has_python() -> bool {
    weir_lab::testenv::programs(&["python3"])
}

const VIEW: &str = "
name = 'Greeting'
match = 'udp port 4242'
def view(payload):
    if payload[0] == 0:
        return None
    if payload[0] == 1:
        return 'short'
    return f'of {len(payload)} bytes', [
        ('First', payload[0], 0, 1, [('Half', payload[0] / 2)]),
        ('Text \\x1b', payload[1:].decode(), 1, 10**30),
    ]
";

#[test]
fn a_view_gets_the_payload_of_the_frames_that_it_matches() {
    if !has_python() {
        return;
    }
    let folder = Folder::new("payload");
    let first = folder.write("a.py", VIEW);
    folder.write(
        "b.py",
        "match = 'udp'\ndef view(payload):\n    return 'second'\n",
    );
    folder.write("other.txt", "no view");
    // A folder stands for its files.
    let mut views = Views::load(std::slice::from_ref(&folder.0)).unwrap();
    let bytes = frame(4242, b"\x08hello");
    let fields = vec![
        process::ViewField(0, "First".into(), "8".into(), 0, 1),
        process::ViewField(1, "Half".into(), "4.0".into(), 0, 0),
        process::ViewField(0, "Text \x1b".into(), "hello".into(), 1, 6),
    ];
    let expected = Said::Fields("of 6 bytes".into(), fields);
    assert!(matches!(
        views.look(&kept(0, &bytes)),
        Look::Asked("Greeting")
    ));
    let greeting = said(&mut views, &kept(0, &bytes));
    assert_eq!(greeting, Some(("Greeting".into(), expected)));
    let text = |number, port, payload: &[u8], views: &mut Views| {
        let bytes = frame(port, payload);
        said(views, &kept(number, &bytes)).map(|(name, said)| match said {
            Said::Fields(summary, _) => format!("{name}: {summary}"),
            said => format!("{name}: {said:?}"),
        })
    };
    // The next file is asked for what the first one does not know, and for what it does not match.
    assert_eq!(
        text(1, 4242, b"\0", &mut views).as_deref(),
        Some("b: second")
    );
    assert_eq!(
        text(2, 4242, b"\x01", &mut views).as_deref(),
        Some("Greeting: short")
    );
    assert_eq!(
        text(3, 4243, b"\x01", &mut views).as_deref(),
        Some("b: second")
    );
    assert_eq!(text(4, 4242, b"", &mut views), None, "without a payload");
    let mut alone = Views::load(&[first]).unwrap();
    assert_eq!(text(0, 4243, b"x", &mut alone), None);
    assert_eq!(text(1, 4242, b"\0", &mut alone), None);
    // A frame of the same number, after the numbers began anew.
    assert!(matches!(alone.look(&kept(9, &bytes)), Look::Asked(_)));
    alone.restart();
    assert_eq!(
        text(9, 4242, b"\x01", &mut alone).as_deref(),
        Some("Greeting: short")
    );
}

#[test]
fn what_a_view_does_wrong_is_said_and_the_next_frame_is_asked_for() {
    if !has_python() {
        return;
    }
    let folder = Folder::new("wrong");
    let path = folder.write(
        "wrong.py",
        "import os, sys, time
match = 'udp'
def view(payload):
    what = payload[0]
    if what == 1: raise ValueError('no \\udc80 text')
    if what == 2: return 'a' * 10**10
    if what == 3: return 'many', ((1, 'x' * 10**6) for _ in iter(int, 1))
    if what == 4: return 4
    if what == 5: return 'bad', [('name',)]
    if what == 6: sys.exit(3)
    if what == 7: print('noise'); sys.stdin.read(); return input() if False else 'quiet'
    if what == 8: os._exit(7)
    if what == 9:
        # The pipe of the answers is one of these.
        for number in range(3, 30):
            try:
                while True: os.write(number, b'x' * 70000)
            except OSError: pass
    if what == 10: time.sleep(1000)
    return 'fine'
",
    );
    let mut views = Views::load(&[path]).unwrap();
    let began = Instant::now();
    for (what, words) in [
        (1, "wrong.py:5: ValueError: no ? text"),
        (2, "wrong.py:6: MemoryError"),
        (
            4,
            "wrong.py: TypeError: view returns None, a summary, or (summary, fields), not 4",
        ),
        (
            5,
            "wrong.py: TypeError: a field is (name, value), (name, value, start, end) or",
        ),
        (6, "wrong.py:10: SystemExit: 3"),
        (8, "wrong.py: ended its python3 with status 7"),
        (9, "wrong.py: said more than 1048576 bytes"),
        (10, "wrong.py: took longer than 2 s"),
    ] {
        let bytes = frame(1, &[what]);
        let why = failure(&mut views, &kept(u64::from(what) * 2, &bytes));
        assert!(why.contains(words), "{what}: {why}");
        let bytes = frame(1, &[0]);
        let next = said(&mut views, &kept(u64::from(what) * 2 + 1, &bytes));
        let fine = Said::Fields("fine".into(), Vec::new());
        assert_eq!(next, Some(("wrong".into(), fine)), "after {what}");
    }
    assert!(began.elapsed() < WAIT_MAX);
    let bytes = frame(1, &[3]);
    match said(&mut views, &kept(100, &bytes)) {
        Some((_, Said::Fields(_, fields))) => {
            assert_eq!(fields.len(), 500);
            assert_eq!(fields[0].2.chars().count(), 401);
        }
        other => panic!("{other:?}"),
    }
    let bytes = frame(1, &[7]);
    let quiet = said(&mut views, &kept(101, &bytes)).unwrap().1;
    assert_eq!(quiet, Said::Fields("quiet".into(), Vec::new()));
}

#[test]
fn a_view_that_ends_again_and_again_is_off() {
    if !has_python() {
        return;
    }
    let folder = Folder::new("off");
    let text = "import os\nmatch = 'udp'\ndef view(payload):\n    os._exit(1)\n";
    let mut views = Views::load(&[folder.write("off.py", text)]).unwrap();
    let bytes = frame(1, b"x");
    for number in 0..=u64::from(process::RESTARTS_MAX) {
        let why = failure(&mut views, &kept(number, &bytes));
        assert!(why.contains("ended its python3"), "{number}: {why}");
    }
    let why = failure(&mut views, &kept(100, &bytes));
    assert!(why.contains("off after 5 new starts"), "{why}");
}

/// The end of the monitor waits for no view.
#[test]
fn a_hung_view_ends_with_the_monitor() {
    if !has_python() {
        return;
    }
    let folder = Folder::new("hung");
    let text = "match = 'udp'\ndef view(payload):\n    while True: pass\n";
    let mut views = Views::load(&[folder.write("hung.py", text)]).unwrap();
    let bytes = frame(1, b"x");
    for number in 0..200 {
        views.look(&kept(number, &bytes));
    }
    let began = Instant::now();
    drop(views);
    assert!(
        began.elapsed() < Duration::from_millis(1_900),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_bad_file_is_refused_with_its_line() {
    if !has_python() {
        return;
    }
    let folder = Folder::new("bad");
    let refusal = |path: &Path| match Views::load(&[path.to_owned()]) {
        Ok(_) => panic!("{} is accepted", path.display()),
        Err(error) => error.to_string(),
    };
    for (text, words) in [
        (
            "match = 'udp'\ndef view(payload)\n",
            "bad.py:2: SyntaxError: expected ':'",
        ),
        ("import nowhere_at_all\n", "bad.py:1: ModuleNotFoundError"),
        ("def view(payload): pass\n", "`match` must be a text"),
        ("match = 'udp'\n", "`view` must be a function"),
        ("match = 'udp prot 5'\ndef view(p): pass\n", "^^^^"),
        (
            "import os\nos._exit(4)\n",
            "ended its python3 with status 4",
        ),
    ] {
        let why = refusal(&folder.write("bad.py", text));
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(refusal(Path::new("/nonexistent.py")).contains("No such file"));
    assert!(refusal(Path::new("/dev/zero")).contains("no file"));
    let path = folder.write("open.py", VIEW);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o646)).unwrap();
    assert!(refusal(&path).contains("chmod go-w"), "{}", refusal(&path));
    let many: Vec<PathBuf> = (0..17).map(|_| path.clone()).collect();
    assert!(Views::load(&many).is_err_and(|error| error.to_string().contains("more than 16")));
}

/// Neither of its own rights nor of root's is a file's view that belongs to another user.
#[test]
fn a_view_has_the_rights_of_its_files_owner_and_never_roots() {
    if !has_python() || !weir_lab::testenv::root() {
        return;
    }
    let folder = Folder::new("rights");
    let text = "import os\nmatch = 'udp'\ndef view(payload):\n    \
                return f'{os.getuid()} {os.getgid()} {os.getgroups()} {len(os.environ)}'\n";
    let path = folder.write("rights.py", text);
    let bytes = frame(1, b"x");
    for (owner, expected) in [(0, "65534 65534 []"), (4321, "4321 4321 []")] {
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        let mut views = Views::load(std::slice::from_ref(&path)).unwrap();
        let said = said(&mut views, &kept(0, &bytes)).unwrap().1;
        let Said::Fields(summary, _) = said else {
            panic!("{said:?}")
        };
        assert!(summary.starts_with(expected), "{summary}");
    }
}

#[test]
fn the_example_decodes_pup() {
    if !has_python() {
        return;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pup_view.py");
    let folder = Folder::new("example");
    let path = folder.write("pup.py", &std::fs::read_to_string(example).unwrap());
    let mut views = Views::load(&[path]).unwrap();
    // Its first EtherType is no longer one, but a length.
    for (number, kind) in [(0, 0x02), (1, 0x0a)] {
        let mut bytes = vec![0; 12];
        bytes.extend([kind, 0, 0, 26, 0x10, 1, 0, 0, 0, 7]);
        bytes.extend([0o12, 0o34, 0, 0, 0, 5, 0o12, 0o33, 0, 0, 1, 0]);
        bytes.extend(*b"hey!\xff\xff");
        match said(&mut views, &kept(number, &bytes)) {
            Some((name, Said::Fields(summary, fields))) => {
                assert_eq!((&*name, &*summary), ("Pup", "12#33#400 > 12#34#5 EchoMe"));
                assert_eq!(fields[7].2, "4 bytes");
            }
            other => panic!("{other:?}"),
        }
    }
}
