"""Prints the ancillary data that calls on datagram sockets receive and send, a line each. Run on the
kernel's sockets and on weir's, the lines must be the same. Arguments: the own and the peer's address of
IPv4, those of IPv6, the interface of the link, and parts to run, or all."""

import ctypes
import errno
import select
import socket
import struct
import sys
import time

OWN4, PEER4, OWN6, PEER6, INTERFACE = sys.argv[1:6]
IP, IPV6, SOCKET = socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET
PKTINFO, RECVERR, RECVTTL = 8, 11, 12
TIMESTAMP, TIMESTAMPNS = 29, 35
RECVPKTINFO, PKTINFO6, RECVERR6 = 49, 50, 25
HOPLIMIT6, RECVHOPLIMIT, TCLASS6, RECVTCLASS = 52, 51, 67, 66
MSG_ERRQUEUE = 0x2000
NAMES = {
    (SOCKET, TIMESTAMP): "TIMESTAMP",
    (SOCKET, TIMESTAMPNS): "TIMESTAMPNS",
    (IP, PKTINFO): "PKTINFO",
    (IP, socket.IP_TTL): "TTL",
    (IP, socket.IP_TOS): "TOS",
    (IP, RECVERR): "RECVERR",
    (IPV6, PKTINFO6): "PKTINFO6",
    (IPV6, HOPLIMIT6): "HOPLIMIT",
    (IPV6, TCLASS6): "TCLASS",
    (IPV6, RECVERR6): "RECVERR6",
}
REQUESTS = [(IP, PKTINFO), (IP, RECVTTL), (IP, socket.IP_RECVTOS)]
REQUESTS6 = [(IPV6, RECVPKTINFO), (IPV6, RECVHOPLIMIT), (IPV6, RECVTCLASS)]


def say(what, value):
    print(f"{what}: {value}", flush=True)


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error)


def flags(value):
    names = {0x8: "CTRUNC", 0x20: "TRUNC", MSG_ERRQUEUE: "ERRQUEUE"}
    return " ".join(name for bit, name in names.items() if value & bit)


def interface(index):
    known = {0: "none", socket.if_nametoindex(INTERFACE): "the interface"}
    return known.get(index, index)


def address(ip):
    names = {OWN4: "own", OWN6: "own", PEER4: "peer", PEER6: "peer", "0.0.0.0": "any", "::": "any"}
    return names.get(ip.removeprefix("::ffff:"), ip)


def recent(seconds):
    return abs(time.time() - seconds) < 10


def shown(level, kind, value):
    name = NAMES.get((level, kind), (level, kind))
    whole = {"TIMESTAMP": 16, "TIMESTAMPNS": 16, "TTL": 4, "TOS": 1, "HOPLIMIT": 4, "TCLASS": 4, "PKTINFO": 12, "PKTINFO6": 20}
    if name in whole and len(value) != whole[name]:
        return f"{name} of {len(value)} bytes"
    if name in ("TTL", "HOPLIMIT", "TCLASS"):
        return f"{name} {struct.unpack('i', value)[0]}"
    if name == "TOS":
        return f"TOS {value[0]}"
    if name == "TIMESTAMP":
        seconds, us = struct.unpack("ll", value)
        return f"{name} {recent(seconds + us / 1e6)} {0 <= us < 10**6}"
    if name == "TIMESTAMPNS":
        seconds, ns = struct.unpack("ll", value)
        return f"{name} {recent(seconds + ns / 1e9)} {0 <= ns < 10**9}"
    if name == "PKTINFO":
        index, own, to = struct.unpack("i4s4s", value)
        return f"{name} {interface(index)} {address(socket.inet_ntoa(own))} {address(socket.inet_ntoa(to))}"
    if name == "PKTINFO6":
        to, index = struct.unpack("16si", value)
        return f"{name} {interface(index)} {address(socket.inet_ntop(socket.AF_INET6, to))}"
    if len(value) < 32:
        return f"{name} of {len(value)} bytes"
    number, origin, of, code, pad, info, rest = struct.unpack("IBBBBII", value[:16])
    if len(value) == 16 + 16:
        offender = socket.inet_ntoa(value[20:24])
    else:
        offender = socket.inet_ntop(socket.AF_INET6, value[24:40])
    family = struct.unpack("H", value[16:18])[0]
    return f"{name} {errno.errorcode[number]} {origin, of, code, pad, info, rest} {family} {address(offender)}"


def messages(came):
    return [shown(*one) for one in came]


