//! Transport ports whose services the protocol table names.

/// Ports and names, of the IANA registry and of common use, in order of the ports.
const SERVICES: [(u16, &str); 66] = [
    (20, "ftp-data"),
    (21, "ftp"),
    (22, "ssh"),
    (23, "telnet"),
    (25, "smtp"),
    (53, "dns"),
    (67, "dhcp"),
    (68, "dhcp"),
    (69, "tftp"),
    (80, "http"),
    (88, "kerberos"),
    (110, "pop3"),
    (111, "rpcbind"),
    (119, "nntp"),
    (123, "ntp"),
    (137, "netbios-ns"),
    (138, "netbios-dgm"),
    (139, "netbios-ssn"),
    (143, "imap"),
    (161, "snmp"),
    (162, "snmp-trap"),
    (179, "bgp"),
    (389, "ldap"),
    (443, "https"),
    (445, "smb"),
    (465, "submissions"),
    (500, "isakmp"),
    (514, "syslog"),
    (515, "printer"),
    (546, "dhcpv6"),
    (547, "dhcpv6"),
    (554, "rtsp"),
    (587, "submission"),
    (631, "ipp"),
    (636, "ldaps"),
    (853, "dns-tls"),
    (873, "rsync"),
    (989, "ftps-data"),
    (990, "ftps"),
    (993, "imaps"),
    (995, "pop3s"),
    (1194, "openvpn"),
    (1433, "mssql"),
    (1812, "radius"),
    (1813, "radius-acct"),
    (1883, "mqtt"),
    (1900, "ssdp"),
    (2049, "nfs"),
    (2055, "netflow"),
    (3306, "mysql"),
    (3389, "rdp"),
    (3478, "stun"),
    (4500, "ipsec-nat-t"),
    (4739, "ipfix"),
    (4789, "vxlan"),
    (5060, "sip"),
    (5201, "iperf3"),
    (5353, "mdns"),
    (5355, "llmnr"),
    (5432, "postgresql"),
    (5900, "vnc"),
    (6081, "geneve"),
    (6379, "redis"),
    (8080, "http-alt"),
    (8443, "https-alt"),
    (51820, "wireguard"),
];

/// For each possible remainder of a port, one bit: most ports are excluded without a search.
const MAYBE: [u64; 64] = {
    let mut bits = [0; 64];
    let mut index = 0;
    while index < SERVICES.len() {
        let slot = SERVICES[index].0 as usize % 4096;
        bits[slot / 64] |= 1 << (slot % 64);
        index += 1;
    }
    bits
};

/// The name of a service by its transport port; `None` if it is not known here.
#[inline]
pub fn service_name(port: u16) -> Option<&'static str> {
    let slot = usize::from(port) % 4096;
    if MAYBE[slot / 64] >> (slot % 64) & 1 == 0 {
        return None;
    }
    let found = SERVICES.binary_search_by_key(&port, |(port, _)| *port);
    found.ok().map(|index| SERVICES[index].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_port() {
        assert!(SERVICES.is_sorted_by(|a, b| a.0 < b.0));
        for (port, name) in SERVICES {
            assert_eq!(service_name(port), Some(name));
        }
        let known = (0..=u16::MAX).filter(|port| service_name(*port).is_some());
        assert_eq!(known.count(), SERVICES.len());
    }
}
