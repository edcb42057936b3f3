//! `weir broker` as a user of its own, with the capabilities that the unit gives
//! it.

mod common;
#[path = "common/live.rs"]
mod live;

use live::{Net, Running, net};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use weir_lab::net::Signal;
use weir_lab::net::unprivileged::{self, Capabilities, NOBODY};
use weir_lab::wait;

/// The broker's user, and others of no name.
const WEIR: u32 = 64_990;
const OTHER: u32 = 64_991;

const POLICY: &str = "[[grant]]\nusers = [65534]\ninterfaces = ['eth0']\npriority_max = 10\n\
    ports_max = 4\nmemory_max = '32 MiB'\ntake = true\nsend = { addresses = ['10.0.0.77'] }\n";

/// The capabilities of the unit.
fn capabilities() -> Capabilities {
    let unit = include_str!("../../../systemd/weir-broker.service");
    let value = |key: &str| {
        let mut lines = unit.lines().filter_map(|line| line.split_once('='));
        lines.find(|line| line.0 == key).unwrap().1
    };
    let ambient = value("AmbientCapabilities");
    assert_eq!(ambient, value("CapabilityBoundingSet"));
    let names = ambient.split(' ').map(|name| {
        let name = name.strip_prefix("CAP_").unwrap();
        Capabilities::from_name(name).unwrap()
    });
    names.collect()
}

/// A network, and a folder below one of root's alone.
struct Bed {
    net: Net,
    folder: PathBuf,
}

