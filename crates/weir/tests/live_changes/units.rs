//! The units of `systemd/` grant sufficient privileges.

use super::Net;
use crate::common::weir;
use crate::live::{Running, WAIT_MAX};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use weir_lab::net::Signal;
use weir_lab::net::unprivileged::{self, Capabilities};
use weir_lab::testenv;

/// The user of units with `User=`.
const WEIR: u32 = 64_992;

/// The values of a key, in order.
fn values<'a>(unit: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = unit.lines().filter_map(|line| line.split_once('='));
    pairs.filter(move |pair| pair.0 == key).map(|pair| pair.1)
}

/// Runs the command of the unit with that name, with exactly its capabilities,
/// with `words` for its variables and its configuration file, until it has said `said`.
fn runs(net: &Net, name: &str, words: &[(&str, &str)], said: &str) {
    let path = format!("{}/../../systemd/{name}", env!("CARGO_MANIFEST_DIR"));
    let unit = std::fs::read_to_string(Path::new(&path)).unwrap();
    let notifies = values(&unit, "Type").eq(["notify"]);
    assert!(values(&unit, "Restart").eq(["on-failure"]));
    let command = |key| {
        let command = values(&unit, key).next()?;
        let replaced = words
            .iter()
            .fold(command.to_owned(), |command, (variable, value)| {
                command.replace(variable, value)
            });
        assert!(!replaced.contains('$'), "{replaced}");
        Some(replaced)
    };
    // With root's rights, which `+` means.
    if let Some(before) = command("ExecStartPre").as_ref()
        && let Some(arguments) = before.strip_prefix("+weir ")
    {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let ended = Running::start(&net.r, weir([]), &arguments).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let command = command("ExecStart").unwrap();
    let mut arguments: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(arguments.remove(0), "weir");
    let allowed = values(&unit, "CapabilityBoundingSet").next().unwrap();
    let mut restricted = match values(&unit, "User").next() {
        Some(user) => {
            assert_eq!(user, "weir");
            let ambient = values(&unit, "AmbientCapabilities").next();
            assert_eq!(ambient, Some(allowed), "it needs all that it may have");
            let names = allowed.split_whitespace();
            let kept = names.map(|name| {
                let name = name.strip_prefix("CAP_").unwrap();
                Capabilities::from_name(name).unwrap()
            });
            unprivileged::command_with(env!("CARGO_BIN_EXE_weir"), WEIR, kept.collect())
        }
        None => {
            let allowed = allowed.split_whitespace().map(|capability| {
                let name = capability.strip_prefix("CAP_").unwrap();
                format!(",+{}", name.to_lowercase())
            });
            let Some(mut restricted) = testenv::program("setpriv") else {
                return;
            };
            restricted.arg("--no-new-privs");
            let allowed: String = allowed.collect();
            restricted.arg(format!("--bounding-set=-all{allowed}"));
            restricted.arg(env!("CARGO_BIN_EXE_weir"));
            restricted
        }
    };
    let manager_path = net.folder.path("notify");
    let _ = std::fs::remove_file(&manager_path);
    let manager = UnixDatagram::bind(&manager_path).unwrap();
    // As systemd's.
    std::fs::set_permissions(&manager_path, Permissions::from_mode(0o777)).unwrap();
    manager.set_read_timeout(Some(WAIT_MAX)).unwrap();
    restricted.env("NOTIFY_SOCKET", &manager_path);
    restricted.env("WATCHDOG_USEC", "300000");
    let running = Running::start(&net.r, restricted, &arguments).until("ready");
    let mut buffer = [0; 256];
    // Heartbeats, more than one within the manager's time limit.
    let messages: &[&str] = if notifies {
        &["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
    } else {
        &[]
    };
    for expected in messages {
        let len = manager.recv(&mut buffer).expect(expected);
        let message = String::from_utf8_lossy(&buffer[..len]);
        assert!(message.contains(*expected), "{message}");
    }
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains(said), "{ended:?}");
}

/// Removes a broker's folder when it is dropped.
struct Clean<'a>(&'a Net, &'a str);

impl Drop for Clean<'_> {
    fn drop(&mut self) {
        let Clean(net, keep) = self;
        let socket = format!("{keep}/socket");
        let clean = ["broker", "--clean", "--keep", keep, "--socket", &socket];
        let cleaned = Running::start(&net.r, weir([]), &clean).end();
        let removed = std::fs::remove_dir(keep);
        if !std::thread::panicking() {
            assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
            removed.unwrap();
        }
    }
}

#[test]
fn what_they_start_runs_with_what_they_allow() {
    let Some(net) = Net::new("units") else { return };
    let config = net.folder.path("router.toml");
    std::fs::write(
        &config,
        "[[link]]\nname = \"eth0\"\n[[link]]\nname = \"eth1\"\n",
    )
    .unwrap();
    for bypass in ["kernel", "drop"] {
        let options = format!("--bypass {bypass} --restore --hang-ms 2000");
        let words = [("$OPTIONS", &*options), ("/etc/weir/router.toml", &config)];
        runs(&net, "weir-route.service", &words, "copy at XDP native");
        let words = [("$OPTIONS", &*options), ("$INTERFACES", "eth0 eth1")];
        runs(&net, "weir-bridge@.service", &words, "copy at XDP native");
    }
    let config = net.folder.path("counter.toml");
    std::fs::write(&config, "[[link]]\ninside = \"eth0\"\n").unwrap();
    let store = net.folder.path("usage.db");
    let options = format!("--store {store} --metrics 127.0.0.1:0");
    let words = [("$OPTIONS", &*options), ("/etc/weir/counter.toml", &config)];
    let said = "counters for 65,536 sessions";
    runs(&net, "weir-meter.service", &words, said);
    let policy = net.folder.path("policy.toml");
    std::fs::write(
        &policy,
        "[[grant]]\nusers = [65534]\ninterfaces = [\"eth0\"]\n",
    )
    .unwrap();
    // Below folders that root alone may write to.
    let keep = format!("/run/weir-units-{}", std::process::id());
    let places = format!("--socket {keep}/socket --keep {keep}");
    let (prepare, policy) = (
        format!("--prepare {WEIR} {places}"),
        format!("{policy} {places}"),
    );
    let _clean = Clean(&net, &keep);
    let words = [
        ("--prepare weir", &*prepare),
        ("/etc/weir/policy.toml", &policy),
    ];
    runs(&net, "weir-broker.service", &words, "listens on");
    let table = net.folder.path("hosts.toml");
    std::fs::write(&table, "\"02:00:00:00:00:01\" = \"10.0.0.9\"\n").unwrap();
    let words = [("%i", "eth0"), ("/etc/weir/hosts.toml", &table)];
    runs(&net, "weir-rarpd@.service", &words, "stations: 1");
}
