//! A path between the gateways that is narrower than their links.

use super::{INSIDE, Net};
use crate::live::{ip, run};
use weir_lab::testenv;

/// The link of the router to the second gateway, which knows of it.
const NARROW: &str = "1400";

impl Net {
    /// `None` without root or ping.
    fn narrow(name: &str) -> Option<Net> {
        if !testenv::programs(&["ping"]) {
            return None;
        }
        let net = Net::new(name)?;
        ip(&net.middle, &["link", "set", "eth1", "mtu", NARROW]);
        Some(net)
    }

    /// What ping says of five packets of 1400 bytes; `how` is its treatment of DF.
    fn large_pings(&self, how: &str) -> String {
        let size = "1372";
        let arguments = [
            "-n", "-M", how, "-s", size, "-c", "5", "-i", "0.2", "-W", "5", INSIDE[1],
        ];
        run(&self.a, "ping", &arguments).unwrap()
    }
}

/// The router cuts ESP packets without DF, and the second gateway puts them together.
#[test]
fn fragments_of_esp_are_put_together() {
    for (name, udp) in [
        ("ipsec-fragments", ""),
        ("ipsec-fragments-udp", "udp = true\n"),
    ] {
        let Some(net) = Net::narrow(name) else {
            return;
        };
        let first = net.start(0, &format!("{udp}dont_fragment = \"clear\""));
        let second = net.start(
            1,
            &format!("{udp}dont_fragment = \"clear\"\nmtu = {NARROW}"),
        );
        let said = net.large_pings("dont");
        assert!(
            said.contains("5 received"),
            "{said}{}{}",
            net.stage(0),
            net.stage(1)
        );
        net.until(1, "counters", "reassembled", 5);
        [first, second].into_iter().for_each(|it| _ = it.stop());
    }
}

/// The router refuses ESP packets with DF; the first gateway learns, and the host inside too.
#[test]
fn the_mtu_of_the_path_is_learnt() {
    let Some(net) = Net::narrow("ipsec-path-mtu") else {
        return;
    };
    let first = net.start(0, "");
    let second = net.start(1, &format!("mtu = {NARROW}"));
    let said = net.large_pings("do");
    assert!(
        said.contains("mtu") || said.contains("0 received"),
        "{said}"
    );
    net.until(0, "counters", "path_mtu_lowered", 1);
    net.until(0, "counters", "too_big", 1);
    let said = net.large_pings("want");
    assert!(said.contains("5 received"), "{said}{}", net.stage(0));
    [first, second].into_iter().for_each(|it| _ = it.stop());
}
