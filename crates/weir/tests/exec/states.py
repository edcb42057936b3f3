"""Prints what calls return on sockets in rare states, a line each. On the kernel's sockets and on weir's the lines
must be the same. The argument names the state."""

import errno
import os
import select
import socket
import struct
import sys
import threading
import time

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


def tried(what, call, *arguments):
    """Prints the result of a call, or its error."""
    try:
        value = call(*arguments)
    except OSError as error:
        value = errno.errorcode.get(error.errno, error)
    print(f"{what}: {value}", flush=True)
    return value


def peer_of_ipv6():
    """A UDP socket with a peer of IPv6 sends to an IPv4-mapped address."""
    four = socket.socket(socket.AF_INET, DATAGRAM)
    four.bind(("127.0.0.1", 24011))
    four.settimeout(0.5)
    six = socket.socket(socket.AF_INET6, DATAGRAM)
    six.bind(("::1", 24012))
    six.settimeout(5)
    for at in (None, "::", "::1"):
        for only in (0, 1):
            one = socket.socket(socket.AF_INET6, DATAGRAM)
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            if at:
                one.bind((at, 0))
            one.connect(("::1", 24012))
            sent = tried(f"from {at} {only}", one.sendto, b"datagram", ("::ffff:127.0.0.1", 24011))
            tried("by a message", one.sendmsg, [b"part"], [], 0, ("::ffff:127.0.0.1", 24011))
            if sent == 8:
                for _ in range(2):
                    data, name = four.recvfrom(100)
                    print(data, name[0], name[1] == one.getsockname()[1])
                four.sendto(b"answer", name)
            one.settimeout(0.1)
            tried("an answer", one.recv, 100)
            print(one.getsockname()[0], one.getpeername()[:2])
            tried("to the peer", one.send, b"peer")
            print(six.recvfrom(100)[0])


def opening():
    """A call that receives while a connect waits for its answer: the listener's queue is full."""
    for family, at in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        listener = socket.socket(family, STREAM)
        listener.bind((at, 0))
        listener.listen(0)
        first = socket.create_connection(listener.getsockname()[:2])
        time.sleep(0.05)
        one = socket.socket(family, STREAM)
        one.setblocking(False)
        tried("connect", one.connect, listener.getsockname())
        ways = [
            ("recv", lambda flags: one.recv(10, flags)),
            ("peek", lambda flags: one.recv(10, flags | socket.MSG_PEEK)),
            ("all", lambda flags: one.recv(10, flags | socket.MSG_WAITALL)),
            ("recvmsg", lambda flags: one.recvmsg(10, 0, flags)),
            ("none", lambda flags: one.recvmsg(0, 0, flags)),
        ]
        for what, way in ways:
            tried(what, way, 0)
        tried("read", os.read, one.fileno(), 10)
        one.setblocking(True)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 150_000))
        for what, way in ways:
            tried(f"{what} at once", way, socket.MSG_DONTWAIT)
            began = time.monotonic()
            tried(f"{what} for a time", way, 0)
            print("it waited", time.monotonic() - began > 0.1)
        tried("send at once", one.send, b"x", socket.MSG_DONTWAIT)
        tried("peer", one.getpeername)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 30, 0))
        thread = threading.Thread(target=lambda: tried("recv that waits", one.recv, 10))
        thread.start()
        time.sleep(0.1)
        listener.accept()[0].close()
        first.close()
        # The connect's SYN comes again.
        listener.settimeout(20)
        accepted, _ = listener.accept()
        accepted.sendall(b"hello")
        thread.join()
        tried("connect", one.connect, listener.getsockname())
        one.close()
        accepted.close()
        # The other way: the listener ends.
        first = socket.create_connection(listener.getsockname()[:2])
        time.sleep(0.05)
        one = socket.socket(family, STREAM)
        one.setblocking(False)
        tried("connect", one.connect, listener.getsockname())
        one.setblocking(True)
        at_once = listener.getsockname()
        listener.close()
        tried("recv that fails", one.recv, 10)
        tried("recv then", one.recv, 10)
        tried("connect then", one.connect, at_once)


