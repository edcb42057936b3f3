//! coturn's `turnutils_natdiscovery` (RFC 5780) judges mapping and filtering.

use super::{Net, ip};
use std::time::{Duration, Instant};
use weir_lab::net::Signal;
use weir_lab::testenv;

/// The STUN server of the outside, with two addresses.
const SERVER: [&str; 2] = ["198.51.100.9", "198.51.100.10"];

#[test]
fn mapping_is_endpoint_independent_and_filtering_what_was_set() {
    if !testenv::programs(&["turnserver", "turnutils_natdiscovery"]) {
        return;
    }
    let Some(net) = Net::new("nat-discovery") else {
        return;
    };
    ip(&net.b, &["link", "set", "lo", "up"]);
    let mut command = testenv::program("turnserver").expect("asked for above");
    let pid = net.folder.path("turn.pid");
    command.args([
        "-n",
        "-S",
        "--no-tls",
        "--no-dtls",
        "--no-cli",
        "--log-file",
        "stdout",
    ]);
    command.args([
        "--listening-ip",
        SERVER[0],
        "--listening-ip",
        SERVER[1],
        "--pidfile",
        &pid,
    ]);
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let server = net.b.spawn(command).unwrap();
    for (filtering, said) in [
        (
            "endpoint-independent",
            "NAT with Endpoint Independent Filtering!",
        ),
        ("address", "NAT with Address Dependent Filtering!"),
        (
            "address-and-port",
            "NAT with Address and Port Dependent Filtering!",
        ),
    ] {
        let running = net.start(&["--filtering", filtering]);
        let report = discover(&net);
        assert!(
            report.contains("NAT with Endpoint Independent Mapping!"),
            "{report}"
        );
        assert!(report.contains(said), "{filtering}: {report}");
        running.signal(Signal::INT);
        running.end();
    }
    drop(server);
}

/// What the program says, once the server answers.
fn discover(net: &Net) -> String {
    let began = Instant::now();
    loop {
        let mut command = testenv::program("turnutils_natdiscovery").expect("asked for above");
        command.args(["-m", "-f", SERVER[0]]);
        let done = net.a.output(command).unwrap();
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        if said.contains("Mapping!") && said.contains("Filtering!") {
            return said;
        }
        assert!(began.elapsed() < super::live::WAIT_MAX, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
