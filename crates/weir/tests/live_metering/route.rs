//! `weir route --meter`.

use super::*;

const ROUTER: &str = "\
[[link]]
name = \"left\"
addresses = [\"10.7.255.254/16\"]
[[link]]
name = \"right\"
addresses = [\"10.8.0.254/24\"]
";

fn through_a_router(name: &str, options: &[&str]) {
    let Some(net) = net() else { return };
    let files = Files::new(name, "[[link]]\ninside = \"left\"\n");
    let router = files.0.path("router.toml");
    fs::write(&router, ROUTER).unwrap();
    let clean = || {
        let arguments = ["route", "--config", &router, "--clean"];
        Running::start(&net.middle, weir([]), &arguments).end()
    };
    net.eth_b.add_address(TO, 24).unwrap();
    let start = || {
        let arguments = [
            &["route", "--config", &router, "--hang-ms", "10000"],
            options,
        ]
        .concat();
        files.run(&net.middle, &arguments)
    };
    let came = || net.eth_b.counters().unwrap().rx_frames;
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.left)).unwrap();
    let rate = Rate::PerSecond(20_000.0);
    let mut sum = 0;
    for _ in 0..2 {
        let running = start();
        let sent = generator.send(4000, rate).unwrap();
        sum += sent.frames - sent.dropped;
        // A debug build forwards slowly.
        std::thread::sleep(Duration::from_millis(500));
        running.signal(Signal::KILL);
        running.end();
        // Dropped, or the host's: counted all the same.
        let sent = generator.send(2000, rate).unwrap();
        sum += sent.frames - sent.dropped;
    }
    let running = start();
    std::thread::sleep(Duration::from_millis(200));
    running.stop();
    let ended = clean();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(net.attached(), [false, false]);
    assert!(came() > 1000, "{} frames were forwarded", came());
    files.assert_has(sum);
}

#[test]
fn a_router_counts_what_it_forwards_and_what_comes_meanwhile() {
    through_a_router("metering-route", &["--bypass", "drop"]);
}

#[test]
fn a_router_with_the_hosts_bypass_and_cached_verdicts_counts_too() {
    through_a_router("metering-route-kernel", &["--flow-cache", "on"]);
}

#[test]
fn a_check_covers_the_counter() {
    let Some(net) = net() else { return };
    let files = Files::new("metering-check", "[[link]]\ninside = \"elsewhere\"\n");
    let (config, router) = (files.config(), files.0.path("router.toml"));
    fs::write(&router, ROUTER).unwrap();
    let arguments = ["route", "--config", &router, "--check", "--meter", &config];
    let ended = Running::start(&net.middle, weir([]), &arguments).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("elsewhere"), "{ended:?}");
}

#[test]
fn the_routers_configuration_may_have_the_meter() {
    let Some(net) = net() else { return };
    let files = Files::new("metering-router-toml", "[[link]]\ninside = \"left\"\n");
    let router = files.0.path("router.toml");
    let meter = "[meter]\nconfig = \"counter.toml\"\nstore = \"usage.db\"\n";
    fs::write(&router, format!("{meter}{ROUTER}")).unwrap();
    let route = |more: &[&str]| {
        let arguments = [&["route", "--config", &router], more].concat();
        Running::start(&net.middle, weir([]), &arguments)
    };
    let twice = route(&["--check", "--meter", &files.config()]).end();
    assert_eq!(twice.code, Some(2), "{twice:?}");
    assert!(twice.stderr.contains("leave one of them out"), "{twice:?}");
    assert_eq!(route(&["--check"]).end().code, Some(0));
    let running = route(&[]).until("ready");
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.left)).unwrap();
    let sent = generator.send(2000, Rate::PerSecond(20_000.0)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    running.stop();
    files.assert_has(sent.frames - sent.dropped);
}
