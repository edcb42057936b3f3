//! Every command of the README runs as it stands there: `FILE`, `DIR` and `NET` become names of the
//! test's, and each command that needs a network gets namespaces of its own.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, weir};
use live::Running;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_lab::net::unprivileged::NOBODY;
use weir_lab::net::{Device, Host, Lab, Signal};
use weir_lab::testenv;

/// How a command of the README is run.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// By a script of the check, or a list of what a command runs, which has these words.
    Ci(&'static str, &'static str),
    /// In a folder with captures and the examples, until it ends well.
    Here,
    /// Likewise in a terminal, until a key ends it.
    Screen,
    /// For each subcommand.
    Helps,
    /// On a host with interfaces of these names, until it ends well.
    Ends(&'static [&'static str]),
    /// Likewise, until it has said these words; SIGINT then ends it.
    Says(&'static [&'static str], &'static str),
    /// Likewise, of words on standard output.
    Prints(&'static [&'static str], &'static str),
    /// For some seconds: it prints these words at its end. `live_rfc2544` runs the whole.
    Begins(&'static str),
    /// tcpdump as user nobody, beside a broker.
    Captures,
    /// As an ordinary user, on a TAP interface.
    Serves,
    /// curl by weir's sockets.
    Curl,
    /// A program of `crates/tap` between two links.
    Example(&'static str),
}

use Rule::{Begins, Captures, Ci, Curl, Ends, Example, Helps, Here, Prints, Says, Screen, Serves};

const ONE: &[&str] = &["eth0"];
const WIRE: &[&str] = &["eth1", "eth2"];
const SITE: &[&str] = &["eth0", "eth1"];

/// Each command of the README, in its order.
const RULES: [(&str, Rule); 35] = [
    (
        // By `weir lab results run`.
        "cargo bench -p weir-demux --bench plan",
        Ci(
            "crates/lab/src/results/benches.rs",
            r#"Bench("weir-demux", "plan", "")"#,
        ),
    ),
    (
        "cargo run --release -- demo",
        Ci(".ci/fresh", "run --release -- demo"),
    ),
    (
        "cargo test --workspace",
        Ci(".ci/fresh", "test --workspace"),
    ),
    (
        "cargo install --locked --path crates/weir",
        Ci(".ci/fresh", "install --locked --path crates/weir"),
    ),
    (
        "sudo apt install ./target/debian/weir_*.deb",
        Ci(
            ".ci/install",
            "apt-get install -y --no-install-recommends ./weir_*.deb",
        ),
    ),
    (".ci/package", Ci(".ci/run", ".ci/package")),
    ("weir demux -r FILE --port web='tcp port 80'", Here),
    ("weir filter 'tcp port 80'", Here),
    (
        "sudo weir listen eth0 'udp port 53'",
        Says(ONE, "port 1 on eth0"),
    ),
    (
        "weir exec --pcap -- tcpdump -ni eth0 'udp port 53'",
        Captures,
    ),
    ("weir top -r FILE", Screen),
    ("weir web -r FILE", Prints(ONE, "http://")),
    (".ci/python", Ci(".ci/run", ".ci/python")),
    (
        "cargo build --release -p weir-cport",
        Ci(".ci/fresh", "build --release -p weir-cport"),
    ),
    ("sudo weir broker --config policy.toml", Says(ONE, "ready")),
    (
        "sudo weir rarpd eth0 --table hosts.toml",
        Says(ONE, "ready"),
    ),
    (
        "sudo weir pup serve DIR --own 1#2# --link port:eth0",
        Says(ONE, "ready"),
    ),
    ("weir serve DIR --link tap0 --addr 192.0.2.5/24", Serves),
    (
        "weir exec --link tap0 --addr 192.0.2.5/24 -- curl http://192.0.2.1/",
        Curl,
    ),
    ("weir sockets", Here),
    ("cargo run -p weir-tap --example bump", Example("bump")),
    (
        "sudo weir bridge eth1 eth2 --bypass wire",
        Says(WIRE, "ready"),
    ),
    ("sudo weir route eth1 eth2", Says(WIRE, "ready")),
    ("sudo weir nat eth0 eth1", Says(SITE, "ready")),
    ("sudo weir nat64 eth0 eth1", Says(SITE, "ready")),
    (
        "sudo weir ipsec eth0 eth1 --sa sa.toml",
        Says(SITE, "ready"),
    ),
    (
        "sudo weir shape eth0 eth1 --rate 100M --by source",
        Says(SITE, "ready"),
    ),
    (
        "cargo run -p weir-tap --example shared -- eth1 eth2",
        Example("shared"),
    ),
    ("weir meter -r FILE --inside NET && weir usage", Here),
    ("sudo weir lab meter-demo", Ends(&[])),
    ("weir ports --json", Ends(ONE)),
    (
        "sudo weir lab rfc2544 --peer linux-bridge",
        Begins("Trials of"),
    ),
    ("weir experiment tpca", Here),
    ("weir COMMAND --help", Helps),
    ("mdbook build", Ci(".ci/run", "mdbook build")),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Whether code of the README is a command: not a word, a name or a path alone.
fn is_command(code: &str) -> bool {
    let mut words = code.split_whitespace().skip_while(|word| *word == "sudo");
    let first = words.next().unwrap_or_default();
    let programs = [
        "weir",
        "cargo",
        "mdbook",
        "apt",
        "pip",
        "python3",
        "tcpdump",
        "wireshark",
    ];
    let is_script = root().join(first).is_file() && first.contains('/') && !first.contains('.');
    first.starts_with(".ci/") || is_script || programs.contains(&first) && words.next().is_some()
}

/// The commands of the README: inline code, and all lines of its code blocks.
fn commands() -> Vec<String> {
    let text = read("README.md");
    let mut commands = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 1 {
            let (_, block) = part.split_once('\n').expect("a block has lines");
            let joined = block.replace("\\\n", " ");
            let lines = joined
                .lines()
                .map(|line| line.split(" #").next().unwrap().trim());
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
            commands.extend(lines.map(str::to_owned));
        } else {
            let inline = part.split('`').skip(1).step_by(2);
            let inline = inline.map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "));
            commands.extend(inline.filter(|code| is_command(code)));
        }
    }
    commands
}

#[test]
fn every_command_has_a_rule_and_every_rule_a_command() {
    let commands = commands();
    for command in &commands {
        assert!(
            RULES.iter().any(|(known, _)| known == command),
            "no rule of this test runs `{command}` of the README"
        );
    }
    for (known, rule) in RULES {
        assert!(
            commands.iter().any(|command| command == known),
            "the README no longer has `{known}`"
        );
        if let Ci(script, words) = rule {
            assert!(
                read(script).contains(words),
                "{script} does not run `{words}`"
            );
        }
    }
}

/// A folder as a reader has it, with `weir` and `sudo` in `bin`.
fn checkout(name: &str) -> Folder {
    let folder = live::open_folder(name);
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        folder.write(
            path.file_name().unwrap().to_str().unwrap(),
            &fs::read(&path).unwrap(),
        );
    }
    folder.write("sa.toml", sa().as_bytes());
    let owner = fs::Permissions::from_mode(0o600);
    fs::set_permissions(folder.path("sa.toml"), owner).unwrap();
    let demo = ["demo", "-n", "2000", "--json", "-w", &folder.path("")];
    let run = weir([]).args(demo).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    for name in ["bin", "files", "run"] {
        fs::create_dir(folder.path(name)).unwrap();
    }
    folder.write("files/index.html", b"hello\n");
    program(&folder, "sudo", b"#!/bin/sh\nexec \"$@\"\n");
    folder
}

