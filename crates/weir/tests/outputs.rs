//! Outputs of `weir mediate`, read back by other programs.

mod common;

use common::chunks::chunk;
use common::{Folder, stdout, weir};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_lab::net::Process;
use weir_lab::postgres::Postgres;
use weir_lab::testenv;
use weir_ledger::Spool;
use weir_meter::{Chunk, Direction, Key};
use weir_wire::rng::SplitMix64;

/// A configuration with this output, of the counter `one`.
fn configure(folder: &Folder, output: &str) -> String {
    let text = format!(
        "store = '{}'\ninterval = '1ms'\n[[counter]]\nspool = '{}'\n[[output]]\n{output}",
        folder.path("ledger"),
        folder.path("one"),
    );
    let path = folder.path("mediator.toml");
    fs::write(&path, text).unwrap();
    path
}

fn spool(folder: &Folder) -> Spool {
    Spool::open(folder.path("one").as_ref()).unwrap()
}

/// Runs the mediator once; what it says on standard error if it fails.
fn once(config: &str) -> Result<serde_json::Value, String> {
    let run = weir(["mediate", "--config", config, "--once", "--json"])
        .output()
        .unwrap();
    if run.status.success() {
        return Ok(serde_json::from_str(&stdout(&run)).unwrap());
    }
    Err(String::from_utf8_lossy(&run.stderr).into_owned())
}

fn proof_holds(folder: &Folder) {
    let proof = weir(["usage", "--store", &folder.path("ledger"), "--prove"])
        .output()
        .unwrap();
    assert!(proof.status.success(), "{proof:?}");
}

const SUMS: &str = "SELECT count(*), sum(packets), sum(bytes) FROM weir_usage";

#[test]
fn a_database_has_each_record_once_whatever_is_killed() {
    const SEED: u64 = 46;
    println!("seed {SEED}");
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let mut random = SplitMix64::new(SEED);
    let folder = Folder::new("outputs-kills");
    let connection = server.connection();
    let output = format!("name = 'db'\nformat = 'postgresql'\nconnection = '{connection}'\n");
    let config = configure(&folder, &output);
    let mut spool = spool(&folder);
    let mut sum = 0;
    for period in 0..20 {
        let packets: Vec<u64> = (0..300).map(|_| random.bits() % 1000 + 1).collect();
        sum += packets.iter().sum::<u64>();
        spool
            .store(&mut [chunk("one", period, &packets)], b"")
            .unwrap();
        let mut mediator = weir(["mediate", "--config", &config])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(random.bits() % 60_000));
        if random.bits().is_multiple_of(4) {
            server.kill();
            std::thread::sleep(Duration::from_millis(5));
            mediator.signal(Signal::KILL).unwrap();
            server.run();
        } else {
            mediator.signal(Signal::KILL).unwrap();
        }
        mediator.ended(Duration::from_secs(30)).unwrap();
    }
    once(&config).unwrap();
    let expected = format!("{}|{sum}|{}", 20 * 300, sum * 64);
    assert_eq!(server.psql(SUMS), expected);
    assert_eq!(server.psql("SELECT count(*) FROM weir_usage_chunk"), "20");
    proof_holds(&folder);
    // Given again, nothing is doubled; what the database has lost comes back.
    let replay = |period: &str| {
        weir([
            "mediate", "--config", &config, "--replay", "db", "--period", period, "--json",
        ])
        .output()
        .unwrap()
    };
    assert!(stdout(&replay("7")).contains("\"records\":0"));
    server.psql("DELETE FROM weir_usage WHERE period = 7");
    server.psql("DELETE FROM weir_usage_chunk WHERE period = 7");
    assert!(stdout(&replay("7")).contains("\"records\":300"));
    assert_eq!(server.psql(SUMS), expected);
}

