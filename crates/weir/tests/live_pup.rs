//! `weir pup` across a link and over UDP, against itself and against
//! `peers/pup.py`, an implementation that shares nothing with it.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, bytes, weir};
use live::{Ended, Net, Running, net};
use std::io::Write;
use std::process::Stdio;
use weir_lab::net::{Host, Signal};
use weir_lab::testenv;

const PORT: &str = "port:eth0";

fn serve(net: &Net, folder: &Folder, link: &str) -> Running {
    let path = folder.path("");
    let words = ["pup", "serve", &path, "--own", "1#2#", "--link", link];
    let server = net.weir(&[&words[..], &["--writable", "--name", "ada=1#10#"]].concat());
    server.until("pup server 1#2#").until("ready")
}

fn client(host: &Host, link: &str, arguments: &[&str]) -> Ended {
    let arguments = [&["pup"][..], arguments, &["--link", link]].concat();
    Running::start(host, weir([]), &arguments).end()
}

fn python(host: &Host, arguments: &[&str]) -> Running {
    live::peer(host, "pup.py", arguments)
}

/// Echo, list, get and put, on a link.
fn everything(net: &Net, name: &str, link: &str) {
    let folder = Folder::new(name);
    folder.write("empty", b"");
    folder.write("hello.txt", b"hello\n");
    folder.write("long", &bytes(300_001));
    folder.write(".hidden", b"no");
    let server = serve(net, &folder, link);
    let echo = client(&net.a, link, &["echo", "1#2#", "--json", "--size", "531"]);
    assert_eq!(echo.json()["came_back"], 10, "{echo:?}");
    let listed = client(&net.a, link, &["list", "1#2#*l*"]);
    let expected = "         6 hello.txt\n    300001 long\n";
    assert_eq!(listed.stdout, expected, "{listed:?}");
    let out = folder.path("out");
    for (file, len) in [("empty", 0), ("long", 300_001)] {
        let got = client(&net.a, link, &["get", &format!("1#2#{file}"), "-o", &out]);
        assert_eq!(got.code, Some(0), "{got:?}");
        assert!(std::fs::read(&out).unwrap() == bytes(len), "{file} differs");
    }
    let original = folder.path("long");
    let put = client(&net.a, link, &["put", &original, "1#2#copy"]);
    assert_eq!(put.code, Some(0), "{put:?}");
    assert!(std::fs::read(folder.path("copy")).unwrap() == bytes(300_001));
    for name in ["absent", ".hidden", "../x"] {
        let got = client(&net.a, link, &["get", &format!("1#2#{name}")]);
        assert_eq!((got.code, &*got.stdout), (Some(1), ""), "{got:?}");
        assert!(got.stderr.contains("there is no such file"), "{got:?}");
        let put = client(&net.a, link, &["put", &original, &format!("1#2#{name}")]);
        let code = if name == "absent" { 0 } else { 1 };
        assert_eq!(put.code, Some(code), "{put:?}");
    }
    server.stop();
}

#[test]
fn a_folder_is_served_on_a_port() {
    let Some(net) = net() else { return };
    everything(&net, "pup-port", PORT);
}

#[test]
fn a_folder_is_served_over_udp() {
    let Some(net) = net() else { return };
    everything(&net, "pup-udp", "udp:10.0.0.255:4242");
}