/// The guide's configuration of IPsec, with keys.
fn sa() -> String {
    let guide = read("docs/how-to/ipsec.md");
    let block = guide.split("```toml\n").nth(1).expect("it has one");
    let (block, _) = block.split_once("```").expect("it ends");
    let block = block.replace("\"192.0.2.1\"", "\"10.0.0.2\"");
    let mut parts = block.split('…');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.enumerate();
    rest.fold(first, |all, (number, part)| {
        format!("{all}{number:02x}{}{part}", "5a".repeat(35))
    })
}

fn program(folder: &Folder, name: &str, bytes: &[u8]) {
    let path = folder.write(&format!("bin/{name}"), bytes);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The command with names of the folder.
fn filled(command: &str) -> String {
    let words = command.split(' ').map(|word| match word {
        "FILE" => "office.pcapng",
        "DIR" => "files",
        "NET" => "192.0.2.0/24",
        word => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A script that runs the command, with this before it.
fn script(folder: &Folder, before: &str, command: &str) -> String {
    let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let line = if command.contains("&&") {
        command.to_owned()
    } else {
        format!("exec {command}")
    };
    let at = folder.path("");
    let text = format!(
        "set -e\ncd {at}\nexport PATH={at}/bin:$PATH:{} STATE_DIRECTORY={at}\n{before}\n{line}\n",
        weir.display()
    );
    folder.write("run.sh", text.as_bytes())
}

/// Folders of the system that a command writes to are its own: sockets, and what it pins.
fn own(folder: &Folder) -> String {
    let run = folder.path("run");
    format!(
        "mount --bind {run} /run\nmount -t bpf none /sys/fs/bpf\n\
         if [ -d /dev/net ]; then\n\
         mount -t tmpfs none /dev/net\nmknod /dev/net/tun c 10 200\nchmod 666 /dev/net/tun\nfi"
    )
}

/// Starts the command in a host, as root.
fn start(host: &Host, folder: &Folder, command: &str) -> Running {
    let script = script(folder, &own(folder), &filled(command));
    let unshare = testenv::program("unshare").expect("the test has asked for it");
    Running::start(host, unshare, &["--mount", "sh", &script])
}

fn commands_by(is_of: impl Fn(&Rule) -> bool) -> Vec<(&'static str, Rule)> {
    RULES.into_iter().filter(|(_, rule)| is_of(rule)).collect()
}

#[test]
fn commands_without_a_network_end_well() {
    if !testenv::programs(&["sh"]) {
        return;
    }
    let folder = checkout("readme-here");
    for (command, rule) in commands_by(|rule| matches!(rule, Here | Helps | Screen)) {
        let mut lines = vec![filled(command)];
        if let Helps = rule {
            let all = common::stdout(&weir(["--help"]).output().unwrap());
            let listed = all.split_once("Commands:").unwrap().1.lines().skip(1);
            let listed = listed.take_while(|line| !line.is_empty());
            // Others continue a description.
            let listed = listed.filter_map(|line| line.strip_prefix("  "));
            let listed = listed.filter(|line| !line.starts_with(' ') && !line.starts_with("help"));
            let names = listed.map(|line| line.split(' ').next().unwrap());
            lines = names.map(|name| command.replace("COMMAND", name)).collect();
            assert!(lines.len() > 20, "{lines:?}");
        }
        if let Screen = rule {
            if !testenv::programs(&["script"]) {
                continue;
            }
            let line = &lines[0];
            lines = vec![format!(
                "(sleep 2 && printf q) | script -qec '{line}' /dev/null"
            )];
        }
        for line in lines {
            let mut sh = testenv::program("sh").expect("the test has asked for it");
            let run = sh.arg(script(&folder, "", &line)).output().unwrap();
            assert!(run.status.success(), "{line}: {run:?}");
            assert!(!run.stdout.is_empty(), "{line}: {run:?}");
        }
    }
}

/// A host with interfaces of these names, each linked to a host of its own.
struct Machine {
    host: Host,
    others: Vec<Host>,
}

fn machine(names: &[&str]) -> Machine {
    let lab = Lab::new();
    let host = lab.host("machine").unwrap();
    let mut others = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let other = lab.host(&format!("host{number}")).unwrap();
        let own = Ipv4Addr::new(10, number as u8, 0, 2);
        let link = lab.link(&other, &host).names("eth0", name);
        let link = link.addresses(Ipv4Addr::new(10, number as u8, 0, 1), own, 24);
        link.neighbours()
            .connect()
            .unwrap()
            .1
            .wait_running()
            .unwrap();
        others.push(other);
    }
    Machine { host, others }
}

/// Without root, or one of these programs.
fn lacks(programs: &[&str]) -> bool {
    !testenv::root() || !testenv::programs(&[&["sh", "unshare", "mount"], programs].concat())
}

#[test]
fn commands_with_a_network_run() {
    if lacks(&[]) {
        return;
    }
    for (command, rule) in
        commands_by(|rule| matches!(rule, Ends(_) | Says(..) | Prints(..) | Begins(_)))
    {
        let folder = checkout("readme-net");
        let names = match rule {
            Ends(names) | Says(names, ..) | Prints(names, ..) => names,
            _ => &[],
        };
        let machine = machine(names);
        let mut running = start(&machine.host, &folder, command);
        let mut out = None;
        if let Says(_, words) = rule {
            running = running.until(words);
        }
        if let Prints(_, words) = rule {
            let mut lines = BufReader::new(running.take_stdout());
            let mut line = String::new();
            while !line.contains(words) {
                line.clear();
                let read = lines.read_line(&mut line).unwrap();
                assert!(
                    read > 0,
                    "{command} never prints `{words}`: {:?}",
                    running.end()
                );
            }
            // Open until its end.
            out = Some(lines);
        }
        if let Begins(_) = rule {
            std::thread::sleep(Duration::from_secs(3));
        }
        if !matches!(rule, Ends(_)) {
            running.signal(Signal::INT);
        }
        let ended = running.end();
        drop(out);
        // Counting commands say by their status that a signal ended them.
        let is_well = match rule {
            Ends(_) => ended.code == Some(0),
            Begins(words) => ended.code == Some(130) && ended.stdout.contains(words),
            _ => matches!(ended.code, Some(0 | 130)),
        };
        assert!(is_well, "{command}: {ended:?}");
    }
}

/// The program of an ordinary user, who may not read the checkout.
fn as_nobody(folder: &Folder, command: &str) -> String {
    let beside = Path::new(env!("CARGO_BIN_EXE_weir"));
    let test = std::env::current_exe().unwrap();
    for name in ["weir", "libweir_pcap.so", "libweir_exec.so"] {
        let places = [beside.parent(), test.parent()];
        let mut places = places.into_iter().flatten().map(|place| place.join(name));
        let found: PathBuf = places.find(|place| place.is_file()).expect(name);
        fs::copy(found, folder.path(&format!("bin/{name}"))).unwrap();
    }
    format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {command}")
}

fn the(rule: Rule) -> &'static str {
    let is_it = |of: &Rule| std::mem::discriminant(of) == std::mem::discriminant(&rule);
    let [(command, _)] = commands_by(is_it)[..] else {
        panic!("one command has the rule {rule:?}")
    };
    command
}

#[test]
fn tcpdump_of_an_ordinary_user_prints_frames() {
    if lacks(&["tcpdump", "setpriv"]) {
        return;
    }
    let folder = checkout("readme-tcpdump");
    let machine = machine(ONE);
    let grant = format!("[[grant]]\nusers = [{NOBODY}]\ninterfaces = ['eth0']\n");
    folder.write("grant.toml", grant.as_bytes());
    let line = as_nobody(&folder, the(Captures)).replace("tcpdump", "tcpdump -l");
    let broker = start(&machine.host, &folder, "weir broker --config grant.toml").until("ready");
    let mut tcpdump = start(&machine.host, &folder, &line).until("listening on");
    machine.others[0].run(|| {
        let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
        socket.send_to(b"question", "10.0.0.2:53").unwrap();
    });
    let mut printed = String::new();
    let mut out = BufReader::new(tcpdump.take_stdout());
    out.read_line(&mut printed).unwrap();
    assert!(printed.contains("> 10.0.0.2.53: "), "{printed}");
    tcpdump.stop();
    broker.stop();
}

/// A TAP interface of user nobody, with an address of the kernel's.
fn with_tap(machine: &Machine) -> Option<Device> {
    if !testenv::tun() {
        return None;
    }
    let tap = machine.host.tap("tap0", NOBODY).unwrap();
    tap.add_address([192, 0, 2, 1], 24).unwrap();
    tap.up().unwrap();
    Some(tap)
}

#[test]
fn a_host_in_user_space_serves_the_kernels_clients() {
    if lacks(&["setpriv", "curl"]) {
        return;
    }
    let folder = checkout("readme-serve");
    let machine = machine(ONE);
    let Some(_tap) = with_tap(&machine) else {
        return;
    };
    let line = as_nobody(&folder, the(Serves));
    let serve = start(&machine.host, &folder, &line).until("ready");
    let got = live::run(
        &machine.host,
        "curl",
        &["-s", "http://192.0.2.5/index.html"],
    );
    assert_eq!(got.as_deref(), Some("hello\n"));
    serve.stop();
}

#[test]
fn curl_on_a_host_in_user_space_reaches_the_kernels_server() {
    if lacks(&["setpriv", "curl"]) {
        return;
    }
    let folder = checkout("readme-curl");
    let machine = machine(ONE);
    let Some(_tap) = with_tap(&machine) else {
        return;
    };
    let line = as_nobody(&folder, the(Curl));
    let server = machine
        .host
        .run(|| TcpListener::bind("192.0.2.1:80"))
        .unwrap();
    let curl = start(&machine.host, &folder, &line);
    let (mut client, peer) = weir_lab::wait::accept(&server).unwrap();
    assert_eq!(peer.ip().to_string(), "192.0.2.5");
    let mut request = [0; 4];
    client.read_exact(&mut request).unwrap();
    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
    client.write_all(reply).unwrap();
    let ended = curl.end();
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "hello\n"),
        "{ended:?}"
    );
}