impl Bed {
    /// `None` without root.
    fn new(name: &str) -> Option<Bed> {
        let net = net()?;
        let folder = PathBuf::from(format!("/run/weir-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let bed = Bed { net, folder };
        bed.policy(POLICY);
        Some(bed)
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// The policy, as the package installs it.
    fn policy(&self, text: &str) {
        let path = self.path("policy.toml");
        fs::write(&path, text).unwrap();
        chown(&path, Some(0), Some(WEIR)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    }

    fn places(&self) -> [String; 4] {
        let (socket, keep) = (self.path("broker/socket"), self.path("broker"));
        ["--socket".into(), socket, "--keep".into(), keep]
    }

    fn arguments(&self, first: &[&str]) -> Vec<String> {
        let first = first.iter().map(|word| (*word).to_owned());
        std::iter::once("broker".to_owned())
            .chain(first)
            .chain(self.places())
            .collect()
    }

    /// Runs `weir broker` as root.
    fn as_root(&self, words: &[&str]) -> live::Ended {
        let arguments = self.arguments(words);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.net.weir(&arguments).end()
    }

    fn prepare(&self) -> live::Ended {
        self.as_root(&["--prepare", &WEIR.to_string()])
    }

    /// Starts `weir broker` as a user with these capabilities.
    fn as_user(&self, uid: u32, kept: Capabilities, words: &[&str]) -> Running {
        let arguments = self.arguments(words);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let weir = unprivileged::command_with(env!("CARGO_BIN_EXE_weir"), uid, kept);
        Running::start(&self.net.b, weir, &arguments)
    }

    fn start(&self) -> Running {
        let config = self.path("policy.toml");
        self.as_user(WEIR, capabilities(), &["--config", &config])
    }

    fn listen(&self, uid: u32, words: &[&str]) -> Running {
        let socket = self.path("broker/socket");
        let listen = [&["listen", "eth0", "--json", "--socket", &socket], words].concat();
        let weir = unprivileged::command_as(env!("CARGO_BIN_EXE_weir"), uid);
        Running::start(&self.net.b, weir, &listen)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let cleaned = self.as_root(&["--clean"]);
        let removed = fs::remove_dir_all(&self.folder);
        if !std::thread::panicking() {
            assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
            removed.unwrap();
        }
    }
}

fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn line<'a>(status: &'a str, key: &str) -> &'a str {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|line| line.0 == key)
        .map_or("", |line| line.1.trim())
}

/// The process's effective and permitted capabilities.
fn held(pid: u32) -> [Capabilities; 2] {
    let status = status(pid);
    ["CapEff", "CapPrm"].map(|key| {
        let bits = u64::from_str_radix(line(&status, key), 16).unwrap();
        Capabilities::from_bits_retain(bits)
    })
}

/// The process's only child.
fn child(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap();
    let mut children = children.split_whitespace();
    let child = children.next().unwrap().parse().unwrap();
    assert_eq!(children.next(), None);
    child
}

#[test]
fn it_serves_users_and_has_few_capabilities() {
    let Some(bed) = Bed::new("user-serves") else {
        return;
    };
    for _ in 0..2 {
        let prepared = bed.prepare();
        assert_eq!(prepared.code, Some(0), "{prepared:?}");
    }
    let broker = bed.start().until("listens on").until("ready");
    let own = Capabilities::BPF | Capabilities::NET_ADMIN | Capabilities::NET_RAW;
    assert_eq!(held(broker.id()), [own; 2]);
    let helper = child(broker.id());
    assert!(held(helper)[1].contains(Capabilities::SYS_ADMIN));
    // An owner of root: no process of the broker's user reads its memory.
    let memory = fs::metadata(format!("/proc/{helper}/mem")).unwrap();
    assert_eq!(memory.uid(), 0);

    let listen = bed.listen(NOBODY, &["udp", "--take", "--count", "10"]);
    let listen = listen.until("which takes");
    bed.net.send(5000, 10);
    let ended = listen.end();
    assert_eq!(ended.json()["frames"], 10, "{ended:?}");
    let refused = bed.listen(OTHER, &["udp"]).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("grants user 64991 nothing"),
        "{refused:?}"
    );
    // The broker's user is an ordinary user, too.
    let refused = bed.listen(WEIR, &["udp"]).end();
    assert_eq!(refused.code, Some(2), "{refused:?}");

    // Sends, within the grant: answers.
    let socket = bed.path("broker/socket");
    let host = [
        "host",
        "eth0",
        "--addr",
        "10.0.0.77/24",
        "--broker",
        &socket,
    ];
    let host = bed.net.weir_as_nobody(&host).until("ready");
    assert!(live::pings(&bed.net.a, "10.0.0.77") > 0);
    assert!(!host.said().contains("refuses"), "{}", host.said());

    // To root it is the broker, and root the superuser, with its own socket.
    let ports = ["ports", "--json", "--socket", &socket];
    let ports = bed.net.weir(&ports).end().json();
    assert_eq!(ports.as_array().unwrap().len(), 2, "{ports}");
    assert!(ports[0]["uid"] == NOBODY, "{ports}");
    let special = fs::metadata(format!("{socket}.root")).unwrap();
    assert_eq!((special.uid(), special.mode() & 0o777), (WEIR, 0o600));
    host.stop();
    broker.signal(Signal::TERM);
    assert_eq!(broker.end().code, Some(0));
    wait::until("the helper's end", || status(helper).is_empty());
}

#[test]
fn what_it_leaves_goes_on_and_is_removed_by_root_or_its_user() {
    let Some(bed) = Bed::new("user-leaves") else {
        return;
    };
    assert_eq!(bed.prepare().code, Some(0));
    let broker = bed.start().until("ready");
    let helper = child(broker.id());
    let listen = bed
        .listen(NOBODY, &["udp", "--count", "10"])
        .until("weir: port");
    broker.signal_at_once(Signal::KILL);
    broker.end();
    wait::until("the helper's end", || status(helper).is_empty());
    bed.net.send(5000, 5);
    // Prepared again, as before each start.
    assert_eq!(bed.prepare().code, Some(0));
    let broker = bed.start().until("that go on: 1").until("ready");
    bed.net.send(5000, 5);
    let ended = listen.end();
    assert_eq!(ended.json()["frames"], 10, "{ended:?}");

    // Not while it runs, and not by another user.
    let running = bed.as_root(&["--clean"]);
    assert_eq!(running.code, Some(1), "{running:?}");
    assert!(
        running.stderr.contains("another broker runs"),
        "{running:?}"
    );
    let listen = bed.listen(NOBODY, &["udp"]).until("weir: port");
    broker.signal_at_once(Signal::KILL);
    broker.end();
    let other = bed.as_user(OTHER, capabilities(), &["--clean"]).end();
    assert!(other.stderr.contains("belongs to user 64990"), "{other:?}");
    let powerless = bed.as_user(WEIR, Capabilities::empty(), &["--clean"]).end();
    assert!(
        powerless.stderr.contains("only root can remove"),
        "{powerless:?}"
    );
    let cleaned = bed.as_user(WEIR, capabilities(), &["--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(
        cleaned.stderr.contains("1 ports, of which 1"),
        "{cleaned:?}"
    );
    assert_eq!(listen.end().code, Some(1));
    let cleaned = bed.as_root(&["--clean"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(cleaned.stderr.contains("nothing was left"), "{cleaned:?}");
}

#[test]
fn what_it_lacks_is_said() {
    let Some(bed) = Bed::new("user-lacks") else {
        return;
    };
    let unprepared = bed.start().end();
    assert_eq!(unprepared.code, Some(1), "{unprepared:?}");
    assert!(
        unprepared.stderr.contains("weir broker --prepare 64990"),
        "{unprepared:?}"
    );
    assert_eq!(bed.prepare().code, Some(0));
    let config = bed.path("policy.toml");
    let without = capabilities() - Capabilities::NET_RAW - Capabilities::SYS_ADMIN;
    let lacks = bed.as_user(WEIR, without, &["--config", &config]).end();
    assert_eq!(lacks.code, Some(1), "{lacks:?}");
    assert!(
        lacks.stderr.contains("CAP_NET_RAW and CAP_SYS_ADMIN"),
        "{lacks:?}"
    );
    // A policy that users could change.
    for (uid, gid, mode) in [(0, WEIR, 0o660), (0, 0, 0o666), (OTHER, WEIR, 0o640)] {
        chown(&config, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&config, Permissions::from_mode(mode)).unwrap();
        let refused = bed.start().end();
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("grant themselves"), "{refused:?}");
    }
    // Root's, of a user who tries it out, is warned of.
    let roots = bed.path("roots");
    let root = ["broker", "--config", &config, "--socket", &roots];
    let root = bed.net.weir(&root).until("warning: ").until("ready");
    assert!(root.said().contains("grant themselves"), "{}", root.said());
    root.stop();
    // Root's state and another user's are apart.
    bed.policy(POLICY);
    let refused = bed.as_root(&["--config", &config]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("belongs to user 64990"),
        "{refused:?}"
    );
}

#[test]
fn a_folder_that_others_could_replace_is_not_prepared() {
    let Some(bed) = Bed::new("user-prepare") else {
        return;
    };
    let keep = bed.folder.join("broker");
    let prepare = |said: &str| {
        let ended = bed.prepare();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    };
    let elsewhere = bed.folder.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &keep).unwrap();
    prepare("cannot open");
    assert_eq!(fs::metadata(&elsewhere).unwrap().uid(), 0);
    fs::remove_file(&keep).unwrap();
    // Another user's, and one of root's that is in use.
    fs::create_dir(&keep).unwrap();
    chown(&keep, Some(OTHER), Some(OTHER)).unwrap();
    prepare("belongs to user 64991");
    chown(&keep, Some(0), Some(0)).unwrap();
    fs::write(keep.join("file"), "").unwrap();
    prepare("belongs to user 0");
    fs::remove_file(keep.join("file")).unwrap();
    // In a folder of all users.
    fs::set_permissions(&bed.folder, Permissions::from_mode(0o1777)).unwrap();
    prepare("users other than root could replace");
    fs::set_permissions(&bed.folder, Permissions::from_mode(0o755)).unwrap();
    let ended = bed.prepare();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let about = fs::metadata(keep.join("bpf")).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (WEIR, 0o700));
    for user in ["0", "root", "no-such-user"] {
        let ended = bed.as_root(&["--prepare", user]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
    }
    let uid = WEIR.to_string();
    let ended = bed
        .as_user(OTHER, capabilities(), &["--prepare", &uid])
        .end();
    assert!(ended.stderr.contains("only root"), "{ended:?}");
}

/// The broker's user has put links and FIFOs where root cleans up.
#[test]
fn cleaning_up_touches_nothing_that_its_user_points_at() {
    let Some(bed) = Bed::new("user-links") else {
        return;
    };
    assert_eq!(bed.prepare().code, Some(0));
    let keep = bed.folder.join("broker");
    let others = bed.folder.join("others");
    fs::create_dir(&others).unwrap();
    let file = others.join("7.port");
    fs::write(&file, "kept").unwrap();
    symlink(&file, keep.join("lock")).unwrap();
    let refused = bed.as_root(&["--clean"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    fs::remove_file(keep.join("lock")).unwrap();
    symlink(&others, keep.join("ports")).unwrap();
    let refused = bed.as_root(&["--clean"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    fs::remove_file(keep.join("ports")).unwrap();
    fs::create_dir(keep.join("ports")).unwrap();
    symlink(&file, keep.join("ports/7.port")).unwrap();
    symlink(&file, keep.join("ports/8.held")).unwrap();
    common::make_fifo(keep.join("ports/9.held").to_str().unwrap());
    let cleaned = bed.as_root(&["--clean"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    assert!(!Path::exists(&keep.join("ports")));
}
