//! A relay on a TUN interface: the kernel routes packets into it, a program
//! reads each packet and writes it back, and the kernel routes it on.

use super::thread_dut::Worker;
use crate::net::Device;
use crate::rfc2544::testbed::Testbed;
use crate::rfc2544::{Error, failed};
use std::io;
use weir_link::net::Tap;

const NAME: &str = "tun0";

/// The routing table of packets that have not passed the program.
const TABLE: u8 = 100;

/// Packets relayed before the stop flag is checked.
const BURST: usize = 64;

/// Starts the relay.
pub(super) fn start(bench: &Testbed, ports: &[Device; 2]) -> Result<Worker, Error> {
    let host = bench.dut();
    host.set_sysctl("net.ipv4.ip_forward", "1")?;
    let tun = host
        .run(|| Tap::open_packets(NAME))
        .map_err(failed("making a TUN interface"))?;
    let device = host.device(NAME)?;
    // Packets return with source addresses of other networks.
    for which in ["all", NAME] {
        host.set_sysctl(&format!("net.ipv4.conf.{which}.rp_filter"), "0")?;
    }
    device.up()?;
    device.route_table(TABLE)?;
    for port in ports {
        port.look_up_in(TABLE)?;
    }
    Worker::start(bench, "tun-relay", move || Ok((tun, [0; 2048])), pass)
}

fn pass((tun, packet): &mut (Tap, [u8; 2048])) -> io::Result<()> {
    for _ in 0..BURST {
        let Some(len) = tun.receive(packet)? else {
            break;
        };
        // Packets for which the kernel has no room are lost.
        tun.send(&packet[..len])?;
    }
    Ok(())
}