#[test]
fn the_examples_of_a_tap_pass_frames() {
    if lacks(&["ping"]) {
        return;
    }
    for (_, rule) in commands_by(|rule| matches!(rule, Example(_))) {
        let Example(name) = rule else {
            unreachable!("of these rules alone")
        };
        let built = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("examples");
        let program = built.join(name);
        if !program.is_file() {
            testenv::skip(&format!(
                "no example {name} (cargo build -p weir-tap --examples)"
            ));
            return;
        }
        let folder = checkout("readme-example");
        let machine = machine(WIRE);
        for (number, other) in machine.others.iter().enumerate() {
            let address = Ipv4Addr::new(192, 0, 2, number as u8 + 1);
            other
                .device("eth0")
                .unwrap()
                .add_address(address, 24)
                .unwrap();
        }
        // What is behind the name of the example in the README's command.
        let command = commands_by(|one| matches!(one, Example(other) if *other == name))[0].0;
        let arguments = command
            .split_once(" -- ")
            .map_or("", |(_, arguments)| arguments);
        let line = format!("{} {arguments}", program.display());
        let running = start(&machine.host, &folder, &line);
        let began = Instant::now();
        while live::pings(&machine.others[0], "192.0.2.2") == 0 {
            assert!(began.elapsed() < live::WAIT_MAX, "{name} passes nothing");
        }
        running.signal_at_once(Signal::KILL);
        running.end();
    }
}