#[test]
fn telnet_types_a_file() {
    let Some(net) = net() else { return };
    let folder = Folder::new("pup-telnet");
    folder.write("hello.txt", b"hello, terminal\n");
    let server = serve(&net, &folder, PORT);
    let mut command = weir(["pup", "telnet", "1#2#", "--link", PORT]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = net.a.spawn(command).unwrap();
    let mut input = process.child_mut().stdin.take().unwrap();
    input.write_all(b"list\ntype hello.txt\nquit\n").unwrap();
    let status = process.wait(live::WAIT_MAX).unwrap().expect("it ends");
    let mut said = String::new();
    let out = process.child_mut().stdout.take().unwrap();
    let mut out = weir_lab::wait::Limited::new(out, "the end of telnet");
    std::io::Read::read_to_string(&mut out, &mut said).unwrap();
    assert!(status.success(), "{said}");
    assert!(said.contains("16 hello.txt\r\n"), "{said}");
    assert!(said.contains("hello, terminal\n"), "{said}");
    assert!(said.ends_with("Goodbye.\r\n"), "{said}");
    server.stop();
}

#[test]
fn a_second_implementation_talks_to_our_server() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("pup-python");
    let path = folder.write("file", &bytes(40_000));
    for link in [PORT, "udp:10.0.0.255:4243"] {
        let server = serve(&net, &folder, link);
        let link = link.trim_start_matches("port:");
        let echo = python(&net.a, &["echo", link, "1#5#", "1#2#"]).end();
        assert_eq!(echo.stdout, "echo\n", "{echo:?}");
        let out = folder.path("out");
        let get = ["get", link, "1#5#", "1#2#", "file", "10", &out];
        let got = python(&net.a, &get).end();
        assert_eq!(got.code, Some(0), "{got:?}");
        assert!(std::fs::read(&out).unwrap() == bytes(40_000), "{link}");
        let put = ["put", link, "1#5#", "1#2#", "copy", "10", &path];
        let put = python(&net.a, &put).end();
        assert_eq!(put.code, Some(0), "{put:?}");
        assert!(
            std::fs::read(folder.path("copy")).unwrap() == bytes(40_000),
            "{link}"
        );
        std::fs::remove_file(folder.path("copy")).unwrap();
        server.stop();
    }
}

#[test]
fn our_clients_talk_to_a_second_implementation() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("pup-from-python");
    let path = folder.write("file", &bytes(40_000));
    let served = folder.path("");
    let server = python(&net.b, &["serve", "eth0", "1#2#", "10", &served]).until("ready");
    let out = folder.path("out");
    let got = client(&net.a, PORT, &["get", "1#2#file", "-o", &out]);
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(std::fs::read(&out).unwrap() == bytes(40_000));
    let put = client(&net.a, PORT, &["put", &path, "1#2#copy"]);
    assert_eq!(put.code, Some(0), "{put:?}");
    assert!(std::fs::read(folder.path("copy")).unwrap() == bytes(40_000));
    server.signal(Signal::KILL);
    server.end();
}

/// What the interface's queue drops is lost as on a wire, and ends neither server nor client; a
/// second server of the address is warned of.
#[test]
fn a_full_queue_ends_no_transfer() {
    let Some(net) = net() else { return };
    let Some(mut tc) = testenv::program("tc") else {
        return;
    };
    let folder = Folder::new("pup-queue");
    folder.write("long", &bytes(400_000));
    let server = serve(&net, &folder, PORT);
    let path = folder.path("");
    let words = ["pup", "serve", &path, "--own", "1#2#", "--link", PORT];
    let second = net
        .weir(&words)
        .until("too: each takes some")
        .until("ready");
    second.stop();
    for host in [&net.a, &net.b] {
        // Seven Pups fit.
        let words = "qdisc add dev eth0 root tbf rate 20mbit burst 2k limit 4000";
        tc.args(words.split(' '));
        let limited = host.output(tc).unwrap();
        assert!(limited.status.success(), "{limited:?}");
        tc = testenv::program("tc").unwrap();
    }
    let out = folder.path("out");
    let got = client(&net.a, PORT, &["get", "1#2#long", "-o", &out]);
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(std::fs::read(&out).unwrap() == bytes(400_000));
    let put = client(&net.a, PORT, &["put", &out, "1#2#copy"]);
    assert_eq!(put.code, Some(0), "{put:?}");
    assert!(std::fs::read(folder.path("copy")).unwrap() == bytes(400_000));
    server.stop();
}

