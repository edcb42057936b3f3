//! Chunks by NATS JetStream to several mediators, into one PostgreSQL: with kills of all of them.

mod common;

use common::chunks::chunk;
use common::{Folder, stdout, weir};
use rustix::process::Signal;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::net::Process;
use weir_lab::postgres::Postgres;
use weir_lab::testenv;
use weir_ledger::Spool;
use weir_wire::rng::SplitMix64;

const LIMIT: Duration = Duration::from_secs(30);

/// A NATS server with JetStream on a port of the loopback.
struct Nats {
    port: u16,
    folder: String,
    process: Option<Process>,
}

impl Nats {
    fn start(folder: &Folder) -> Option<Nats> {
        testenv::program("nats-server")?;
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut nats = Nats {
            port: free.local_addr().unwrap().port(),
            folder: folder.path("jetstream"),
            process: None,
        };
        drop(free);
        nats.run();
        Some(nats)
    }

    fn run(&mut self) {
        let mut server = testenv::program("nats-server").unwrap();
        let process = server
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-js"])
            .args(["-sd", &self.folder])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(began.elapsed() < LIMIT, "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it at once; `forgets`: with all its data.
    fn kill(&mut self, forgets: bool) {
        let mut process = self.process.take().unwrap();
        process.signal(Signal::KILL).unwrap();
        process.ended(LIMIT).unwrap();
        if forgets {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

#[test]
fn totals_are_exact_though_servers_mediators_and_data_go() {
    const SEED: u64 = 222;
    println!("seed {SEED}");
    let folder = Folder::new("nats-kills");
    let Some(mut nats) = Nats::start(&folder) else {
        return;
    };
    let Some(server) = Postgres::start() else {
        return;
    };
    let mut random = SplitMix64::new(SEED);
    let url = nats.url();
    let counters = ["one", "two"];
    let mut spools = counters.map(|name| Spool::open(folder.path(name).as_ref()).unwrap());
    let quiet = |mut command: weir_lab::command::Command| {
        command
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let ship = |counter: &str| {
        quiet(weir([
            "ship",
            "--spool",
            &folder.path(counter),
            "--nats",
            &url,
        ]))
    };
    let configs = ["a", "b"].map(|name| {
        let text = format!(
            "store = '{}'\ninterval = '10ms'\nnats = '{url}'\n[[output]]\nname = 'db'\n\
             format = 'postgresql'\nconnection = '{}'\n",
            folder.path(&format!("ledger-{name}")),
            server.connection(),
        );
        folder.write(&format!("{name}.toml"), text.as_bytes())
    });
    let mediate = |config: &str| quiet(weir(["mediate", "--config", config]));
    let mut shippers = counters.map(&ship);
    let mut mediators = configs.each_ref().map(|config| mediate(config));
    let mut sum = 0;
    for period in 0..12 {
        for (spool, counter) in spools.iter_mut().zip(counters) {
            let packets: Vec<u64> = (0..50).map(|_| random.bits() % 1000 + 1).collect();
            sum += packets.iter().sum::<u64>();
            spool
                .store(&mut [chunk(counter, period, &packets)], b"")
                .unwrap();
        }
        std::thread::sleep(Duration::from_millis(random.bits() % 300));
        match period {
            3 | 8 => {
                // With data that no mediator has had, perhaps, and all of it lost.
                nats.kill(true);
                nats.run();
            }
            5 => {
                nats.kill(false);
                nats.run();
            }
            _ => {
                let at = (random.bits() % 2) as usize;
                mediators[at].signal(Signal::KILL).unwrap();
                mediators[at].ended(LIMIT).unwrap();
                mediators[at] = mediate(&configs[at]);
                shippers[at].signal(Signal::KILL).unwrap();
                shippers[at].ended(LIMIT).unwrap();
                shippers[at] = ship(counters[at]);
            }
        }
    }
    // What was published and lost is published again after half a minute, or by a new shipper at once.
    for process in &mut shippers {
        process.signal(Signal::TERM).unwrap();
        process.ended(LIMIT).unwrap();
    }
    for counter in counters {
        let run = weir([
            "ship",
            "--spool",
            &folder.path(counter),
            "--nats",
            &url,
            "--once",
            "--json",
        ])
        .output()
        .unwrap();
        assert!(run.status.success(), "{run:?}");
    }
    for process in &mut mediators {
        process.signal(Signal::TERM).unwrap();
        process.ended(LIMIT).unwrap();
    }
    for config in &configs {
        let run = weir(["mediate", "--config", config, "--once"])
            .output()
            .unwrap();
        assert!(run.status.success(), "{run:?}");
    }
    for spool in &spools {
        assert_eq!(spool.waiting().unwrap(), 0);
    }
    let found = server.psql("SELECT count(*), sum(packets) FROM weir_usage");
    assert_eq!(found, format!("{}|{sum}", 2 * 12 * 50));
    assert_eq!(server.psql("SELECT count(*) FROM weir_usage_chunk"), "24");
    nats.kill(true);
}

#[test]
fn what_no_ledger_has_stays_in_the_spool() {
    let folder = Folder::new("nats-alone");
    let Some(mut nats) = Nats::start(&folder) else {
        return;
    };
    let mut spool = Spool::open(folder.path("one").as_ref()).unwrap();
    spool.store(&mut [chunk("one", 0, &[1, 2])], b"").unwrap();
    let url = nats.url();
    let ship = || {
        weir([
            "ship",
            "--spool",
            &folder.path("one"),
            "--nats",
            &url,
            "--once",
            "--json",
        ])
        .output()
        .unwrap()
    };
    // The server has stored it, and that is not enough.
    let run = ship();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(
        stdout(&run).contains("\"published\":1,\"acknowledged\":0"),
        "{run:?}"
    );
    assert_eq!(spool.waiting().unwrap(), 1);
    // Anyone may claim to be a ledger: another hash deletes nothing; nonsense is no chunk.
    let text = format!("store = '{}'\nnats = '{url}'\n", folder.path("ledger"));
    let config = folder.write("mediator.toml", text.as_bytes());
    let mediate = || {
        weir(["mediate", "--config", &config, "--once", "--json"])
            .output()
            .unwrap()
    };
    let run = mediate();
    assert!(stdout(&run).contains("\"chunks\":1"), "{run:?}");
    // The shipper was not there to hear it: published again, it is known, and acknowledged again.
    let mut shipper = weir(["ship", "--spool", &folder.path("one"), "--nats", &url])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let mut known = 0;
    while spool.waiting().unwrap() > 0 {
        assert!(began.elapsed() < LIMIT, "it was not acknowledged");
        let run = mediate();
        let done: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
        known += done["known"].as_u64().unwrap();
    }
    assert_eq!(known, 1);
    shipper.signal(Signal::TERM).unwrap();
    assert!(shipper.ended(LIMIT).unwrap().success());
    nats.kill(false);
    let run = mediate();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        said.contains("NATS: ") && said.contains("nothing is lost"),
        "{said}"
    );
    for url in ["http://a", "nats://"] {
        let run = weir(["ship", "--spool", &folder.path("one"), "--nats", url])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{run:?}");
    }
}
