//! `[meter]` of `weir run`: frames of the outside count for the subscriber to whom stages translate
//! them, each once.

use super::*;
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};

/// Two subscribers.
const ALICE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
/// The address that the outside sees.
const POOL: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 200);
/// The inside transport port of mappings, and one that is not let in.
const INSIDE_PORT: u16 = 4000;
const STRANGER: u16 = 5001;
const RATE: Rate = Rate::PerSecond(20_000.0);

const NAT: &str =
    "[[stage]]\nkind = \"nat\"\npool = [\"10.8.0.200\"]\ninside = [\"10.7.0.0/16\"]\n";

/// Subscribers at `a`, a chain in the middle, a server at `b`.
struct Chain {
    net: Net,
    files: Files,
    server: UdpSocket,
}

impl Chain {
    fn new(name: &str, stages: &str, counter: &str) -> Option<Chain> {
        if !testenv::programs(&["ip"]) {
            return None;
        }
        let net = net()?;
        // As devices that take redirected frames.
        let polling = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        for device in [&net.eth_a, &net.left, &net.right, &net.eth_b] {
            device.set_offloads(polling).unwrap();
        }
        for address in [ALICE, BOB] {
            net.eth_a.add_address(address, 16).unwrap();
        }
        net.eth_b.add_address(TO, 24).unwrap();
        live::ip(&net.a, &["route", "add", "default", "via", "10.7.255.254"]);
        live::ip(&net.b, &["route", "add", "default", "via", "10.8.0.254"]);
        let files = Files::new(name, counter);
        let text = format!(
            "outside = \"right\"\n[[link]]\nname = \"left\"\naddresses = [\"10.7.255.254/16\"]\n\
             [[link]]\nname = \"right\"\naddresses = [\"10.8.0.254/24\"]\n\
             [meter]\nconfig = \"counter.toml\"\nstore = \"usage.db\"\n{stages}"
        );
        fs::write(files.0.path("box.toml"), text).unwrap();
        let server = net
            .b
            .run(|| UdpSocket::bind(SocketAddr::from((TO, PORT))).unwrap());
        server
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        Some(Chain { net, files, server })
    }

    fn command(&self, options: &[&str]) -> Running {
        let config = self.files.0.path("box.toml");
        let arguments = [&["run", &config], options].concat();
        Running::start(&self.net.middle, weir([]), &arguments)
    }

    fn start(&self, options: &[&str]) -> Running {
        let json = self.files.0.path("stats.json");
        let base = ["--hang-ms", "10000", "--stats-json", &*json];
        self.command(&[&base, options].concat()).until("ready")
    }

