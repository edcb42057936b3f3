//! Servers and tools that live by ancillary data: dnsmasq and traceroute.

use super::*;

/// A server at the wildcard address answers from the address that was asked, of which the host has two.
#[test]
fn dnsmasq_answers_from_the_address_that_was_asked() {
    let Some(kernel) = bench("exec-dnsmasq", &["dnsmasq", "python3"]) else {
        return;
    };
    let asks = "
import socket, struct, sys
question = b'\\x04name\\x04test\\0' + struct.pack('!HH', 1, 1)
for at in sys.argv[1:]:
    family = socket.AF_INET6 if ':' in at else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.settimeout(0.5)
        for trial in range(40):
            one.sendto(struct.pack('!6H', 7, 0x100, 1, 0, 0, 0) + question, (at, 5300))
            try:
                answer, sender = one.recvfrom(512)
                break
            except TimeoutError:
                pass
        print(sender[0] == at, answer[:2] == b'\\0\\7', socket.inet_ntoa(answer[-4:]))
";
    let more = ["--addr", "192.0.2.6/24", "--addr", "2001:db8::6/64"];
    let program = [
        "dnsmasq",
        "--no-daemon",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--user=",
        "--port=5300",
        "--host-record=name.test,203.0.113.7",
    ];
    let options: Vec<&str> = ["--stats"].into_iter().chain(more).collect();
    let server = exec(&kernel, &options, &program);
    let script = kernel.folder.write("asks.py", asks.as_bytes());
    let addresses = "192.0.2.5 192.0.2.6 2001:db8::5 2001:db8::6";
    let said = kernel.run(&format!("python3 {script} {addresses}"));
    let said = String::from_utf8(said).unwrap();
    assert_eq!(said, "True True 203.0.113.7\n".repeat(4));
    server.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// The errors of a router and of the destination, in the queue of a socket.
#[test]
fn traceroute_shows_the_way() {
    let Some(kernel) = bench("exec-traceroute", &["traceroute", "ip"]) else {
        return;
    };
    control::unlimit(&kernel);
    for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        kernel.host.set_sysctl(name, "1").unwrap();
    }
    let far = control::native(&kernel);
    control::run_on(&far, "ip route add 192.0.2.0/24 via 198.51.100.1");
    control::run_on(&far, "ip route add 2001:db8::/64 via 2001:db8:1::1");
    for (at, router) in control::NATIVE.into_iter().zip(KERNEL) {
        let program = ["traceroute", "-n", "-q", "2", "-m", "4", at[0]];
        let gateways = ["--stats", "--gateway", KERNEL[0], "--gateway", KERNEL[1]];
        let ended = exec(&kernel, &gateways, &program).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        check_owner(&ended);
        let hops: Vec<&str> = ended.stdout.lines().skip(1).collect();
        let [first, second] = hops[..] else {
            panic!("{ended:?}");
        };
        for (hop, from) in [(first, router), (second, at[0])] {
            let words: Vec<&str> = hop.split_whitespace().collect();
            assert_eq!(words[1], from, "{ended:?}");
            assert_eq!(
                words.iter().filter(|word| **word == "ms").count(),
                2,
                "{ended:?}"
            );
        }
    }
}