#[test]
fn a_database_that_fails_within_commit_gets_the_records_later() {
    let Some(server) = Postgres::start() else {
        return;
    };
    let folder = Folder::new("outputs-commit");
    let connection = server.connection();
    let output = format!("name = 'db'\nformat = 'postgresql'\nconnection = '{connection}'\n");
    let config = configure(&folder, &output);
    let mut spool = spool(&folder);
    spool
        .store(&mut [chunk("one", 0, &[1, 2, 3])], b"")
        .unwrap();
    once(&config).unwrap();
    server.psql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no room today'; END $$;
         CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON weir_usage_chunk
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();",
    );
    spool.store(&mut [chunk("one", 1, &[4, 5])], b"").unwrap();
    let said = once(&config).unwrap_err();
    assert!(
        said.contains("no room today") && said.contains("output db"),
        "{said}"
    );
    assert_eq!(server.psql(SUMS), "3|6|384");
    server.psql("DROP TRIGGER refuse ON weir_usage_chunk");
    once(&config).unwrap();
    assert_eq!(server.psql(SUMS), "5|15|960");
    let row = server.psql(
        "SELECT counter, boot_epoch, period, extract(epoch FROM \"end\" - start), owner, subscriber,
                session, keys, service, direction, packets, more IS NULL
         FROM weir_usage WHERE period = 1 AND record = 1",
    );
    assert_eq!(
        row,
        "one|0000000000000001|1|60.000000|session|subscriber-1|one/1|vlan:7.1|all|up|5|t"
    );
    // Another ledger's counter of the same name is not mixed with this one's.
    fs::remove_file(folder.path("ledger")).unwrap();
    fs::remove_file(folder.path("one")).unwrap();
    drop(spool);
    let mut spool = Spool::open(folder.path("one").as_ref()).unwrap();
    spool.store(&mut [chunk("one", 1, &[9])], b"").unwrap();
    let said = once(&config).unwrap_err();
    assert!(said.contains("two counters have the same name"), "{said}");
    assert_eq!(server.psql(SUMS), "5|15|960");
}

/// The name of a server's socket in its folder.
const SOCKET: &str = ".s.PGSQL.5432";

/// Passes on one connection to a server, up to its commit: the server's answer to that is not passed
/// on, and both ends are closed.
fn cut_at_commit(listener: &UnixListener, server: &str) {
    let (mut client, _) = listener.accept().unwrap();
    let mut server = UnixStream::connect(server).unwrap();
    let (mut back, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let is_committing = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = back.read(&mut bytes) {
                if is_committing.load(Ordering::SeqCst) {
                    // It has answered: it has committed.
                    break;
                }
                to_client.write_all(&bytes[..length]).unwrap();
            }
            let _ = to_client.shutdown(Shutdown::Both);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = client.read(&mut bytes) {
            let commits = bytes[..length].windows(6).any(|word| word == b"COMMIT");
            is_committing.fetch_or(commits, Ordering::SeqCst);
            if server.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
    });
    assert!(is_committing.load(Ordering::SeqCst), "it did not commit");
}

#[test]
fn a_commit_whose_answer_is_lost_is_not_made_twice() {
    let Some(server) = Postgres::start() else {
        return;
    };
    let folder = Folder::new("outputs-answer");
    let real = server.connection();
    let (host, rest) = real.split_once(' ').unwrap();
    let socket = format!("{}/{SOCKET}", host.strip_prefix("host=").unwrap());
    let between = folder.path("");
    let listener = UnixListener::bind(folder.path(SOCKET)).unwrap();
    let output = |connection: &str| {
        format!("name = 'db'\nformat = 'postgresql'\nconnection = '{connection}'\n")
    };
    let mut spool = spool(&folder);
    spool.store(&mut [chunk("one", 0, &[1, 2])], b"").unwrap();
    // The tables are there: the first commit is that of the records.
    let config = configure(&folder, &output(&real));
    once(&config).unwrap();
    spool.store(&mut [chunk("one", 1, &[4, 8])], b"").unwrap();
    let config = configure(&folder, &output(&format!("host={between} {rest}")));
    let proxy = std::thread::spawn(move || cut_at_commit(&listener, &socket));
    let said = once(&config).unwrap_err();
    proxy.join().unwrap();
    assert!(said.contains("output db: PostgreSQL"), "{said}");
    // The database has them, and the ledger does not know.
    assert_eq!(server.psql(SUMS), "4|15|960");
    let config = configure(&folder, &output(&real));
    assert_eq!(once(&config).unwrap()["chunks"], 0);
    assert_eq!(server.psql(SUMS), "4|15|960");
    assert_eq!(server.psql("SELECT count(*) FROM weir_usage_chunk"), "2");
    proof_holds(&folder);
}