/// From an Ethernet by a gateway to a net over UDP, and back.
#[test]
fn a_gateway_joins_two_nets() {
    let Some(net) = net() else { return };
    let far = net.lab.host("c").unwrap();
    let link = net.lab.link(&net.b, &far);
    let (_, eth) = link
        .addresses([10, 1, 0, 1], [10, 1, 0, 2], 24)
        .connect()
        .unwrap();
    eth.wait_running().unwrap();
    let folder = Folder::new("pup-gateway");
    folder.write("file", &bytes(100_000));
    let path = folder.path("");
    const UDP: &str = "udp:10.1.0.255:4242";
    let words = ["1#1#@port:eth0", "2#1#@udp:10.1.0.255:4242", "--json"];
    let gateway = net.weir(&[&["pup", "gateway"], &words[..]].concat());
    let gateway = gateway.until("1#1# on port:eth0").until("ready");
    let words = ["pup", "serve", &path, "--own", "2#2#", "--link", UDP];
    let server = Running::start(&far, weir([]), &words).until("ready");
    for own in [&["--own", "1#3#"][..], &[]] {
        let echo = [&["echo", "2#2#", "--json"], own].concat();
        let echo = client(&net.a, PORT, &echo);
        assert_eq!(echo.json()["came_back"], 10, "{own:?}: {echo:?}");
        let out = folder.path("out");
        let get = [&["get", "2#2#file", "-o", &out], own].concat();
        let got = client(&net.a, PORT, &get);
        assert_eq!(got.code, Some(0), "{own:?}: {got:?}");
        assert!(std::fs::read(&out).unwrap() == bytes(100_000), "{own:?}");
    }
    // The gateway's own echo, at either of its addresses.
    for asked in ["1#1#", "2#1#"] {
        let echo = ["echo", asked, "--own", "1#5#", "--count", "3"];
        let echo = client(&net.a, PORT, &echo);
        assert_eq!(echo.code, Some(0), "{asked}: {echo:?}");
    }
    let nowhere = client(&net.a, PORT, &["echo", "7#2#", "--own", "1#3#"]);
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
    assert!(nowhere.stderr.contains("no route"), "{nowhere:?}");
    gateway.signal(Signal::TERM);
    let ended = gateway.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let counts = ended.json();
    assert!(counts["forwarded"].as_u64() > Some(400), "{counts}");
    assert_eq!(counts["refused"], 1, "{counts}");
    assert_eq!(counts["nets"], serde_json::json!([1, 2]), "{counts}");
    let alone = client(&net.a, PORT, &["echo", "2#2#", "--own", "1#3#"]);
    assert!(alone.stderr.contains("does not answer"), "{alone:?}");
    server.stop();
}

/// A client gives a server up that sends another length than it states, or comments without end.
#[test]
fn a_server_that_lies_is_given_up() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("pup-lies");
    let path = folder.path("");
    folder.write("file", &bytes(2000));
    let out = folder.path("out");
    for (lie, said) in [
        ("more", "states 1999 bytes and sends 2000"),
        ("less", "states 2001 bytes and sends 2000"),
        ("comments", "does not speak FTP as weir does"),
    ] {
        let link = PORT.trim_start_matches("port:");
        let words = ["serve", link, "1#2#", "0", &path, lie];
        let server = python(&net.b, &words).until("ready");
        let got = client(&net.a, PORT, &["get", "1#2#file", "-o", &out]);
        assert_eq!(got.code, Some(1), "{lie}: {got:?}");
        assert!(got.stderr.contains(said), "{lie}: {got:?}");
        assert!(!std::path::Path::new(&out).exists(), "{lie}");
        server.signal(Signal::KILL);
        server.end();
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(net) = net() else { return };
    for (words, code, said) in [
        (
            &["echo", "1#2#", "--link", "tap:tap0"][..],
            2,
            "write port:IF or udp:",
        ),
        (&["echo", "9#2#", "--link", "eth0"], 2, "is no Pup address"),
        (&["echo", "1#2#", "--link", "eth0"], 1, "does not answer"),
        (&["get", "1#2#", "--link", "eth0"], 2, "has no file's name"),
        (&["serve", "/", "--link", "eth0"], 2, "--own 1#2#"),
        (
            &["list", "1#2#", "--own", "0#2#", "--link", "udp:10.0.0.255"],
            2,
            "has the number of this host itself",
        ),
        (
            &["serve", "/", "--own", "1#0#", "--link", "eth0"],
            2,
            "not a host's address",
        ),
        (
            &["echo", "1#2#", "--link", "udp:198.51.100.1"],
            1,
            "cannot send to 198.51.100.1:42424: Network is unreachable",
        ),
        (
            &["echo", "1#2#", "--count", "-1", "--link", "eth0"],
            2,
            "--count",
        ),
        (&["gateway", "1#1#@eth0"], 2, "2 values required"),
        (&["gateway", "1#1#@eth0", "1#2#@eth1"], 2, "are of one net"),
        (&["gateway", "1#1#@eth0", "2#1#@eth0"], 2, "is named twice"),
        (&["gateway", "0#1#@eth0", "2#1#@eth0"], 2, "has no net"),
    ] {
        let ended = Running::start(&net.a, weir(["pup"]), words).end();
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{words:?}: {ended:?}");
    }
}

