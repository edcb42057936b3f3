//! SAs and policies of the kernel of the gateway's host.

use super::{INSIDE, Net, OUTSIDE, frames, hidden, text};
use crate::common::weir;
use crate::live::{Running, ip};
use std::fs;
use weir_lab::net::{Host, Signal};
use weir_lab::testenv;

/// The way between the two insides past ESP, as the gateways' hosts forward by themselves.
fn route_plain(net: &Net) {
    for (network, gateway) in [("10.1.0.0/16", OUTSIDE[0]), ("10.2.0.0/16", OUTSIDE[1])] {
        ip(&net.middle, &["route", "add", network, "via", gateway]);
    }
}

fn start(net: &Net) -> Running {
    let json = net.json(0);
    let arguments = [
        "ipsec",
        "eth1",
        "eth0",
        "--kernel-sas",
        "--stats-json",
        &json,
        "--hang-ms",
        "5000",
    ];
    Running::start(&net.gateways[0], weir([]), &arguments).until("ready")
}

fn xfrm(host: &Host, arguments: &str) {
    let words: Vec<&str> = ["xfrm"].into_iter().chain(arguments.split(' ')).collect();
    ip(host, &words);
}

fn reloads(net: &Net) -> u64 {
    net.stage(0)["counters"]["reloads"].as_u64().unwrap_or(0)
}

/// Changes the kernel's databases, and waits until weir has followed.
fn change(net: &Net, arguments: &str) {
    let before = reloads(net);
    xfrm(&net.gateways[0], arguments);
    net.until(0, "counters", "reloads", before + 1);
}

const NETS: &str = "src 10.1.0.0/16 dst 10.2.0.0/16";
const TEMPLATE: &str = "tmpl src 192.0.2.1 dst 198.51.100.1 proto esp reqid 7 mode tunnel";

#[test]
fn policies_of_the_kernel_are_followed() {
    let Some(net) = Net::new("ipsec-kernel-policies") else {
        return;
    };
    route_plain(&net);
    net.gateways[1]
        .set_sysctl("net.ipv4.ip_forward", "1")
        .unwrap();
    let mut running = start(&net);
    // What weir reads once more after its start.
    net.until(0, "counters", "reloads", 1);
    assert_eq!(net.pings(), 3, "a kernel without policies lets all pass");
    let capture = net.middle.capture().unwrap();
    change(
        &net,
        &format!("policy add {NETS} dir out priority 100 {TEMPLATE}"),
    );
    assert_eq!(net.pings(), 0);
    net.until(0, "drops", "no-outbound-sa", 3);
    hidden(&frames(&capture), b"no such text");
    change(&net, &format!("policy delete {NETS} dir out"));
    assert_eq!(net.pings(), 3);
    // What weir does not understand passes no packet, and is named.
    change(
        &net,
        &format!("policy add {NETS} dir out priority 100 mark 7 {TEMPLATE}"),
    );
    let line = running.line();
    assert!(line.contains("a mark"), "{line}");
    assert_eq!(net.pings(), 0);
    net.until(0, "counters", "refused", 1);
    change(&net, "policy flush");
    assert_eq!(net.pings(), 3);
    change(&net, "policy setdefault in accept fwd block out accept");
    assert_eq!(net.pings(), 0);
    let ended = running.stop();
    assert!(!ended.stderr.contains("panic"), "{ended:?}");
}

/// More changes than the kernel keeps for weir while it stands still: what is in the queue is older than what
/// weir then asks for.
#[test]
fn changes_that_were_lost_are_asked_for() {
    let Some(net) = Net::new("ipsec-kernel-lost") else {
        return;
    };
    route_plain(&net);
    net.gateways[1]
        .set_sysctl("net.ipv4.ip_forward", "1")
        .unwrap();
    let running = start(&net);
    net.until(0, "counters", "reloads", 1);
    let protect = format!("policy add {NETS} dir out index 8001 priority 100 {TEMPLATE}");
    change(&net, &protect);
    assert_eq!(net.pings(), 0);
    let other = format!(
        "xfrm policy update src 10.9.0.0/16 dst 10.8.0.0/16 dir out priority 5 {TEMPLATE}\n"
    );
    let batch = format!(
        "xfrm policy delete {NETS} dir out\n{}xfrm {protect}\n",
        other.repeat(30_000)
    );
    let batch = net.folder.write("batch", batch.as_bytes());
    let before = reloads(&net);
    running.signal(Signal::STOP);
    ip(&net.gateways[0], &["-batch", &batch]);
    running.signal(Signal::CONT);
    net.until(0, "counters", "reloads", before + 1);
    for _ in 0..2 {
        assert_eq!(net.pings(), 0, "the policy is there");
    }
    // What changes from now on is followed.
    change(&net, "policy flush");
    assert_eq!(net.pings(), 3);
    let ended = running.stop();
    assert!(!ended.stderr.contains("panic"), "{ended:?}");
}

/// The SAs, of a peer whose SAs are in a file.
#[test]
#[ignore = "needs a kernel that has ESP (CONFIG_INET_ESP)"]
fn sas_of_the_kernel_protect() {
    let Some(net) = Net::new("ipsec-kernel-sas") else {
        return;
    };
    let first = &net.gateways[0];
    let state = |direction: usize, number: u8| {
        let ends = [OUTSIDE[direction], OUTSIDE[1 - direction]];
        let key = format!("{number:02x}").repeat(36);
        format!(
            "xfrm state add src {} dst {} proto esp spi {} reqid 7 mode tunnel replay-window 64 flag esn \
             aead rfc4106(gcm(aes)) 0x{key} 128",
            ends[0],
            ends[1],
            1000 + u32::from(number)
        )
    };
    for (direction, number) in [(0, 2), (1, 3)] {
        let mut command = testenv::program("ip").unwrap();
        command.args(state(direction, number).split(' '));
        let done = first.output(command).unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    xfrm(
        first,
        &format!("policy add {NETS} dir out priority 100 {TEMPLATE}"),
    );
    let running = start(&net);
    let second = net.start(1, "");
    let capture = net.middle.capture().unwrap();
    assert_eq!(net.pings(), 3);
    assert!(hidden(&frames(&capture), b"no such text").len() >= 6);
    // New SAs at both, then without the old ones.
    for (direction, number) in [(1, 5), (0, 4)] {
        let words = state(direction, number);
        change(&net, words.strip_prefix("xfrm ").unwrap());
        fs::write(net.folder.path("sa1.toml"), text(1, &[1, 2], "")).unwrap();
        second.signal(Signal::HUP);
        net.until(1, "counters", "reloads", 1);
        assert_eq!(net.pings(), 3);
    }
    change(
        &net,
        &format!(
            "state delete src {} dst {} proto esp spi 1002",
            OUTSIDE[0], OUTSIDE[1]
        ),
    );
    assert_eq!(net.pings(), 3);
    [running, second].into_iter().for_each(|it| _ = it.stop());
    assert!(
        net.stage(0)["counters"]["opened"].as_u64() >= Some(9),
        "{INSIDE:?}"
    );
}