#[test]
fn a_server_that_is_not_there_is_said_and_other_outputs_go_on() {
    let folder = Folder::new("outputs-absent");
    let there = folder.path("");
    let output = format!(
        "name = 'db'\nformat = 'postgresql'\nconnection = 'host={there}nowhere user=weir'\n\
         [[output]]\nname = 'csv'\nformat = 'csv'\nfolder = '{there}'\n"
    );
    let config = configure(&folder, &output);
    spool(&folder)
        .store(&mut [chunk("one", 0, &[1])], b"")
        .unwrap();
    let said = once(&config).unwrap_err();
    assert!(
        said.contains("output db: PostgreSQL: ") && said.contains("tried again"),
        "{said}"
    );
    assert!(fs::exists(folder.path("csv-00000001-00000001.csv")).unwrap());
}

#[test]
fn duckdb_reads_csv_and_parquet_alike() {
    let Some(mut python) = testenv::python(&["duckdb"]) else {
        return;
    };
    let folder = Folder::new("outputs-duckdb");
    let there = folder.path("");
    let formats = ["csv", "parquet"];
    let outputs = formats
        .map(|format| format!("name = '{format}'\nformat = '{format}'\nfolder = '{there}'\n"));
    let config = configure(&folder, &outputs.join("[[output]]\n"));
    let mut spool = spool(&folder);
    for period in 0..3 {
        let mut hostile = chunk("one", period, &[1, 20, 300]);
        hostile.owners[1].subscriber = "O'Hara, \"Bob\"\n=1+2 ☃".to_owned();
        hostile.owners[2].reported = Some([7, 8, 9, 10]);
        spool.store(&mut [hostile], b"").unwrap();
    }
    once(&config).unwrap();
    let query = "SELECT count(*), sum(packets), sum(bytes), min(\"start\")::VARCHAR, \
                 max(epoch(\"end\")), sum(reported_bytes), max(subscriber) \
                 FROM '{}' WHERE direction = 'up' AND owner = 'session'";
    let script = format!(
        "import duckdb, sys\nduckdb.sql(\"SET TimeZone = 'UTC'\")\nfor path in sys.argv[1:]:\n    \
         print(duckdb.sql(\"\"\"{query}\"\"\".replace('{{}}', path)).fetchall())"
    );
    let paths = formats.map(|format| format!("{there}{format}-00000001-00000003.{format}"));
    let run = python.args(["-c", &script]).args(&paths).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let printed = stdout(&run);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], lines[1]);
    let expected = "[(9, 963, 61632, '1970-01-01 00:00:00+00', 180.0, 21, ";
    assert!(lines[1].starts_with(expected), "{}", lines[1]);
    proof_holds(&folder);
}

/// A chunk whose subscribers have addresses, in both directions.
fn with_addresses(period: u64) -> Chunk {
    let mut chunk = chunk("one", period, &[1, 20, 300, 4000]);
    chunk.owners[0].keys = vec![Key::Ipv4([192, 0, 2, 1].into())];
    chunk.owners[1].keys = vec![Key::Ipv4([192, 0, 2, 2].into())];
    chunk.owners[2].keys = vec![Key::Ipv6("2001:db8::3".parse().unwrap())];
    chunk.owners[3].keys = vec![Key::Ipv6("2001:db8::4".parse().unwrap())];
    // The second and the fourth go down.
    for record in [1, 3] {
        chunk.records[record].direction = Direction::Down;
    }
    for totals in [&mut chunk.manifest.totals, &mut chunk.manifest.link] {
        totals.packets = [301, 4020];
        totals.bytes = [301 * 64, 4020 * 64];
    }
    chunk
}

/// A port of UDP that no program has.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// The messages of a file of IPFIX, each sent in a datagram: collectors that listen on UDP alone.
fn relay(messages: &[u8], to: u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut rest = messages;
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let to = SocketAddr::from(([127, 0, 0, 1], to));
        assert_eq!(socket.send_to(&rest[..length], to).unwrap(), length);
        rest = &rest[length..];
        // A collector's socket buffer is small.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The IPFIX file of two periods, by the command.
fn ipfix_file(folder: &Folder) -> Vec<u8> {
    let there = folder.path("");
    let output = format!("name = 'flows'\nformat = 'ipfix'\nfolder = '{there}'\n");
    let config = configure(folder, &output);
    let mut spool = spool(folder);
    for period in 0..2 {
        spool.store(&mut [with_addresses(period)], b"").unwrap();
    }
    once(&config).unwrap();
    proof_holds(folder);
    fs::read(folder.path("flows-00000001-00000002.ipfix")).unwrap()
}

/// Whether a program has a UDP socket at this port of the loopback.
fn until_listening(port: u16, process: &mut Process) {
    let began = Instant::now();
    let wanted = format!("0100007F:{port:04X}");
    while !fs::read_to_string("/proc/net/udp")
        .unwrap()
        .contains(&wanted)
    {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "it does not listen"
        );
        let ended = process.wait(Duration::from_millis(20)).unwrap();
        assert!(ended.is_none(), "it has ended: {ended:?}");
    }
}