#[test]
fn an_ordinary_user_serves_as_the_policy_grants() {
    let Some(net) = net() else { return };
    let folder = live::open_folder("pup-nobody");
    folder.write("file", b"of nobody");
    let (socket, keep) = (folder.path("socket"), folder.path("keep"));
    let policy = format!(
        "[[grant]]\nusers = [{}]\ninterfaces = ['eth0']\nfilter = 'ether[12:2] = 0x200'\n\
         send = {{ ethertypes = [0x200] }}\n",
        weir_lab::net::unprivileged::NOBODY
    );
    let config = folder.write("policy.toml", policy.as_bytes());
    let broker = [
        "broker", "--config", &config, "--socket", &socket, "--keep", &keep,
    ];
    let broker = net.weir(&broker).until("listens on");
    let served = folder.path("");
    let words = ["pup", "serve", &served, "--own", "1#2#", "--link", PORT];
    let server = net.weir_as_nobody(&[&words[..], &["--broker", &socket]].concat());
    let server = server.until("ready");
    let got = client(&net.a, PORT, &["get", "1#2#file"]);
    assert_eq!((got.code, &*got.stdout), (Some(0), "of nobody"), "{got:?}");
    server.stop();
    broker.signal(Signal::TERM);
    broker.end();
    let clean = ["broker", "--clean", "--socket", &socket, "--keep", &keep];
    assert_eq!(net.weir(&clean).end().code, Some(0));
}

/// Against IFS, a file server that we did not write. `WEIR_IFS` names the folder
/// of its program, `ifs.exe`, built for mono without its transports but UDP:
/// `WEIR_IFS=FOLDER cargo test -p weir --test live_pup -- --ignored`.
#[test]
#[ignore = "needs a build of IFS: WEIR_IFS=FOLDER"]
fn a_file_server_of_others_serves_our_clients() {
    let Some(net) = net() else { return };
    let program = std::env::var("WEIR_IFS").expect("WEIR_IFS names the folder of ifs.exe");
    let folder = Folder::new("pup-ifs");
    for name in ["Conf", "ftp/ada", "copydisk", "boot", "mail"] {
        std::fs::create_dir_all(folder.path(name)).unwrap();
    }
    let root = folder.path("");
    let config = format!(
        "FTPRoot = {root}/ftp\nCopyDiskRoot = {root}/copydisk\nBootRoot = {root}/boot\n\
         MailRoot = {root}/mail\nInterfaceTypes = udp\nInterfaceName = eth0\n\
         UDPPort = 42424\nRunIFSServices = true\nServerNetwork = 1\nServerHost = 1\n\
         BOLDelay = 5000\nLogTypes = None\nLogComponents = None\n"
    );
    folder.write("Conf/ifs.cfg", config.as_bytes());
    folder.write("Conf/accounts.txt", b"ada::Admin:Ada:ada\n");
    folder.write("Conf/networks.txt", b"1#  10.0.0.2\n");
    folder.write("Conf/hosts.txt", b"1#1#  server\n");
    folder.write("Conf/bootdirectory.txt", b"");
    folder.write("ftp/file", &bytes(100_000));
    let original = folder.write("original", &bytes(50_000));
    let mut command = testenv::program("mono").expect("the test needs mono");
    command.arg(format!("{program}/ifs.exe")).current_dir(&root);
    // Its prompt ends at the end of its input.
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let server = net.b.spawn(command).unwrap();
    let link = "udp:10.0.0.255:42424";
    let talk = |words: &[&str]| client(&net.a, link, &[words, &["--own", "1#12#"]].concat());
    let began = std::time::Instant::now();
    while talk(&["echo", "1#1#", "--count", "1"]).code != Some(0) {
        assert!(began.elapsed() < live::WAIT_MAX, "it never answered");
    }
    let echo = talk(&["echo", "1#1#", "--json"]);
    assert_eq!(echo.json()["came_back"], 10, "{echo:?}");
    let out = folder.path("out");
    let got = talk(&["get", "1#1#file", "-o", &out]);
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(std::fs::read(&out).unwrap() == bytes(100_000));
    let put = talk(&["put", &original, "1#1#ada/copy", "--user", "ada"]);
    assert_eq!(put.code, Some(0), "{put:?}");
    assert!(std::fs::read(folder.path("ftp/ada/copy")).unwrap() == bytes(50_000));
    let absent = talk(&["get", "1#1#absent"]);
    assert_eq!(absent.code, Some(1), "{absent:?}");
    drop(server);
}
