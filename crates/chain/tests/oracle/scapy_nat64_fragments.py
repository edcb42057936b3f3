"""Translates packets in fragments between IPv6 and IPv4 by scapy (RFC 7915 §4.1, §5.1.1).

Reads lines of JSON, {"before", "after"}: lists of frames in hex, the fragments of a packet before and
after in any order. scapy puts both together; the packet after must be the one before, with addresses
and ports of the translator's choice and a checksum computed anew; each header after must follow from
those before. Prints the number of lines; exits with 1 at the first difference.
"""

import json
import sys

from scapy.layers.inet import IP, TCP, UDP, defragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, defragment6

ETHERNET = 14


def parsed(frames):
    packets = [bytes.fromhex(frame)[ETHERNET:] for frame in frames]
    return [IPv6(packet) if packet[0] >> 4 == 6 else IP(packet) for packet in packets]


def offset(packet):
    if isinstance(packet, IP):
        return packet.frag
    return packet[IPv6ExtHdrFragment].offset if packet.haslayer(IPv6ExtHdrFragment) else 0


def whole(packets):
    if isinstance(packets[0], IP):
        made = defragment(packets)
        assert len(made) == 1, made
        return IP(bytes(made[0]))
    if not packets[0].haslayer(IPv6ExtHdrFragment):
        assert len(packets) == 1, packets
        return packets[0]
    return IPv6(bytes(defragment6(packets)))


def transport(packet):
    return packet[TCP] if packet.haslayer(TCP) else packet[UDP]


def expected(before, after):
    """The packet before, in the other version of IP."""
    rest = transport(before).copy()
    rest.sport, rest.dport = transport(after).sport, transport(after).dport
    rest.chksum = None
    if isinstance(after, IP):
        return bytes(IP(bytes(IP(src=after.src, dst=after.dst) / rest)).payload)
    return bytes(IPv6(bytes(IPv6(src=after.src, dst=after.dst) / rest)).payload)


def headers4(before, after):
    """Each fragment of IPv6 is one of IPv4."""
    assert len(before) == len(after)
    for old, new in zip(before, after):
        fragment = old[IPv6ExtHdrFragment]
        header = IP(
            src=new.src, dst=new.dst, tos=old.tc, ttl=old.hlim, proto=fragment.nh,
            id=fragment.id & 0xFFFF, flags="MF" if fragment.m else 0, frag=fragment.offset,
            len=20 + old.plen - 8,
        )
        assert bytes(header) == bytes(new)[:20], (header, new)


def headers6(before, after, mtu):
    """A fragment of IPv4 is one of IPv6, or several: all have the same identification."""
    for new in after:
        assert (new.tc, new.hlim, new.fl) == (before[0].tos, before[0].ttl, 0), new
        assert len(bytes(new)) <= mtu, new
        if new.haslayer(IPv6ExtHdrFragment):
            assert new[IPv6ExtHdrFragment].id == before[0].id, new


def main():
    count = 0
    for line in sys.stdin:
        groups = json.loads(line)
        before, after = (sorted(parsed(groups[name]), key=offset) for name in ("before", "after"))
        was, made = whole(before), whole(after)
        found = bytes(made)[20 if isinstance(made, IP) else 40 :]
        if expected(was, made) != found:
            print(f"{was!r}\nbecame {made!r}\nexpected {expected(was, made).hex()}\nfound {found.hex()}")
            sys.exit(1)
        if isinstance(after[0], IP):
            headers4(before, after)
        else:
            headers6(before, after, 1500)
        count += 1
    print(count)


main()