def received(what, one, size=2000, room=512, how=0):
    try:
        data, came, bits, sender = one.recvmsg(size, room, how)
    except OSError as error:
        say(what, errno.errorcode.get(error.errno, error))
        return
    text = data.decode().replace(OWN4, "OWN").replace(OWN6, "OWN").replace(PEER4, "PEER").replace(PEER6, "PEER")
    sender = (address(sender[0]), *sender[1:2]) if sender else sender
    say(what, (text, messages(came), flags(bits), sender))


def opened(family=socket.AF_INET, requests=()):
    one = socket.socket(family, socket.SOCK_DGRAM)
    one.settimeout(10)
    for option in requests:
        one.setsockopt(*option, 1)
    return one


def options():
    for family, wanted in ((socket.AF_INET, REQUESTS + [(IP, RECVERR)]), (socket.AF_INET6, REQUESTS6 + [(IPV6, RECVERR6)])):
        for own in (None, OWN4 if family == socket.AF_INET else OWN6):
            with opened(family) as one:
                if own:
                    one.bind((own, 0))
                for option in wanted + [(SOCKET, TIMESTAMP), (SOCKET, TIMESTAMPNS)]:
                    say(f"default of {option}", outcome(one.getsockopt, *option))
                    say("set", outcome(one.setsockopt, *option, 5))
                    say("then", outcome(one.getsockopt, *option))
                say("the other time", outcome(one.getsockopt, SOCKET, TIMESTAMP))
                say("off", outcome(one.setsockopt, SOCKET, TIMESTAMP, 0))
                say("both", [outcome(one.getsockopt, SOCKET, name) for name in (TIMESTAMP, TIMESTAMPNS)])
                if family == socket.AF_INET:
                    say("of IPv6", outcome(one.setsockopt, *REQUESTS6[0], 1))
                    say("of IPv6", outcome(one.getsockopt, *REQUESTS6[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
        stream.connect((PEER4, 9000))
        say("of a stream", [outcome(stream.setsockopt, *option, 1) for option in REQUESTS])


def receiving():
    for family, own, peer, wanted in (
        (socket.AF_INET, OWN4, PEER4, REQUESTS),
        (socket.AF_INET6, OWN6, PEER6, REQUESTS6),
        (socket.AF_INET6, "::ffff:" + OWN4, "::ffff:" + PEER4, REQUESTS + REQUESTS6),
    ):
        for name in ("bound", "any", "connected"):
            with opened(family, wanted) as one:
                if name == "bound":
                    one.bind((own, 0))
                elif name == "connected":
                    one.connect((peer, 9000))
                one.sendto(b"x", (peer, 9000))
                received(f"{name} in {family}", one)
        with opened(family) as one:
            one.sendto(b"x", (peer, 9000))
            received("nothing asked for", one)
            one.setsockopt(SOCKET, TIMESTAMP, 1)
            for option in wanted:
                one.setsockopt(*option, 1)
            one.sendto(b"x", (peer, 9000))
            received("a look", one, how=socket.MSG_PEEK)
            received("with the time", one)
            one.setsockopt(SOCKET, TIMESTAMPNS, 1)
            one.setsockopt(*wanted[0], 0)
            one.sendto(b"x", (peer, 9000))
            received("in nanoseconds", one)
    for room in (0, 10, 16, 20, 28, 32, 40, 47, 48, 56, 64):
        with opened(socket.AF_INET, REQUESTS) as one:
            one.sendto(b"x", (PEER4, 9000))
            received(f"room for {room} bytes", one, room=room)
        with opened(socket.AF_INET6, REQUESTS6) as one:
            one.sendto(b"x", (PEER6, 9000))
            received(f"room for {room} bytes", one, room=room)


def sending():
    index, none = socket.if_nametoindex(INTERFACE), 9999
    packed = socket.inet_aton
    own, foreign, any_ = (packed(ip) for ip in (OWN4, "198.51.100.99", "0.0.0.0"))
    mapped = bytes(10) + b"\xff\xff"
    four = [
        ("source", [(IP, PKTINFO, struct.pack("i4s4s", 0, own, any_))]),
        ("interface", [(IP, PKTINFO, struct.pack("i4s4s", index, any_, any_))]),
        ("both", [(IP, PKTINFO, struct.pack("i4s4s", index, own, foreign))]),
        ("neither", [(IP, PKTINFO, bytes(12))]),
        ("foreign source", [(IP, PKTINFO, struct.pack("i4s4s", 0, foreign, any_))]),
        ("unknown interface", [(IP, PKTINFO, struct.pack("i4s4s", none, any_, any_))]),
        ("short", [(IP, PKTINFO, bytes(8))]),
        ("TTL", [(IP, socket.IP_TTL, struct.pack("i", 33))]),
        ("TTL 0", [(IP, socket.IP_TTL, struct.pack("i", 0))]),
        ("TTL 256", [(IP, socket.IP_TTL, struct.pack("i", 256))]),
        ("TTL of a byte", [(IP, socket.IP_TTL, b"\x05")]),
        ("TOS", [(IP, socket.IP_TOS, struct.pack("i", 0x48))]),
        ("TOS of a byte", [(IP, socket.IP_TOS, b"\x24")]),
        ("all", [(IP, socket.IP_TOS, b"\x24"), (IP, PKTINFO, struct.pack("i4s4s", 0, own, any_)), (IP, socket.IP_TTL, struct.pack("i", 9))]),
        ("an unknown one", [(IP, 99, b"1234")]),
        ("of IPv6", [(IPV6, HOPLIMIT6, struct.pack("i", 3))]),
        ("of the socket", [(SOCKET, 99, b"1234")]),
    ]
    own6, foreign6 = (socket.inet_pton(socket.AF_INET6, ip) for ip in (OWN6, "2001:db8:9::9"))
    six = [
        ("source", [(IPV6, PKTINFO6, struct.pack("16si", own6, 0))]),
        ("interface", [(IPV6, PKTINFO6, struct.pack("16si", bytes(16), index))]),
        ("both", [(IPV6, PKTINFO6, struct.pack("16si", own6, index))]),
        ("neither", [(IPV6, PKTINFO6, bytes(20))]),
        ("foreign source", [(IPV6, PKTINFO6, struct.pack("16si", foreign6, 0))]),
        ("unknown interface", [(IPV6, PKTINFO6, struct.pack("16si", bytes(16), none))]),
        ("short", [(IPV6, PKTINFO6, bytes(16))]),
        ("hop limit", [(IPV6, HOPLIMIT6, struct.pack("i", 33))]),
        ("the default", [(IPV6, HOPLIMIT6, struct.pack("i", -1))]),
        ("hop limit 256", [(IPV6, HOPLIMIT6, struct.pack("i", 256))]),
        ("class", [(IPV6, TCLASS6, struct.pack("i", 0x48))]),
        ("an unknown one", [(IPV6, 99, b"1234")]),
        ("of IPv4", [(IP, socket.IP_TTL, struct.pack("i", 3))]),
    ]
    both = [
        ("source", [(IPV6, PKTINFO6, struct.pack("16si", mapped + own, 0))]),
        ("source of IPv6", [(IPV6, PKTINFO6, struct.pack("16si", own6, 0))]),
        ("of IPv4", [(IP, socket.IP_TTL, struct.pack("i", 3))]),
    ]
    for family, peer, all_ in (
        (socket.AF_INET, PEER4, four),
        (socket.AF_INET6, PEER6, six),
        (socket.AF_INET6, "::ffff:" + PEER4, both),
    ):
        with opened(family) as one:
            # A wildcard address, so that the message alone gives the source.
            one.bind(("", 0))
            for name, given in all_:
                sent = outcome(one.sendmsg, [b"x", b"y"], given, 0, (peer, 9000))
                say(f"{name} in {family}", sent)
                if isinstance(sent, int):
                    received("the answer", one)
        with opened(family) as one:
            one.connect((peer, 9000))
            say(f"connected in {family}", outcome(one.sendmsg, [b"x"], all_[0][1]))
            received("the answer", one)


def polled(one, wanted=select.POLLIN | select.POLLERR):
    poll = select.poll()
    poll.register(one, wanted)
    names = ["EPOLLIN", "EPOLLOUT", "EPOLLERR", "EPOLLHUP"]
    mask = dict(poll.poll(2000)).get(one.fileno(), 0)
    return " ".join(name for name in names if mask & getattr(select, name))


def errors():
    for family, peer, wanted in (
        (socket.AF_INET, PEER4, [(IP, RECVERR)]),
        (socket.AF_INET6, PEER6, [(IPV6, RECVERR6)]),
        (socket.AF_INET6, "::ffff:" + PEER4, [(IPV6, RECVERR6), (IP, RECVERR)]),
    ):
        for more in ([], REQUESTS[1:] + REQUESTS6 if family == socket.AF_INET6 else REQUESTS[1:]):
            with opened(family, wanted + more + [(SOCKET, TIMESTAMP)] * bool(more)) as one:
                one.setblocking(False)
                say("no error", outcome(one.recvmsg, 10, 100, MSG_ERRQUEUE))
                one.sendto(b"nowhere", (peer, 4))
                say("polled", polled(one))
                say("for nothing", polled(one, 0))
                say("selected", [len(ready) for ready in select.select([one], [one], [one], 2)])
                say("its error", outcome(one.recv, 10))
                say("still", polled(one))
                received("the first", one, how=MSG_ERRQUEUE)
                say("polled again", polled(one, select.POLLOUT))
                received("no other", one, how=MSG_ERRQUEUE)
                one.sendto(b"again", (peer, 4))
                polled(one)
                received("read first", one, size=3, how=MSG_ERRQUEUE)
                say("then none", outcome(one.recv, 10))
                one.sendto(b"third", (peer, 4))
                polled(one)
                say("SO_ERROR", errno.errorcode.get(one.getsockopt(SOCKET, socket.SO_ERROR)))
                received("and the queue", one, room=20, how=MSG_ERRQUEUE)
                one.sendto(b"fourth", (peer, 4))
                polled(one)
                say("a send reports it", outcome(one.sendto, b"x", (peer, 9000)))
                say("and the next one sends", outcome(one.sendto, b"x", (peer, 9000)))
                while "EPOLLIN" not in polled(one):
                    pass
                say("all at once", polled(one))
                received("the answer", one)
                say("off", outcome(one.setsockopt, *wanted[-1], 0))
        with opened(family) as one:
            one.connect((peer, 4))
            one.send(b"nowhere")
            one.setblocking(False)
            say("connected", polled(one))
            say("its error", outcome(one.recv, 10))
            received("no queue", one, how=MSG_ERRQUEUE)
    sets = select.epoll()
    with opened(socket.AF_INET, [(IP, RECVERR)]) as one:
        one.setblocking(False)
        one.bind(("", 0))
        sets.register(one, select.EPOLLIN | select.EPOLLET)
        for text in (b"a", b"b"):
            one.sendto(text, (PEER4, 4))
            say("an edge", [bits for _, bits in sets.poll(2)])
            received("of epoll", one, how=MSG_ERRQUEUE)
        say("no more", sets.poll(0))


class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("parts", ctypes.POINTER(Part)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("len", ctypes.c_uint)]


def several():
    """recvmmsg(2), which Python does not have."""
    library = ctypes.CDLL(None, use_errno=True)
    with opened(socket.AF_INET, REQUESTS[1:] + [(IP, RECVERR)]) as one:
        for _ in range(3):
            one.sendto(b"x", (PEER4, 9000))
            polled(one)
            time.sleep(0.05)
        one.sendto(b"nowhere", (PEER4, 4))
        time.sleep(0.2)
        for how in (0, 0, MSG_ERRQUEUE):
            all_ = (Message * 5)()
            buffers = [(ctypes.create_string_buffer(100), ctypes.create_string_buffer(100)) for _ in all_]
            for message, (data, control) in zip(all_, buffers):
                header = message.header
                header.parts = ctypes.pointer(Part(ctypes.cast(data, ctypes.c_void_p), 100))
                header.count = 1
                header.control, header.controllen = ctypes.cast(control, ctypes.c_void_p), 100
            count = library.recvmmsg(one.fileno(), all_, 5, socket.MSG_DONTWAIT | how, None)
            say("messages", count if count >= 0 else errno.errorcode[ctypes.get_errno()])
            for message in all_[: max(count, 0)]:
                header = message.header
                say("one", (message.len > 0, header.controllen, flags(header.flags)))


def queued():
    """What is the same for a socket that several processes use: it has no POLLERR."""
    for family, peer, wanted in (
        (socket.AF_INET, PEER4, [(IP, RECVERR), (IP, RECVTTL)]),
        (socket.AF_INET6, PEER6, [(IPV6, RECVERR6), (SOCKET, TIMESTAMP)]),
    ):
        with opened(family, wanted) as one:
            for text in (b"first", b"other"):
                one.sendto(text, (peer, 4))
                one.settimeout(10)
                say("its error", outcome(one.recv, 10))
                one.setblocking(False)
                received("of the queue", one, how=MSG_ERRQUEUE)
            one.sendto(b"last", (peer, 4))
            polled(one)
            received("read first", one, size=2, how=MSG_ERRQUEUE)
            say("then none", outcome(one.recv, 10))
            received("of the queue", one, how=MSG_ERRQUEUE)


PARTS = (options, receiving, sending, errors, several, queued)
for part in PARTS:
    if not sys.argv[6:] or part.__name__ in sys.argv[6:]:
        say("--", part.__name__)
        part()
