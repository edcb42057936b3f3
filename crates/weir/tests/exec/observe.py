"""Prints what calls on sockets return, a line each. Run on the kernel's sockets and on weir's, the
lines must be the same. Arguments: the own address and the peer's, of one version of IP; and `relayed` for
sockets that another process has."""

import array
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time

OWN, PEER = sys.argv[1:3]
FAMILY = socket.AF_INET6 if ":" in PEER else socket.AF_INET
STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


def say(what, value):
    print(f"{what}: {value}", flush=True)


def tried(what, call, *arguments):
    """The result of a call, or its error."""
    try:
        value = call(*arguments)
    except OSError as error:
        value = errno.errorcode.get(error.errno, error)
    say(what, value)
    return value


def events(mask):
    names = ["EPOLLIN", "EPOLLOUT", "EPOLLERR", "EPOLLHUP", "EPOLLRDHUP"]
    return " ".join(name for name in names if mask & getattr(select, name))


def polled(fd, wanted, ms=2000):
    poll = select.poll()
    poll.register(fd, wanted)
    return events(dict(poll.poll(ms)).get(fd if isinstance(fd, int) else fd.fileno(), 0))


def connected(kind=STREAM):
    made = socket.socket(FAMILY, kind)
    made.settimeout(10)
    made.connect((PEER, 7))
    return made