    fn stats(&self) -> Value {
        let text = fs::read_to_string(self.files.0.path("stats.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// A datagram of a subscriber to the server until it arrives; gives how many were sent, and the
    /// source that the server sees.
    fn reach(&self, from: Ipv4Addr) -> (u64, SocketAddr) {
        let from = SocketAddr::from((from, INSIDE_PORT));
        let client = self.net.a.run(|| UdpSocket::bind(from).unwrap());
        let word = from.to_string();
        let mut buffer = [0; 64];
        let began = Instant::now();
        for sent in 1.. {
            assert!(began.elapsed() < WAIT_MAX, "{from} does not reach it");
            client.send_to(word.as_bytes(), (TO, PORT)).unwrap();
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until {
                if let Ok((len, source)) = self.server.recv_from(&mut buffer)
                    && buffer[..len] == *word.as_bytes()
                {
                    return (sent, source);
                }
            }
        }
        unreachable!()
    }

    fn upstream(&self, from: Ipv4Addr) -> Udp {
        Udp {
            src_port: INSIDE_PORT,
            dst_port: PORT,
            ..Udp::new(self.net.eth_a.mac(), self.net.left.mac(), from, TO)
        }
    }

    /// Frames of a subscriber; gives how many came.
    fn up(&self, from: Ipv4Addr, frames: u64) -> u64 {
        let udp = self.upstream(from);
        came(
            Generator::new(&self.net.eth_a, &udp)
                .unwrap()
                .send(frames, RATE),
        )
    }

    fn downstream(&self, src_port: u16, to: SocketAddr) -> Udp {
        let SocketAddr::V4(to) = to else { panic!() };
        Udp {
            src_port,
            dst_port: to.port(),
            ..Udp::new(self.net.eth_b.mac(), self.net.right.mac(), TO, *to.ip())
        }
    }

    /// Frames of the server, or of a stranger; gives how many came.
    fn down(&self, src_port: u16, to: SocketAddr, frames: u64) -> u64 {
        let udp = self.downstream(src_port, to);
        came(
            Generator::new(&self.net.eth_b, &udp)
                .unwrap()
                .send(frames, RATE),
        )
    }

    /// Packets of UDP up and down, of subscribers: alice, bob; and of none.
    fn recorded(&self) -> ([[u64; 2]; 2], [u64; 2]) {
        let ledger = Ledger::open(self.files.store().as_ref()).unwrap();
        let rows = ledger.usage(&UsageQuery::default(), &jiff::tz::TimeZone::UTC);
        let (mut known, mut others) = ([[0; 2]; 2], [0; 2]);
        for row in rows.unwrap() {
            if !["test", "other"].contains(&&*row.service) {
                continue;
            }
            let sum = match (row.owner, &*row.subscriber) {
                (OwnerKind::Session, "subscriber-1") => &mut known[0],
                (OwnerKind::Session, "subscriber-2") => &mut known[1],
                _ => &mut others,
            };
            sum[0] += row.packets[0];
            sum[1] += row.packets[1];
        }
        (known, others)
    }

    fn assert_proven(&self) {
        let store = self.files.store();
        let proof = weir(["usage", "--store", &store, "--prove"]).output();
        let proof = proof.unwrap();
        assert!(proof.status.success(), "{proof:?}");
        let said = stdout(&proof);
        assert!(said.contains("link = sessions + unattributed"), "{said}");
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.command(&["--clean"]).end();
    }
}

fn came(sent: Result<Sent, weir_lab::load::GeneratorError>) -> u64 {
    let sent = sent.unwrap();
    sent.frames - sent.dropped
}

/// Frames down are all there, and most are their subscribers': the first ones of a flow that gets an entry may
/// be dropped meanwhile, and then count without a subscriber.
#[track_caller]
fn assert_all_but_held_back(known: [[u64; 2]; 2], down: [u64; 2], more: u64) {
    let known = known.map(|one| one[1]);
    assert_eq!(known[0] + known[1] + more, down[0] + down[1], "{known:?}");
    for (known, down) in known.iter().zip(&down) {
        assert!(known <= down && known * 2 >= *down, "{known} of {down}");
    }
}

/// Time for frames on their way.
fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn a_translator_counts_each_frame_for_the_subscriber_behind_it() {
    for cache in ["on", "off"] {
        let Some(chain) = Chain::new(&format!("metering-nat-{cache}"), NAT, "") else {
            return;
        };
        let running = chain.start(&["--flow-cache", cache]);
        let (mut alice, mut bob) = ([0; 2], [0; 2]);
        let (sent, to_alice) = chain.reach(ALICE);
        alice[0] += sent;
        let (sent, to_bob) = chain.reach(BOB);
        bob[0] += sent;
        assert_eq!([to_alice.ip(), to_bob.ip()], [POOL, POOL]);
        for _ in 0..2 {
            alice[0] += chain.up(ALICE, 1500);
            bob[0] += chain.up(BOB, 700);
            alice[1] += chain.down(PORT, to_alice, 2000);
            bob[1] += chain.down(PORT, to_bob, 900);
        }
        // A mapping lets in what its subscriber has sent to; and nothing has this one.
        let refused = chain.down(STRANGER, to_alice, 300)
            + chain.down(PORT, SocketAddr::from((POOL, 1000)), 200);
        settle();
        let ended = running.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let stats = chain.stats();
        if cache == "on" {
            let cached = stats["flow_cache"]["frames"].as_u64();
            assert!(cached > Some(4000), "{stats}");
        }
        let (down, up) = (alice[1] + bob[1] + refused, alice[0] + bob[0]);
        let meter = &stats["meter"]["link"]["packets"];
        assert!(
            meter[0].as_u64() >= Some(up) && meter[1].as_u64() >= Some(down),
            "{stats}"
        );
        let (known, others) = chain.recorded();
        assert_eq!([known[0][0], known[1][0], others[0]], [alice[0], bob[0], 0]);
        assert_all_but_held_back(known, [alice[1], bob[1]], others[1] - refused);
        chain.assert_proven();
    }
}

/// Frames in the hands of a process that is killed, and those that come while none runs, have no
/// subscriber, and are counted.
#[test]
fn a_killed_translator_leaves_no_frame_uncounted() {
    let Some(chain) = Chain::new("metering-nat-kills", NAT, "") else {
        return;
    };
    let mut sum = [0; 2];
    let mut running = chain.start(&[]);
    for round in 0..3 {
        let (sent, to_alice) = chain.reach(ALICE);
        sum[0] += sent;
        sum[1] += chain.down(PORT, to_alice, 1000);
        // Not of the flow: these come to the process.
        let strangers = chain.downstream(STRANGER, to_alice);
        let mut strangers = Generator::new(&chain.net.eth_b, &strangers).unwrap();
        let udp = chain.downstream(PORT, to_alice);
        let mut generator = Generator::new(&chain.net.eth_b, &udp).unwrap();
        let sending = generator.start(u64::MAX, RATE).unwrap();
        wait_sent(&sending, 1000);
        running.signal(Signal::STOP);
        sum[1] += came(strangers.send(400, RATE));
        running.signal(Signal::KILL);
        running.end();
        wait_sent(&sending, 600);
        if round == 2 {
            // The next process counts apart, and takes over what is left here.
            let config = chain.files.config();
            let text = fs::read_to_string(&config).unwrap();
            let text = text.replace("capacity = 256", "capacity = 512");
            // Its cells are longer than those of before.
            fs::write(&config, text + "[measures]\nflows = true\n").unwrap();
        }
        if round == 1 {
            // Frames come while a process starts, too.
            running = chain.start(&[]);
            sum[1] += came(sending.stop());
        } else {
            sum[1] += came(sending.stop());
            running = chain.start(&[]);
        }
    }
    settle();
    let ended = running.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ([alice, _], others) = chain.recorded();
    assert_eq!([alice[0] + others[0], alice[1] + others[1]], sum);
    assert_eq!(alice[0], sum[0]);
    assert!(alice[1] >= 3 * 1900, "{alice:?} of {sum:?}");
    assert!(others[1] >= 3 * (400 + 500), "{others:?} of {sum:?}");
    chain.assert_proven();
}

/// Frames that were on their way when a process hung go on after the hang; they and those that are dropped
/// meanwhile count.
#[test]
fn a_hung_translator_leaves_no_frame_uncounted() {
    let Some(chain) = Chain::new("metering-nat-hangs", NAT, "") else {
        return;
    };
    for cache in ["on", "off"] {
        let options = ["--hang-ms", "100", "--flow-cache", cache];
        let running = chain.command(&options).until("ready");
        let before = chain.recorded();
        let (_, to_alice) = chain.reach(ALICE);
        let udp = chain.downstream(PORT, to_alice);
        let mut generator = Generator::new(&chain.net.eth_b, &udp).unwrap();
        let sending = generator.start(u64::MAX, RATE).unwrap();
        for _ in 0..3 {
            wait_sent(&sending, 2000);
            running.signal(Signal::STOP);
            wait_sent(&sending, 6000);
            running.signal(Signal::CONT);
        }
        wait_sent(&sending, 2000);
        let down = came(sending.stop());
        settle();
        let ended = running.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let (mut known, mut others) = chain.recorded();
        known[0][1] -= before.0[0][1];
        others[1] -= before.1[1];
        assert_eq!(known[0][1] + others[1], down, "{known:?}, {others:?}");
        assert!(known[0][1] >= 4000, "{known:?} and {others:?} of {down}");
        chain.assert_proven();
    }
}

/// Frames that rings lose count, without a subscriber, while the process goes on.
#[test]
fn frames_lost_before_the_translator_count_when_it_is_quiet() {
    let Some(chain) = Chain::new("metering-nat-lost", NAT, "") else {
        return;
    };
    let running = chain.start(&["--ring", "64", "--metrics", "127.0.0.1:0"]);
    let (_, to_alice) = chain.reach(ALICE);
    let strangers = chain.downstream(STRANGER, to_alice);
    let mut strangers = Generator::new(&chain.net.eth_b, &strangers).unwrap();
    running.signal(Signal::STOP);
    let lost = came(strangers.send(2000, RATE));
    running.signal(Signal::CONT);
    let counted = |text: &str| {
        let line = "weir_meter_packets_total{direction=\"down\"} ";
        let value = text.split_once(line)?.1.lines().next()?;
        value.parse::<u64>().ok()
    };
    let began = Instant::now();
    while counted(&running.metrics(&chain.net.middle)) < Some(lost) {
        assert!(began.elapsed() < WAIT_MAX, "{lost} frames are not counted");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Once: also if more come.
    let down = chain.down(PORT, to_alice, 500);
    settle();
    let ended = running.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ([alice, _], others) = chain.recorded();
    assert_eq!(alice[1] + others[1], down + lost);
    assert!(others[1] >= lost && alice[1] > 0, "{alice:?}, {others:?}");
    assert!(
        chain.files.lost() > 1000,
        "{} of {lost}",
        chain.files.lost()
    );
    chain.assert_proven();
}

/// The last block of the pool is one subscriber's, then of none, then another one's.
#[test]
fn a_mapping_that_another_subscriber_gets_has_one_owner_at_a_time() {
    /// Blocks of a pool address of 16 transport ports, from 1024 on.
    const BLOCKS: u32 = 64_512 / 16;
    let stages = format!(
        "log = \"nat.ndjson\"\n{NAT}block = 16\nblock_rest = \"100ms\"\n[stage.timeouts]\n\
         udp = \"6s\"\n"
    );
    let (log_key, stages) = stages.split_at(stages.find('\n').unwrap() + 1);
    let Some(chain) = Chain::new("metering-nat-reuse", stages, "") else {
        return;
    };
    let (config, log) = (
        chain.files.0.path("box.toml"),
        chain.files.0.path("nat.ndjson"),
    );
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{log_key}{text}")).unwrap();
    let running = chain.start(&[]);
    let (_, to_alice) = chain.reach(ALICE);
    // All other blocks are others', whose sessions do not end meanwhile.
    let others = Udp {
        src_addresses: BLOCKS - 1,
        dst_port: 5002,
        src: Ipv4Addr::new(10, 7, 1, 0),
        ..chain.upstream(ALICE)
    };
    let mut others = Generator::new(&chain.net.eth_a, &others).unwrap();
    let mut refresh = || _ = others.send(u64::from(BLOCKS - 1), RATE).unwrap();
    refresh();
    let of_alice = chain.down(PORT, to_alice, 700);
    let began = Instant::now();
    let is_released = || {
        let log = fs::read_to_string(&log).unwrap();
        log.lines()
            .any(|line| line.contains("block-released") && line.contains("\"10.7.0.1\""))
    };
    while !is_released() {
        assert!(
            began.elapsed() < WAIT_MAX,
            "the block of alice is not released"
        );
        refresh();
        std::thread::sleep(Duration::from_millis(300));
    }
    let of_none = chain.down(PORT, to_alice, 300);
    refresh();
    // One of these source ports gets the port that was alice's.
    let bobs = (0..8).map(|number| {
        let at = SocketAddr::from((BOB, INSIDE_PORT + 2 * number));
        chain.net.a.run(|| UdpSocket::bind(at).unwrap())
    });
    let bobs: Vec<UdpSocket> = bobs.collect();
    let mut buffer = [0; 64];
    let began = Instant::now();
    'found: loop {
        assert!(began.elapsed() < WAIT_MAX, "bob does not get the port");
        for bob in &bobs {
            bob.send_to(b"bob", (TO, PORT)).unwrap();
        }
        while let Ok((_, source)) = chain.server.recv_from(&mut buffer) {
            if source == to_alice && buffer.starts_with(b"bob") {
                break 'found;
            }
        }
        refresh();
    }
    let of_bob = chain.down(PORT, to_alice, 900);
    settle();
    let ended = running.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (known, others) = chain.recorded();
    assert_all_but_held_back(known, [of_alice, of_bob], others[1] - of_none);
    chain.assert_proven();
}

/// Without translation the kernel counts where frames come in.
#[test]
fn a_chain_that_does_not_translate_is_metered_at_its_links() {
    let mark = "[[stage]]\nkind = \"mark\"\ndscp = \"ef\"\n";
    let policy = "default_policy = \"open\"\n[policy.open]\nrate = \"1G\"\n";
    let Some(chain) = Chain::new("metering-mark", mark, policy) else {
        return;
    };
    let running = chain.start(&["--metrics", "127.0.0.1:0"]);
    let (sent, seen) = chain.reach(ALICE);
    let mut alice = [sent, 0];
    assert_eq!(seen.ip(), ALICE);
    alice[0] += chain.up(ALICE, 1500);
    alice[1] += chain.down(PORT, seen, 2000);
    let lines = [
        "weir_run_stage_packets_total{stage=\"0\"",
        "weir_meter_sessions 100\n",
    ];
    running.until_metrics(&chain.net.middle, &lines);
    settle();
    running.signal(Signal::KILL);
    running.end();
    // The host's bypass: counted all the same.
    alice[0] += chain.up(ALICE, 300);
    alice[1] += chain.down(PORT, seen, 400);
    chain.start(&[]).stop();
    assert_eq!(chain.recorded(), ([alice, [0; 2]], [0; 2]));
    chain.assert_proven();
}

#[test]
fn what_cannot_be_metered_behind_a_translator_is_refused() {
    let policy = "default_policy = \"open\"\n[policy.open]\nrate = \"1G\"\n";
    let side = "[[link]]\ninside = \"right\"\n";
    for (name, counter, why) in [
        ("policy", policy, "leave [policy] out"),
        ("keys", "keys = [\"vlan\", \"ipv4\"]\n", "keys: \"vlan\""),
        (
            "side",
            side,
            "with outside = \"right\" all other links are inside",
        ),
    ] {
        let Some(chain) = Chain::new(&format!("metering-nat-{name}"), NAT, counter) else {
            return;
        };
        for options in [&["--check"][..], &["--restart"], &[]] {
            let ended = chain.command(options).end();
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert!(ended.stderr.contains(why), "{why}: {ended:?}");
        }
        assert_eq!(chain.net.attached(), [false, false]);
    }
}

/// Frames in the rings and those that come while no process runs have no subscriber; sessions go on.
#[test]
fn a_translator_that_starts_anew_goes_on_with_its_counter() {
    let Some(chain) = Chain::new("metering-nat-restart", NAT, "") else {
        return;
    };
    let mut running = chain.start(&["--restart"]);
    let (sent, to_alice) = chain.reach(ALICE);
    let udp = chain.downstream(PORT, to_alice);
    let mut generator = Generator::new(&chain.net.eth_b, &udp).unwrap();
    let sending = generator.start(u64::MAX, RATE).unwrap();
    for _ in 0..2 {
        wait_sent(&sending, 2000);
        running.signal_at_once(Signal::USR1);
        running = running.until("goes on with 1 session").until("ready");
    }
    wait_sent(&sending, 2000);
    let down = came(sending.stop());
    settle();
    let ended = running.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ([alice, _], others) = chain.recorded();
    assert_eq!([alice[0], alice[1] + others[1]], [sent, down]);
    assert!(alice[1] >= 5000, "{alice:?} and {others:?} of {down}");
    chain.assert_proven();
}

/// Frames for a service count for the server that gets them.
#[test]
fn a_balancer_counts_for_the_servers() {
    let stages = "[[stage]]\nkind = \"balance\"\nservice = \"10.8.0.201:5000\"\nprotocol = \"udp\"\n\
                  [[stage.server]]\nto = \"10.7.0.1:4000\"\n[[stage.server]]\nto = \"10.7.0.2:4000\"\n\
                  draining = true\n";
    let Some(chain) = Chain::new("metering-balance", stages, "") else {
        return;
    };
    let running = chain.start(&[]);
    let service = SocketAddr::from((Ipv4Addr::new(10, 8, 0, 201), PORT));
    let mut down = 0;
    for _ in 0..3 {
        down += chain.down(6000, service, 500);
    }
    let beside = chain.down(6000, SocketAddr::from((service.ip(), 7000)), 200);
    settle();
    let ended = running.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (known, others) = chain.recorded();
    assert_eq!([known[0][0], known[1][0], others[0]], [0; 3]);
    assert_all_but_held_back(known, [down, 0], others[1] - beside);
    chain.assert_proven();
}

#[test]
fn an_explanation_names_the_address_that_is_metered() {
    let folder = Folder::new("metering-explain");
    let (config, office) = (folder.path("box.toml"), folder.path("office.pcapng"));
    let wrote = weir(["demo", "--write", &folder.path("")])
        .output()
        .unwrap();
    assert!(wrote.status.success(), "{wrote:?}");
    let text = format!(
        "outside = \"right\"\n[[link]]\nname = \"left\"\n[[link]]\nname = \"right\"\n\
         [meter]\nconfig = \"counter.toml\"\n{NAT}"
    );
    fs::write(&config, text.replace("10.7.0.0/16", "192.0.2.0/24")).unwrap();
    let explained = weir(["run", &config, "--explain", "-r", &office]).output();
    let explained = explained.unwrap();
    assert!(explained.status.success(), "{explained:?}");
    let said = stdout(&explained);
    assert!(said.contains("  metered up for 192.0.2."), "{said}");
    let wrong = text_of_one_link();
    fs::write(&config, wrong).unwrap();
    let refused = weir(["run", &config, "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("box.toml:4:1: [meter]: frames of both directions"),
        "{said}"
    );
}

fn text_of_one_link() -> &'static str {
    "outside = \"right\"\n[[link]]\nname = \"right\"\n[meter]\nconfig = \"counter.toml\"\n\
     [[stage]]\nkind = \"balance\"\nservice = \"10.8.0.201:5000\"\n[[stage.server]]\n\
     to = \"10.7.0.1:4000\"\n"
}
