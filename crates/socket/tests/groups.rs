//! Groups: a kernel's bridge learns by IGMP and MLD the members of each, and sends
//! there alone.

use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab};
use weir_lab::testenv;
use weir_socket::{Net, UdpSocket, link};
use weir_stack::Config;
use weir_stack::iface::DadMode;
use weir_wire::ethernet::Address;

fn run(host: &Host, line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = testenv::program(words.next().unwrap()).expect(line);
    command.args(words);
    let output = host.output(command).unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the bridge comes to hold the interface for a member, or for none.
fn holds(host: &Host, group: &str, member: bool) -> bool {
    let began = Instant::now();
    let words = format!("port tap0 grp {group} ");
    while began.elapsed() < Duration::from_secs(10) {
        if run(host, "bridge mdb show").contains(&words) == member {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

#[test]
fn a_bridge_learns_of_groups_and_forgets_them() {
    if !testenv::root() || !testenv::tun() || !testenv::programs(&["ip", "bridge"]) {
        return;
    }
    // The latest versions, and those before.
    for (igmp, mld) in [(3, 2), (2, 1)] {
        let lab = Lab::new();
        let host = lab.host("bridge").unwrap();
        let tap = host.run(|| link::Tap::open("tap0")).unwrap();
        run(&host, "ip link add br0 type bridge");
        run(
            &host,
            &format!(
                "ip link set br0 type bridge mcast_snooping 1 mcast_querier 1 \
                 mcast_igmp_version {igmp} mcast_mld_version {mld} \
                 mcast_last_member_interval 20"
            ),
        );
        for line in [
            "ip addr add 192.0.2.1/24 dev br0",
            "ip addr add fe80::1/64 dev br0 nodad",
            "ip link set tap0 master br0",
            "ip link set tap0 up",
            "ip link set br0 up",
        ] {
            run(&host, line);
        }
        let mut config = Config::new(Address([2, 0, 0, 0, 0, 5]))
            .address("192.0.2.5/24".parse().unwrap())
            .address("2001:db8::5/64".parse().unwrap());
        config.dad_mode = DadMode::Optimistic;
        let net = Net::new(tap, &config).unwrap();
        // The group that stands for our address, by itself.
        assert!(holds(&host, "ff02::1:ff00:5", true), "MLDv{mld}");
        for (any, group, version) in [
            ("0.0.0.0:5000", "224.1.2.3", igmp),
            ("[::]:5000", "ff15::1234", mld),
        ] {
            let socket = UdpSocket::bind(&net, any).unwrap();
            socket.join_multicast(group.parse().unwrap()).unwrap();
            assert!(holds(&host, group, true), "{group}, version {version}");
            if any.starts_with('0') {
                // What the kernel sends to the group arrives.
                socket
                    .set_read_timeout(Some(Duration::from_secs(5)))
                    .unwrap();
                host.run(|| {
                    let sender = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
                    sender.send_to(b"to all", (group, 5000)).unwrap();
                });
                let mut heard = [0; 10];
                let (count, from) = socket.recv_from(&mut heard).unwrap();
                assert_eq!(&heard[..count], b"to all");
                assert_eq!(from.ip().to_string(), "192.0.2.1");
                // And what we send to it, to the kernel.
                let member = host.run(|| {
                    let member = std::net::UdpSocket::bind("0.0.0.0:5001").unwrap();
                    let (group, at) = (group.parse().unwrap(), "192.0.2.1".parse().unwrap());
                    member.join_multicast_v4(&group, &at).unwrap();
                    member
                });
                member
                    .set_read_timeout(Some(Duration::from_secs(5)))
                    .unwrap();
                socket.send_to(b"back", (group, 5001)).unwrap();
                let (count, from) = member.recv_from(&mut heard).unwrap();
                assert_eq!(
                    (&heard[..count], from.ip().to_string()),
                    (&b"back"[..], "192.0.2.5".to_owned())
                );
            }
            // Closed: left.
            drop(socket);
            assert!(holds(&host, group, false), "{group}, version {version}");
        }
    }
}

#[test]
fn an_absent_neighbour_is_an_unreachable_host() {
    let (a, _b) = link::mem().unwrap();
    let config = Config::new(Address([2, 0, 0, 0, 0, 1])).address("192.0.2.1/24".parse().unwrap());
    let net = Net::new(a, &config).unwrap();
    let began = Instant::now();
    let connected = weir_socket::TcpStream::connect(&net, "192.0.2.9:80");
    let error = connected.err().unwrap();
    // As Linux has it: three questions, a second apart.
    let expected = rustix::io::Errno::HOSTUNREACH.raw_os_error();
    assert_eq!(error.raw_os_error(), Some(expected), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}