OPTIONS = [
    (socket.SOL_SOCKET, "SO_KEEPALIVE", [1, 0]),
    (socket.SOL_SOCKET, "SO_BROADCAST", [1, 0]),
    (socket.SOL_SOCKET, "SO_REUSEADDR", [1]),
    (socket.SOL_SOCKET, "SO_ACCEPTCONN", [1]),
    (socket.SOL_SOCKET, "SO_ERROR", [1]),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", [0, 30, 40000]),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", [0, 31]),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", [0, 5, 128]),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", [1000, -1, 0]),
    (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", [16384]),
    (socket.IPPROTO_IP, "IP_TTL", [0, 33, 256]),
    (socket.IPPROTO_IP, "IP_TOS", [0x10]),
    (socket.IPPROTO_IPV6, "IPV6_UNICAST_HOPS", [33, 256, -1]),
    (socket.IPPROTO_IPV6, "IPV6_TCLASS", [0x20]),
]


def options_of(one):
    for level, name, values in OPTIONS:
        option = getattr(socket, name)
        tried(f"get {name}", one.getsockopt, level, option)
        for value in values:
            tried(f"set {name} {value}", one.setsockopt, level, option, value)
            tried(f"get {name}", one.getsockopt, level, option)
    linger = struct.pack("ii", 1, 5)
    tried("set SO_LINGER", one.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, linger)
    tried("get SO_LINGER", one.getsockopt, socket.SOL_SOCKET, socket.SO_LINGER, 8)


def over():
    """Options of a connection that is over, in a child."""
    for family, at in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        for how in ("both", "peer first", "reset", "refused"):
            listener = socket.create_server((at, 0), family=family)
            ready, done = os.pipe()
            child = os.fork()
            if child == 0:
                print(at, how, flush=True)
                if how == "refused":
                    one = socket.socket(family, STREAM)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
                    one.setblocking(False)
                    free = socket.create_server((at, 0), family=family)
                    name = free.getsockname()
                    free.close()
                    tried("connect", one.connect, name)
                    time.sleep(0.3)
                    options_of(one)
                    os._exit(0)
                one = socket.create_connection(listener.getsockname()[:2])
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
                if how == "both":
                    one.shutdown(socket.SHUT_WR)
                    tried("the end", one.recv, 1)
                elif how == "peer first":
                    tried("the end", one.recv, 1)
                    one.shutdown(socket.SHUT_WR)
                else:
                    os.read(ready, 1)
                    time.sleep(0.2)
                    tried("the end", one.recv, 1)
                time.sleep(0.2)
                options_of(one)
                one.close()
                os._exit(0)
            if how != "refused":
                peer, _ = listener.accept()
                if how == "both":
                    peer.recv(1)
                elif how == "reset":
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
                os.write(done, b"x")
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            listener.close()


def closed(family, at):
    """An address at which no socket listens."""
    free = socket.create_server((at, 0), family=family)
    to = free.getsockname()
    free.close()
    return to