#[test]
fn nfcapd_reads_ipfix() {
    if !testenv::programs(&["nfcapd", "nfdump"]) {
        return;
    }
    let folder = Folder::new("outputs-nfcapd");
    let messages = ipfix_file(&folder);
    let flows = folder.path("flows");
    fs::create_dir(&flows).unwrap();
    let port = free_port();
    let mut nfcapd = testenv::program("nfcapd").unwrap();
    let mut nfcapd = nfcapd
        .args(["-b", "127.0.0.1", "-p", &port.to_string(), "-w", &flows])
        .args(["-t", "3600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_listening(port, &mut nfcapd);
    relay(&messages, port);
    std::thread::sleep(Duration::from_millis(500));
    nfcapd.signal(Signal::TERM).unwrap();
    nfcapd.ended(Duration::from_secs(30)).unwrap();
    let files = fs::read_dir(&flows)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let written: Vec<PathBuf> = files.collect();
    let run = testenv::program("nfdump")
        .unwrap()
        .arg("-r")
        .arg(&written[0])
        .args(["-6", "-q", "-N", "-o", "fmt:%sa|%da|%pkt|%byt"])
        .output()
        .unwrap();
    let printed = stdout(&run).replace(' ', "");
    let mut rows: Vec<&str> = printed.lines().filter(|line| line.contains('|')).collect();
    rows.sort_unstable();
    let row = |text: &'static str| [text, text];
    let mut expected: Vec<&str> = [
        "0.0.0.0|192.0.2.2|20|1280",
        "192.0.2.1|0.0.0.0|1|64",
        "2001:db8::3|::|300|19200",
        "::|2001:db8::4|4000|256000",
    ]
    .into_iter()
    .flat_map(row)
    .collect();
    expected.sort_unstable();
    assert_eq!(rows, expected, "{written:?}: {run:?}");
}

#[test]
fn nfacctd_reads_ipfix() {
    if !testenv::programs(&["nfacctd"]) {
        return;
    }
    let folder = Folder::new("outputs-nfacctd");
    let messages = ipfix_file(&folder);
    let port = free_port();
    let (printed, log) = (folder.path("printed.csv"), folder.path("log"));
    let configuration = format!(
        "daemonize: false\nnfacctd_ip: 127.0.0.1\nnfacctd_port: {port}\nplugins: print[a]\n\
         aggregate[a]: src_host, dst_host\nprint_output[a]: csv\nprint_output_file[a]: {printed}\n\
         print_refresh_time[a]: 1\nprint_output_file_append[a]: true\nlogfile: {log}\n"
    );
    let file = folder.path("nfacctd.conf");
    fs::write(&file, configuration).unwrap();
    let mut nfacctd = testenv::program("nfacctd").unwrap();
    let mut nfacctd = nfacctd
        .args(["-f", &file])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_listening(port, &mut nfacctd);
    // Messages before its plugin is ready are lost.
    let began = Instant::now();
    let has_said = |what: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(what));
    while !has_said("waiting for NetFlow") || !has_said("cache entries") {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    relay(&messages, port);
    let sums = || {
        let text = fs::read_to_string(&printed).unwrap_or_default();
        let mut sums = [0_u64; 2];
        for line in text.lines() {
            let cells: Vec<&str> = line.split(',').collect();
            if let [.., packets, bytes] = cells[..]
                && let (Ok(packets), Ok(bytes)) = (packets.parse::<u64>(), bytes.parse::<u64>())
            {
                sums[0] += packets;
                sums[1] += bytes;
            }
        }
        (sums, text)
    };
    let began = Instant::now();
    let all = [2 * 4321, 2 * 4321 * 64];
    while sums().0 != all && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(100));
    }
    // Nothing more comes with its next refresh. What it prints when it is stopped does not
    // count: its last table once more, where the signal comes just after it was printed.
    std::thread::sleep(Duration::from_millis(1_500));
    let (sums, text) = sums();
    assert_eq!(sums, all, "{text}");
    nfacctd.signal(Signal::INT).unwrap();
    let _ = nfacctd.wait(Duration::from_secs(10));
    for address in ["192.0.2.1", "192.0.2.2", "2001:db8::3", "2001:db8::4"] {
        assert!(text.contains(address), "{text}");
    }
}