def names():
    with socket.socket(FAMILY, STREAM) as new:
        tried("name of a new socket", new.getsockname)
        tried("peer of a new socket", new.getpeername)
        tried("recv on a new socket", new.recv, 1)
        tried("accept on a new socket", new.accept)
        tried("bind to a foreign address", new.bind, ("198.51.100.99" if FAMILY == 2 else "2001:db8:9::9", 0))
        tried("bind", new.bind, (OWN, 5001))
        tried("bind again", new.bind, (OWN, 5002))
        tried("bind again to a foreign address", new.bind, ("198.51.100.99" if FAMILY == 2 else "2001:db8:9::9", 0))
        tried("bound name", lambda: new.getsockname()[:2] == (OWN, 5001))
        with socket.socket(FAMILY, STREAM) as other:
            tried("bind to a taken address", other.bind, (OWN, 5001))
        tried("listen", new.listen)
        tried("is listening", new.getsockopt, socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        tried("connect a listener", new.connect, (PEER, 7))
        new.setblocking(False)
        tried("accept nothing", new.accept)
    with socket.socket(FAMILY, STREAM) as any_:
        any_.bind(("", 0))
        say("a free port", any_.getsockname()[1] > 1023)
        any_.listen(1)
        say("the same port", any_.getsockname()[0] in ("0.0.0.0", "::"))
    with connected() as stream:
        say("own name", stream.getsockname()[0] == OWN)
        say("peer's name", stream.getpeername()[:2] == (PEER, 7))
        say("kind", (stream.type, stream.family, stream.proto))
        tried("connect again", stream.connect, (PEER, 7))
        tried("bind a stream", stream.bind, (OWN, 0))
        tried("listen on a stream", stream.listen)
    with connected() as stream:
        stream.shutdown(socket.SHUT_WR)
        tried("the end", stream.recv, 1)
        time.sleep(0.1)
        tried("peer of a connection that is over", stream.getpeername)
    with socket.socket(FAMILY, DATAGRAM) as datagrams:
        datagrams.bind((OWN, 0))
        tried("bind datagrams again", datagrams.bind, (OWN, 0))
        tried("to a foreign address", datagrams.bind, ("198.51.100.99" if FAMILY == 2 else "2001:db8:9::9", 0))
        tried("set an option of TCP", datagrams.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tried("get it", datagrams.getsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for option in (socket.SO_KEEPALIVE, socket.SO_RCVLOWAT):
            tried("set one of streams", datagrams.setsockopt, socket.SOL_SOCKET, option, 1)
            tried("get it", datagrams.getsockopt, socket.SOL_SOCKET, option)


def opening():
    with socket.socket(FAMILY, STREAM) as refused:
        tried("connect to a closed port", refused.connect, (PEER, 4))
        tried("its error is told once", refused.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        tried("and connect to an open one", refused.connect, (PEER, 7))
        refused.sendall(b"x")
        tried("which echoes", refused.recv, 1)
    with socket.socket(FAMILY, STREAM) as waits:
        waits.setblocking(False)
        tried("connect without blocking", waits.connect, (PEER, 7))
        say("it opens", polled(waits, select.POLLOUT))
        tried("without an error", waits.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        tried("recv would block", waits.recv, 1)
        waits.send(b"y")
        say("it becomes readable", polled(waits, select.POLLIN))
        tried("and reads", waits.recv, 10)
    with socket.socket(FAMILY, STREAM) as waits:
        waits.setblocking(False)
        tried("connect without blocking to a closed port", waits.connect, (PEER, 4))
        say("it fails", polled(waits, select.POLLIN | select.POLLOUT))
        error = waits.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        say("because", errno.errorcode.get(error))
        tried("told once", waits.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        tried("peer of none", waits.getpeername)
    with socket.socket(FAMILY, STREAM) as late:
        late.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            late.connect((PEER[:-1] + "77" if FAMILY == 2 else "2001:db8::77", 7))
        say("an absent station", "no answer")


def failing():
    """What a relayed socket does not do: it forgets a failure with its report."""
    with socket.socket(FAMILY, STREAM) as waits:
        waits.setblocking(False)
        tried("connect without blocking to a closed port", waits.connect, (PEER, 4))
        say("it fails", polled(waits, select.POLLIN | select.POLLOUT))
        error = waits.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        say("because", errno.errorcode.get(error))
        tried("recv then ends", waits.recv, 1)
        tried("send then fails", waits.send, b"x")
        tried("the next connect is aborted", waits.connect, (PEER, 7))
        tried("recv is as at first", waits.recv, 1)
        tried("and the one after it begins", waits.connect, (PEER, 4))
        say("it fails", polled(waits, select.POLLIN))
        tried("recv reports it", waits.recv, 1)
        tried("once", waits.recv, 1)
        tried("the next connect is aborted again", waits.connect, (PEER, 7))
        tried("another one", waits.connect, (PEER, 7))
        say("it opens", polled(waits, select.POLLOUT))


def data():
    with connected() as stream:
        stream.sendall(b"0123456789")
        say("bytes wait", polled(stream, select.POLLIN))
        time.sleep(0.05)
        left = array.array("i", [0])
        fcntl.ioctl(stream, termios.FIONREAD, left)
        say("FIONREAD", left[0])
        tried("peek", stream.recv, 4, socket.MSG_PEEK)
        tried("read", os.read, stream.fileno(), 4)
        parts = [bytearray(2), bytearray(1)]
        tried("readv", os.readv, stream.fileno(), parts)
        say("parts", parts)
        tried("the rest", stream.recv, 100)
        tried("nothing", stream.recv, 1, socket.MSG_DONTWAIT)
        tried("write", os.write, stream.fileno(), b"ab")
        tried("writev", os.writev, stream.fileno(), [b"cd", b"", b"efg"])
        stream.setblocking(True)
        tried("wait for all", stream.recv, 7, socket.MSG_WAITALL)
        tried("sendmsg", stream.sendmsg, [b"one", b"two"])
        tried("recvmsg", stream.recvmsg, 6, 0, socket.MSG_WAITALL)
        tried("recv of nothing", stream.recv, 0)
        with tempfile.TemporaryFile() as file:
            file.write(bytes(range(256)) * 1000)
            file.flush()
            say("sendfile", sum(sendfile(stream, file)))
        whole = b""
        while len(whole) < 256_000:
            whole += stream.recv(65536)
        say("came back", whole == bytes(range(256)) * 1000)
        in_, out = os.pipe()
        os.write(out, b"by a pipe")
        if hasattr(os, "splice"):
            tried("splice in", os.splice, in_, stream.fileno(), 100)
            say("it returns", polled(stream, select.POLLIN))
            tried("splice out", os.splice, stream.fileno(), out, 100)
            tried("the pipe", os.read, in_, 100)
        os.close(in_)
        os.close(out)
        tried("shutdown", stream.shutdown, socket.SHUT_WR)
        tried("the end", stream.recv, 1)
        tried("send after shutdown", stream.send, b"x")
        say("over", polled(stream, select.POLLIN | select.EPOLLRDHUP))
    with connected() as stream:
        stream.sendall(b"reset")
        say("reset", polled(stream, select.POLLIN | select.EPOLLRDHUP))
        tried("recv after a reset", stream.recv, 1)
        tried("recv again", stream.recv, 1)
        tried("send after a reset", stream.send, b"x")


def sendfile(stream, file):
    sent = 0
    while count := os.sendfile(stream.fileno(), file.fileno(), sent, 256_000 - sent):
        sent += count
        yield count


def options():
    level = socket.SOL_SOCKET
    tcp = socket.IPPROTO_TCP
    with connected() as stream:
        for where, name, value in (
            (tcp, "TCP_NODELAY", 1),
            (tcp, "TCP_CORK", 1),
            (tcp, "TCP_KEEPIDLE", 30),
            (tcp, "TCP_KEEPINTVL", 5),
            (tcp, "TCP_KEEPCNT", 4),
            (tcp, "TCP_USER_TIMEOUT", 5000),
            (level, "SO_KEEPALIVE", 7),
            (level, "SO_REUSEADDR", 1),
            (level, "SO_RCVBUF", 20000),
            (level, "SO_SNDBUF", 20000),
            (level, "SO_RCVLOWAT", 3),
        ):
            option = getattr(socket, name)
            tried(f"set {name}", stream.setsockopt, where, option, value)
            tried(f"get {name}", stream.getsockopt, where, option)
        tried("an unknown option", stream.setsockopt, tcp, 9999, 1)
        tried("type", stream.getsockopt, level, socket.SO_TYPE)
        tried("linger", stream.getsockopt, level, socket.SO_LINGER, 8)
        tried("set linger", stream.setsockopt, level, socket.SO_LINGER, struct.pack("ii", 1, 0))
        tried("get linger", stream.getsockopt, level, socket.SO_LINGER, 8)
        stream.setblocking(True)
        limit = struct.pack("ll", 0, 100_000)
        tried("time limit", stream.setsockopt, level, socket.SO_RCVTIMEO, limit)
        tried("get it", stream.getsockopt, level, socket.SO_RCVTIMEO, 16)
        began = time.monotonic()
        tried("recv for a time", stream.recv, 1)
        say("it took", 0.09 < time.monotonic() - began < 30)


def descriptors():
    with connected() as stream:
        fd = stream.fileno()
        say("not blocking", fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK != 0)
        stream.setblocking(True)
        say("blocking", fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK == 0)
        say("mode", fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE)
        say("close on exec", fcntl.fcntl(fd, fcntl.F_GETFD))
        copy = os.dup(fd)
        stream.close()
        os.write(copy, b"copy")
        tried("a copy", os.read, copy, 10)
        other = os.open("/dev/null", os.O_RDONLY)
        os.dup2(copy, other)
        os.close(copy)
        os.write(other, b"again")
        tried("another copy", os.read, other, 10)
        high = fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, 50)
        say("its number", high)
        os.close(other)
        say("a closed one", polled(other, select.POLLIN) == "")
        child = os.fork()
        if child == 0:
            os.close(high)
            os._exit(0)
        os.waitpid(child, 0)
        os.write(high, b"mine")
        tried("after a child has closed it", os.read, high, 10)
        os.close(high)
        tried("after the last close", os.write, high, b"x")


def sets():
    epoll = select.epoll()
    early = socket.socket(FAMILY, STREAM)
    early.setblocking(False)
    epoll.register(early, select.EPOLLOUT | select.EPOLLET)
    epoll.poll(0)
    tried("connect in a set", early.connect, (PEER, 7))
    say("it opens in the set", [events(mask) for _, mask in epoll.poll(2)])
    epoll.modify(early, select.EPOLLIN | select.EPOLLET)
    early.send(b"edge")
    say("an edge", [events(mask) for _, mask in epoll.poll(2)])
    say("no other edge", epoll.poll(0.05))
    early.recv(10)
    early.send(b"edge")
    say("a new edge", [events(mask) for _, mask in epoll.poll(2)])
    early.close()
    say("a closed one leaves the set", epoll.poll(0.05))
    with connected() as level:
        level.setblocking(False)
        epoll.register(level, select.EPOLLIN | select.EPOLLOUT)
        say("writable", [events(mask) for _, mask in epoll.poll(2)])
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < 100_000_000:
                sent += level.send(bytes(100_000))
        say("it fills up", sent < 100_000_000)
        time.sleep(0.2)
        say("select", [len(one) for one in select.select([level], [], [], 2)])
    epoll.close()


def accepting():
    with socket.socket(FAMILY, STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((OWN, 5003))
        listener.listen()
        listener.setblocking(False)
        with socket.create_connection((PEER, 9), 5) as caller:
            caller.sendall(f"{OWN} 5003".encode())
            say("a call", polled(listener, select.POLLIN, 5000))
            call, at = listener.accept()
            say("from", at[0] == PEER)
            say("at", call.getsockname()[:2] == (OWN, 5003))
            say("blocks", fcntl.fcntl(call.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK == 0)
            nodelay = call.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            say("inherits", nodelay)
            call.settimeout(5)
            tried("hello", call.recv, 5, socket.MSG_WAITALL)
            call.sendall(b"!")
            tried("bye", call.recv, 1)
            call.close()


def datagrams():
    with socket.socket(FAMILY, DATAGRAM) as one:
        one.settimeout(5)
        tried("send without an address", one.send, b"x")
        tried("sendto", one.sendto, b"datagram", (PEER, 7))
        bytes_, sender = one.recvfrom(100)
        say("recvfrom", (bytes_, sender[:2] == (PEER, 7)))
        one.sendto(b"long one", (PEER, 7))
        one.recvfrom(3, socket.MSG_PEEK)
        bytes_, _, flags, sender = one.recvmsg(4)
        say("cut", (bytes_, flags & socket.MSG_TRUNC != 0))
        one.sendto(b"", (PEER, 7))
        say("an empty one", one.recvfrom(10)[0])
        tried("too long", one.sendto, bytes(70_000), (PEER, 7))
        say("a long one", one.sendto(bytes(30_000), (PEER, 7)))
        say("is whole", len(one.recv(65536)))
        tried("connect", one.connect, (PEER, 7))
        say("peer", one.getpeername()[:2] == (PEER, 7))
        one.send(b"by name")
        tried("recv", one.recv, 10)
        tried("sendmsg", one.sendmsg, [b"a", b"b"])
        tried("recvmsg", lambda: one.recvmsg(10)[0])
    with socket.socket(FAMILY, DATAGRAM) as closed:
        closed.settimeout(5)
        closed.connect((PEER, 4))
        closed.send(b"x")
        tried("a closed port", closed.recv, 1)
    with socket.socket(FAMILY, DATAGRAM) as bound:
        bound.bind((OWN, 5004))
        with socket.socket(FAMILY, DATAGRAM) as other:
            tried("a taken port", other.bind, (OWN, 5004))
        bound.setblocking(False)
        tried("no datagram", bound.recv, 1)


def woken(what, call, wake):
    """What a call returns that waits until `wake`."""
    results = []
    waits = threading.Thread(target=lambda: results.append(outcome(call)))
    waits.start()
    time.sleep(0.2)
    wake()
    waits.join(20)
    say(what, results or "it waits on")


def outcome(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode.get(error.errno, error)


def shutting():
    with connected() as stream:
        stream.shutdown(socket.SHUT_WR)
        tried("the end after the own", stream.recv, 10)
        time.sleep(0.1)
        # It has lost its port. The owner of a relayed one has forgotten it.
        if not sys.argv[3:]:
            what = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            tried("IPV6_V6ONLY of a connection that is over", stream.setsockopt, *what)
    if not sys.argv[3:]:
        with socket.socket(FAMILY, STREAM) as client:
            client.bind(("", 0))
            client.connect((PEER, 7))
            client.sendall(b"reset")
            tried("a connection that is reset", client.recv, 1)
            say("its address", client.getsockname()[0] == OWN)
        with socket.socket(FAMILY, STREAM) as listener:
            listener.listen()
            port = listener.getsockname()[1]
            copy = listener.dup()
            with socket.create_connection((OWN, port)) as client:
                listener.accept()[0].close()
                copy.shutdown(0)
                say("the port of a listener that was shut", copy.getsockname()[1] == port)
    with socket.socket(FAMILY, STREAM) as listener:
        listener.bind((OWN, 5005))
        listener.listen()
        woken("accept until the listener is shut", listener.accept, lambda: listener.shutdown(2))
        tried("accept afterwards", listener.accept)
        # Weir's is readable too, as all that is hung up but a listener of the kernel.
        say("a shut listener", "EPOLLHUP" in polled(listener, select.POLLIN))
    with socket.socket(FAMILY, DATAGRAM) as one:
        one.bind((OWN, 5006))
        one.connect((PEER, 7))
        one.send(b"before")
        tried("a datagram", one.recv, 10)
        tried("shut for sending", one.shutdown, socket.SHUT_WR)
        tried("send", one.send, b"x")
        one.setblocking(False)
        tried("no datagram", one.recv, 10)
        one.setblocking(True)
        woken("recv until it is shut", lambda: one.recv(10), lambda: one.shutdown(socket.SHUT_RD))
        say("a shut one", polled(one, select.POLLIN | select.POLLOUT | select.EPOLLRDHUP))
    with socket.socket(FAMILY, DATAGRAM) as other:
        other.bind((OWN, 5007))
        woken("recv without a peer", lambda: other.recv(10), lambda: outcome(lambda: other.shutdown(2)))
        tried("shut without a peer", other.shutdown, 2)


class Rang(Exception):
    pass


def signals():
    def rings(*_):
        raise Rang

    signal.signal(signal.SIGALRM, rings)
    with connected() as stream:
        stream.setblocking(True)
        for what, call in (("recv", lambda: stream.recv(1)), ("read", lambda: os.read(stream.fileno(), 1))):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                call()
                say(what, "returns")
            except Rang:
                say(what, "is interrupted")
        ticks = []
        signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        threading.Timer(0.5, lambda: stream.sendall(b"z")).start()
        tried("recv through signals", stream.recv, 1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("signals came", len(ticks) > 2)


def main():
    parts = () if sys.argv[3:] else (failing,)
    for part in (*parts, names, opening, data, options, descriptors, sets, accepting, datagrams, shutting, signals):
        say("--", part.__name__)
        part()


main()
