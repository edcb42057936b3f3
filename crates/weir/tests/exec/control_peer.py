"""Answers each datagram with a line on how it came: the sender's address, the destination, the hop limit
and the traffic class. The answers have hop limit 77 and class 0x28."""

import select
import socket
import struct

PKTINFO, RECVPKTINFO = 8, 49

sockets = []
for family in (socket.AF_INET, socket.AF_INET6):
    one = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind(("", 9000))
    if family == socket.AF_INET:
        for option in (PKTINFO, socket.IP_RECVTOS, 12):
            one.setsockopt(socket.IPPROTO_IP, option, 1)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 77)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
    else:
        for option in (RECVPKTINFO, socket.IPV6_RECVTCLASS, socket.IPV6_RECVHOPLIMIT):
            one.setsockopt(socket.IPPROTO_IPV6, option, 1)
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 77)
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x28)
    sockets.append(one)
ready = socket.create_server(("", 9000))

while True:
    for one in select.select(sockets, [], [])[0]:
        _, came, _, sender = one.recvmsg(2000, 200)
        line = [sender[0]]
        for _, kind, value in came:
            if kind == PKTINFO and len(value) == 12:
                line.append(socket.inet_ntop(socket.AF_INET, value[8:]))
            elif len(value) == 20:
                line.append(socket.inet_ntop(socket.AF_INET6, value[:16]))
            else:
                line.append(str(value[0] if len(value) == 1 else struct.unpack("i", value)[0]))
        one.sendto(" ".join(line).encode(), sender)