#[test]
fn a_collector_that_goes_away_is_sent_the_rest_later() {
    let folder = Folder::new("outputs-collector");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let output = format!("name = 'flows'\nformat = 'ipfix'\ncollector = '{address}'\n");
    let config = configure(&folder, &output);
    spool(&folder).store(&mut [with_addresses(0)], b"").unwrap();
    drop(listener);
    let said = once(&config).unwrap_err();
    assert!(said.contains(&format!("collector {address}")), "{said}");
    let listener = TcpListener::bind(address).unwrap();
    let received = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let done = once(&config).unwrap();
    assert_eq!(done["files"], 1);
    let bytes = received.join().unwrap();
    assert!(bytes.windows(12).any(|part| part == b"subscriber-3"));
}

#[test]
fn a_full_disk_loses_nothing() {
    if !testenv::root() || !testenv::programs(&["unshare", "mount", "sh"]) {
        return;
    }
    let folder = Folder::new("outputs-full");
    let small = folder.path("small");
    fs::create_dir(&small).unwrap();
    let output = format!("name = 'csv'\nformat = 'csv'\nfolder = '{small}'\n");
    let config = configure(&folder, &output);
    let packets: Vec<u64> = (1..=5000).collect();
    let mut spool = spool(&folder);
    for period in 0..4 {
        spool
            .store(&mut [chunk("one", period, &packets)], b"")
            .unwrap();
    }
    // A file system of 1 MiB for the output, which the four periods do not fit into, in a mount
    // namespace that goes with the shell.
    let script = format!(
        "mount -t tmpfs -o size=1m weir-test '{small}' && \
         {weir} mediate --config '{config}' --once --json; echo status $?; ls '{small}'",
        weir = env!("CARGO_BIN_EXE_weir"),
    );
    let run = testenv::program("unshare")
        .unwrap()
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("No space left on device"), "{run:?}");
    let printed = stdout(&run);
    assert!(printed.contains("status 1"), "{printed}");
    assert!(
        !printed.contains(".csv\n"),
        "a file that is not whole: {printed}"
    );
    // The ledger has all of it; the output gets it when there is room.
    let done = once(&config).unwrap();
    assert_eq!((&done["chunks"], &done["files"]), (&0.into(), &1.into()));
    proof_holds(&folder);
    // And a ledger on a full disk: the chunks stay in the spool.
    let script = format!(
        "mount -t tmpfs -o size=1m weir-test '{small}' && \
         {weir} mediate --config '{config}' --store '{small}/ledger' --once --json; echo status $?",
        weir = env!("CARGO_BIN_EXE_weir"),
    );
    for period in 4..8 {
        spool
            .store(&mut [chunk("one", period, &packets)], b"")
            .unwrap();
    }
    let run = testenv::program("unshare")
        .unwrap()
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("make room on its disk"), "{run:?}");
}

/// The store of `weir meter -r` is new, and the disk full at some point of its making.
#[test]
fn a_full_disk_leaves_no_part_of_a_new_store() {
    if !testenv::root() || !testenv::programs(&["unshare", "mount", "sh"]) {
        return;
    }
    let folder = Folder::new("meter-full");
    let small = folder.path("small");
    fs::create_dir(&small).unwrap();
    let run = weir(["demo", "--frames", "20000", "--write", &folder.path("")])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let office = folder.path("office.pcapng");
    for size in ["4k", "8k", "32k", "100k", "140k", "300k", "64m"] {
        let script = format!(
            "mount -t tmpfs -o size={size} weir-test '{small}' && \
             {weir} meter -r '{office}' --store '{small}/usage.db' >&2; \
             echo status $?; ls '{small}'",
            weir = env!("CARGO_BIN_EXE_weir"),
        );
        let run = testenv::program("unshare")
            .unwrap()
            .args(["--mount", "sh", "-c", &script])
            .output()
            .unwrap();
        let expected = if size == "64m" {
            "status 0\nusage.db\n"
        } else {
            "status 1\n"
        };
        assert_eq!(stdout(&run), expected, "{size}: {run:?}");
    }
}