def bind_fails():
    """The name after a bind that has failed."""
    for family, at, any_, foreign in (
        (socket.AF_INET, "127.0.0.1", "0.0.0.0", "198.51.100.99"),
        (socket.AF_INET6, "::1", "::", "2001:db8:9::9"),
    ):
        for kind in (STREAM, DATAGRAM):
            taken = socket.socket(family, kind)
            taken.bind((at, 0))
            if kind == STREAM:
                taken.listen()
            port = taken.getsockname()[1]
            streams = ("new", "bound", "bound first", "refused", "both", "peer first", "reset")
            for how in streams if kind == STREAM else ("new", "bound", "peer"):
                one = socket.socket(family, kind)
                before = 0

                def name(one=one):
                    own = one.getsockname()
                    return own[0], "taken" if own[1] == port else "own" if own[1] == before else own[1] and "other"

                if how in ("bound", "bound first"):
                    one.bind((at, 0))
                    before = one.getsockname()[1]
                if how == "bound":
                    pass
                elif how == "bound first":
                    one.setblocking(False)
                    tried("connect", one.connect, closed(family, at))
                    time.sleep(0.05)
                    tried("name", name)
                    tried("bind", one.bind, (at, 0))
                    tried("send", one.send, b"x")
                    before = one.getsockname()[1]
                    tried("connect", one.connect, closed(family, at))
                    tried("name", name)
                    tried("connect", one.connect, closed(family, at))
                    time.sleep(0.05)
                    tried("send", one.send, b"x")
                elif how == "peer":
                    one.connect((at, port))
                elif how == "refused":
                    tried("connect", one.connect, closed(family, at))
                elif how != "new":
                    one.connect((at, port))
                    accepted, _ = taken.accept()
                    before = one.getsockname()[1]
                    if how == "reset":
                        linger = struct.pack("ii", 1, 0)
                        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        accepted.close()
                        time.sleep(0.05)
                        tried("the end", one.recv, 1)
                    elif how == "both":
                        one.shutdown(socket.SHUT_WR)
                        accepted.close()
                    else:
                        accepted.close()
                        time.sleep(0.05)
                        one.shutdown(socket.SHUT_WR)
                    time.sleep(0.05)
                before = one.getsockname()[1]
                print(kind.name, how)
                tried("name", name)
                for where, to in (
                    ("a foreign address", (foreign, port)),
                    ("a taken address", (at, port)),
                    ("a foreign address", (foreign, 0)),
                    ("any address", (any_, port)),
                ):
                    # Of UDP sockets weir has another rule.
                    if kind == DATAGRAM and how == "new" and to[0] == any_:
                        continue
                    tried(f"bind to {where}", one.bind, to)
                    tried("name", name)
                tried("peer", lambda: one.getpeername()[0])
                tried("bind", one.bind, (at, 0))
                tried("name", name)
                if family == socket.AF_INET6:
                    tried("only", one.getsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
                one.close()
        # At the connection's port and another address.
        listener = socket.create_server((at, 0), family=family)
        port = listener.getsockname()[1]
        one = socket.create_connection((at, port))
        accepted, _ = listener.accept()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        time.sleep(0.05)
        tried("the end", accepted.recv, 1)
        listener.close()
        tried("bind to any address", accepted.bind, (any_, port))
        tried("name", lambda: (accepted.getsockname()[0], accepted.getsockname()[1] == port))
        # At the port that the system had chosen for it.
        listener = socket.create_server((at, 0), family=family)
        server = listener.getsockname()[1]
        one = socket.socket(family, STREAM)
        one.bind((at, 0))
        one.connect((at, server))
        accepted, _ = listener.accept()
        port = one.getsockname()[1]
        accepted.close()
        time.sleep(0.05)
        one.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        tried("bind again", one.bind, (at, port))
        tried("name", lambda: (one.getsockname()[0], one.getsockname()[1] == port))
        # A connection after a bind that has failed, and after another one.
        for again in (False, True):
            one = socket.socket(family, STREAM)
            tried("bind to a taken port", one.bind, (at, server))
            if again:
                tried("bind", one.bind, (at, 0))
            tried("connect", one.connect, (at, server))
            tried("name", lambda: one.getsockname()[0])


def edges():
    """Arrivals behind what is unread, in edge-triggered places of epoll sets."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    for how in ("own", "two sets", "copied", "polled", "late", "level"):
        peer = socket.create_connection(listener.getsockname())
        select.select([listener], [], [], 5)
        one, _ = listener.accept()
        one.setblocking(False)
        sets = [select.epoll() for _ in range(2 if how == "two sets" else 1)]
        wanted = select.EPOLLIN | select.EPOLLRDHUP
        for epoll in sets:
            epoll.register(one, wanted | (0 if how in ("late", "level") else select.EPOLLET))
        copy = os.dup(one.fileno()) if how == "copied" else None

        def wait(what):
            # Two waits, so that a second event of one arrival would show.
            for epoll in sets:
                for time_s in (0.2, 0.02):
                    print(how, what, [mask for _, mask in epoll.poll(time_s, 8)], flush=True)

        wait("nothing")
        peer.sendall(b"12345")
        wait("first")
        if how == "late":
            sets[0].modify(one, wanted | select.EPOLLET)
            wait("changed")
        peer.sendall(b"678")
        wait("behind it")
        if how == "polled":
            print(select.select([one], [], [], 0)[0] == [one])
        peer.sendall(b"9")
        wait("once more")
        tried("some", one.recv, 4)
        wait("after a part")
        peer.sendall(b"0")
        wait("behind the rest")
        tried("all", one.recv, 100)
        tried("none", one.recv, 100)
        wait("after all")
        peer.sendall(b"a")
        wait("new")
        peer.shutdown(socket.SHUT_WR)
        wait("end")
        tried("all", one.recv, 100)
        tried("end", one.recv, 100)
        for epoll in sets:
            epoll.close()
        if copy:
            os.close(copy)
        one.close()
        peer.close()
    epoll = select.epoll()
    two = socket.socket(socket.AF_INET, DATAGRAM)
    two.bind(("127.0.0.1", 0))
    two.setblocking(False)
    epoll.register(two, select.EPOLLIN | select.EPOLLET)
    epoll.register(listener, select.EPOLLIN | select.EPOLLET)

    def await_edges(what):
        for time_s in (0.2, 0.02):
            print(what, [(fd == two.fileno(), mask) for fd, mask in epoll.poll(time_s)], flush=True)

    sender = socket.socket(socket.AF_INET, DATAGRAM)
    await_edges("nothing")
    for turn in range(20):
        sender.sendto(b"%d" % turn, two.getsockname())
        await_edges("datagram")
    for _ in range(20):
        tried("datagram", two.recv, 10)
    tried("none", two.recv, 10)
    sender.sendto(b"new", two.getsockname())
    await_edges("new")
    all = []
    for _ in range(3):
        all.append(socket.create_connection(listener.getsockname()))
        await_edges("connection")
    for _ in range(3):
        all.append(listener.accept()[0])
    tried("no connection", listener.accept)
    await_edges("none")
    all.append(socket.create_connection(listener.getsockname()))
    await_edges("new")


def unspecified():
    """The unspecified address as a destination, from sockets at several addresses."""
    listeners, receivers = {}, {}
    for at in ("127.0.0.1", "127.0.0.2", "::1"):
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        listeners[at] = socket.create_server((at, 24013), family=family)
        receivers[at] = socket.socket(family, DATAGRAM)
        receivers[at].bind((at, 24013))
    for family, kind, child in (
        (socket.AF_INET, DATAGRAM, False),
        (socket.AF_INET6, DATAGRAM, False),
        (socket.AF_INET, DATAGRAM, True),
        (socket.AF_INET6, DATAGRAM, True),
        (socket.AF_INET, STREAM, False),
        (socket.AF_INET6, STREAM, False),
    ):
        places = ("127.0.0.2", "0.0.0.0", None)
        if family == socket.AF_INET6:
            places = ("::ffff:127.0.0.2", "::ffff:0.0.0.0", "::1", "::", None)
        for at in places:
            # What is wrong with a relayed datagram is reported later.
            if child and at == "::1":
                continue
            for to in ("0.0.0.0",) if family == socket.AF_INET else ("::ffff:0.0.0.0", "::"):
                print(family.name, kind.name, child, at, to, flush=True)
                one = socket.socket(family, kind)
                if at:
                    one.bind((at, 0))
                if child and os.fork():
                    os.wait()
                else:
                    if kind == DATAGRAM:
                        tried("sendto", one.sendto, b"datagram", (to, 24013))
                    tried("connect", one.connect, (to, 24013))
                    tried("name", lambda one=one: one.getsockname()[0])
                    tried("peer", lambda one=one: one.getpeername()[:2])
                    if kind == DATAGRAM:
                        tried("send", one.send, b"of a peer")
                    if child:
                        os._exit(0)
                time.sleep(0.02)
                for which, receiver in receivers.items():
                    receiver.setblocking(False)
                    for _ in range(2):
                        tried(which, lambda receiver=receiver: receiver.recvfrom(10)[1][0])
                one.close()


def connects():
    """Second connects: to a pair in use, beside one that waits, and after a connection that ended unsaid."""
    for family, at in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        listener = socket.socket(family, STREAM)
        listener.bind((at, 0))
        listener.listen(0)
        name = listener.getsockname()
        bound = []
        for _ in range(2):
            one = socket.socket(family, STREAM)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((at, 24014))
            bound.append(one)
            tried("a pair", one.connect, name)
        # The queue is full: the next one waits.
        time.sleep(0.05)
        waits = socket.socket(family, STREAM)
        waits.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
        for _ in range(2):
            tried("waits", waits.connect, name)
        waits.close()
        peer = listener.accept()[0]
        unsaid = socket.socket(family, STREAM)
        unsaid.setblocking(False)
        tried("unsaid", unsaid.connect, name)
        peer.close()
        peer = listener.accept()[0]
        time.sleep(0.05)
        print(unsaid.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        time.sleep(0.05)
        tried("reset", unsaid.send, b"x")
        for _ in range(2):
            tried("again", unsaid.connect, name)
        unsaid.close()


if __name__ == "__main__":
    {
        "connects": connects,
        "peer_of_ipv6": peer_of_ipv6,
        "opening": opening,
        "over": over,
        "bind_fails": bind_fails,
        "unspecified": unspecified,
        "edges": edges,
    }[sys.argv[1]]()
