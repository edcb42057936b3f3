"""Translates each packet between IPv6 and IPv4 by scapy, and compares all bytes.

Addresses, ports and identifications are the translator's choice, and so taken from its packet; the
rest, with all lengths and checksums, is computed anew (RFC 7915). Reads lines of JSON, {"before",
"after"}: frames in hex. Prints their number; exits with 1 at the first difference.
"""

import json
import sys

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.packet import Raw

ETHERNET = 14
TO_V4 = {ICMPv6EchoRequest: 8, ICMPv6EchoReply: 0}
TO_V6 = {8: ICMPv6EchoRequest, 0: ICMPv6EchoReply}


def ported(packet, kind, made):
    """TCP or UDP with the ports of the translator's packet, and without sums."""
    layer = packet[kind].copy()
    layer.sport, layer.dport = made[kind].sport, made[kind].dport
    layer.chksum = None
    return layer


def transport(packet, made):
    for kind in (TCP, UDP):
        if packet.haslayer(kind):
            return ported(packet, kind, made)
    if isinstance(packet, IPv6):
        for kind, number in TO_V4.items():
            if packet.haslayer(kind):
                echo = packet[kind]
                return ICMP(type=number, code=0, id=made[ICMP].id, seq=echo.seq) / Raw(echo.data)
    else:
        echo = packet[ICMP]
        kind = TO_V6[echo.type]
        return kind(id=made[kind].id, seq=echo.seq, data=bytes(echo.payload))
    raise ValueError("neither TCP nor UDP nor echo")


def translated(packet, made):
    rest = transport(packet, made)
    if isinstance(packet, IPv6):
        is_long = 20 + packet.plen > 1260
        number = 0 if is_long else made.id
        flags = "DF" if is_long else 0
        return IP(src=made.src, dst=made.dst, tos=packet.tc, ttl=packet.hlim, id=number, flags=flags) / rest
    return IPv6(src=made.src, dst=made.dst, tc=packet.tos, fl=0, hlim=packet.ttl) / rest


def main():
    count = 0
    for line in sys.stdin:
        frames = json.loads(line)
        before, after = (bytes.fromhex(frames[name])[ETHERNET:] for name in ("before", "after"))
        parse = [IPv6 if packet[0] >> 4 == 6 else IP for packet in (before, after)]
        packet, made = parse[0](before), parse[1](after)
        expected = bytes(translated(packet, made))
        if expected != after:
            print(f"{before.hex()}\nbecame   {after.hex()}\nexpected {expected.hex()}")
            sys.exit(1)
        count += 1
    print(count)


main()
