"""Random calls on random descriptors, a line each with what it returned. On the kernel's sockets and on weir's the
lines must be the same. Arguments: the first seed, the number of seeds, calls of a seed, and milliseconds
that packets have after a call."""

import array
import errno
import fcntl
import os
import random
import select
import socket
import string
import struct
import sys
import termios
import time

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
# New sockets are made up to the first number, and accepted up to the second.
SLOTS, SLOTS_MAX = 10, 24
# Nothing waits longer: a blocking call ends with EAGAIN.
LIMIT = struct.pack("ll", 0, 150_000)
EVENTS = ["POLLIN", "POLLPRI", "POLLOUT", "POLLERR", "POLLHUP", "POLLNVAL", "POLLRDHUP"]
EPOLL_EVENTS = ["EPOLLIN", "EPOLLPRI", "EPOLLOUT", "EPOLLERR", "EPOLLHUP", "EPOLLRDHUP"]

# Options that both have, with values to set.
OPTIONS = [
    (socket.SOL_SOCKET, "SO_REUSEADDR", [1, 7]),
    (socket.SOL_SOCKET, "SO_REUSEPORT", [0, 1]),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", [0, 1, -1]),
    (socket.SOL_SOCKET, "SO_BROADCAST", [0, 1]),
    (socket.SOL_SOCKET, "SO_RCVLOWAT", [1, 2, 50]),
    (socket.SOL_SOCKET, "SO_TYPE", [1]),
    (socket.SOL_SOCKET, "SO_DOMAIN", [2]),
    (socket.SOL_SOCKET, "SO_PROTOCOL", [6]),
    (socket.SOL_SOCKET, "SO_ACCEPTCONN", [1]),
    (socket.SOL_SOCKET, "SO_ERROR", [1]),
    (socket.SOL_SOCKET, "SO_OOBINLINE", [1]),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", [0, 1, 600, 40000]),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", [0, 1, 75, 40000]),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", [0, 1, 9, 128]),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", [0, 1000, -1]),
    (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", [16384]),
    (socket.IPPROTO_IP, "IP_TTL", [0, 1, 64, 255, 256]),
    (socket.IPPROTO_IP, "IP_TOS", [0, 0x10, 0xB8]),
    (socket.IPPROTO_IP, "IP_MULTICAST_TTL", [1, 5, 255]),
    (socket.IPPROTO_IP, "IP_MULTICAST_LOOP", [0, 1]),
    (socket.IPPROTO_IPV6, "IPV6_UNICAST_HOPS", [-1, 1, 64, 256]),
    (socket.IPPROTO_IPV6, "IPV6_V6ONLY", [0, 1]),
    (socket.IPPROTO_IPV6, "IPV6_TCLASS", [0, 0x20]),
]


def flags(mask, names):
    return "|".join(name for name in names if mask & getattr(select, name)) or "0"


class Run:
    def __init__(self, seed, settle):
        self.random = random.Random(seed)
        self.settle = settle
        self.ports = [20_000 + seed % 4_000 * 5 + at for at in range(5)]
        # Descriptors, with their sockets' kinds, and a letter for each: numbers differ, since weir's host has
        # descriptors too.
        self.slots = {}
        self.letters = {}
        self.epoll = select.epoll()
        self.counter = 0
        # Families and ports that a socket bound there has connected to.
        self.own = set()

    def choose(self, *what):
        return self.random.choice(what)

    def name(self, name):
        """A name without what each system chooses: temporary ports."""
        if not isinstance(name, tuple):
            return name
        port = name[1] if name[1] in self.ports or name[1] == 0 else "temporary"
        return (name[0], port, *name[2:])

    def say(self, what, call, *arguments):
        try:
            value = call(*arguments)
        except OSError as error:
            value = errno.errorcode.get(error.errno, error)
        except ValueError as error:
            value = error
        print(what, value, flush=True)
        return value

    def some(self):
        """A slot; now and then one that is closed."""
        if not self.slots or self.random.random() < 0.01:
            return 900 + self.random.randrange(5), socket.AF_INET, STREAM
        fd = self.random.choice(sorted(self.slots, key=self.letter))
        return (fd, *self.slots[fd])

    def address(self, family, mapped="::ffff:127.0.0.1"):
        """Where to bind or to connect: mostly an address of the host. `mapped` is one of IPv4 for sockets of
        IPv6."""
        if self.random.random() < 0.03:
            family = self.choose(socket.AF_INET, socket.AF_INET6)
        if family == socket.AF_INET:
            at = self.choose("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2", "0.0.0.0")
        else:
            at = self.choose("::1", "::1", "::1", "::", mapped)
        return family, at, self.choose(*self.ports, *self.ports, 0)

    def peer(self, family, kind):
        """An address that a socket has, or any; a stream of Linux that has failed to connect to an address
        of IPv4 cannot connect to one of IPv6 any more. Not one that a UDP socket got by a datagram without a
        destination, where weir receives nothing: it is unspecified, with a temporary port."""
        fd, at, of = self.some()
        if at == family and self.random.random() < 0.7:
            try:
                with self.held(fd, family, of) as named:
                    name = named.getsockname()
                    is_chosen = name[1] in self.ports
                    plain = is_chosen and "ffff" not in name[0]
                    is_any = name[0] in ("0.0.0.0", "::") and not is_chosen
                    if name[1] and (of == kind == DATAGRAM and not is_any or plain):
                        return family, *name[:2]
            except OSError:
                pass
        return self.address(family, "::ffff:127.0.0.1" if kind == DATAGRAM else "::1")

    def held(self, fd, family, kind):
        return Held(fd, family, kind)

    def with_held(self, what, fd, family, kind, call):
        try:
            with self.held(fd, family, kind) as made:
                self.say(f"{what} {self.letter(fd)}:", call, made)
        except OSError as error:
            print(f"{what} {self.letter(fd)}: not open,", errno.errorcode[error.errno], flush=True)

    def add(self, fd, family, kind):
        self.slots[fd] = (family, kind)
        if fd not in self.letters:
            used = self.letters.values()
            self.letters[fd] = next(letter for letter in string.ascii_lowercase if letter not in used)
        return self.letters[fd]

    def letter(self, fd):
        return self.letters.get(fd, "closed")

    def flags(self, fd):
        return f"{fcntl.fcntl(fd, fcntl.F_GETFL):o}"

    def limit(self, fd, family, kind):
        with self.held(fd, family, kind) as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, LIMIT)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if kind == STREAM:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # The calls.

    def socket(self):
        if len(self.slots) >= SLOTS:
            return self.close()
        family = self.choose(socket.AF_INET, socket.AF_INET, socket.AF_INET6)
        kind = self.choose(STREAM, STREAM, DATAGRAM)
        extra = self.choose(0, socket.SOCK_NONBLOCK, socket.SOCK_NONBLOCK)
        made = socket.socket(family, kind | extra)
        fd = made.detach()
        letter = self.add(fd, family, kind)
        print("socket", family.name, kind.name, extra and "nonblocking", "is", letter, flush=True)
        self.limit(fd, family, kind)

    def listener(self):
        """A usual server."""
        if len(self.slots) >= SLOTS:
            return self.close()
        family = self.choose(socket.AF_INET, socket.AF_INET, socket.AF_INET6)
        fd = socket.socket(family, STREAM | socket.SOCK_NONBLOCK).detach()
        self.add(fd, family, STREAM)
        self.limit(fd, family, STREAM)
        at = "127.0.0.1" if family == socket.AF_INET else "::1"
        port = self.choose(*self.ports)
        self.with_held(f"bind {port} of listener", fd, family, STREAM, lambda it: it.bind((at, port)))
        self.with_held("listen", fd, family, STREAM, lambda it: it.listen(5))

    def pair(self):
        """A usual connection."""
        if len(self.slots) >= SLOTS_MAX - 1:
            return self.close()
        family = self.choose(socket.AF_INET, socket.AF_INET, socket.AF_INET6)
        listeners = [fd for fd, (at, kind) in self.slots.items() if (at, kind) == (family, STREAM)]
        for fd in sorted(listeners, key=self.letter):
            with self.held(fd, family, STREAM) as it:
                try:
                    if not it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        continue
                    to = it.getsockname()
                except OSError:
                    continue
            made = socket.socket(family, STREAM | self.choose(0, socket.SOCK_NONBLOCK)).detach()
            self.add(made, family, STREAM)
            self.limit(made, family, STREAM)
            self.with_held(f"connect to {self.letter(fd)}", made, family, STREAM, lambda it: it.connect(to))
            time.sleep(self.settle)
            return self.accepted(fd, family, STREAM)
        return self.listener()

    def bind(self):
        fd, family, kind = self.some()
        of, at, port = self.address(family)
        # Python checks the form of a name itself.
        if of != family:
            return
        self.with_held(f"bind {at} {port}", fd, family, kind, lambda it: it.bind((at, port)))

    def listen(self):
        fd, family, kind = self.some()
        backlog = self.choose(0, 1, 5, -1)
        self.with_held(f"listen {backlog}", fd, family, kind, lambda it: it.listen(backlog))

    def connect(self):
        fd, family, kind = self.some()
        of, at, port = self.peer(family, kind)
        if of != family or port == 0:
            return
        if kind == DATAGRAM and "ffff" in at and self.names_peer(fd, family, kind):
            # Linux lets one with a peer of IPv6, which then receives nothing.
            return
        if kind == STREAM and self.is_own(fd, family, at, port):
            # On the loopback, Linux lets it do so again while the connection before is in TIME-WAIT.
            if (family, port) in self.own:
                return
            self.own.add((family, port))
        port_said = self.name((at, port))[1]
        self.with_held(
            f"connect {at} {port_said}", fd, family, kind, lambda it: it.connect((at, port))
        )

    def is_own(self, fd, family, at, port):
        """Whether a stream is to connect to its own port."""
        try:
            with self.held(fd, family, STREAM) as it:
                return it.getsockname()[1] == port
        except OSError:
            return False

    def names_peer(self, fd, family, kind):
        try:
            with self.held(fd, family, kind) as it:
                return bool(it.getpeername())
        except OSError:
            return False

    def accepted(self, fd, family, kind):
        if len(self.slots) >= SLOTS_MAX:
            return
        try:
            with self.held(fd, family, kind) as it:
                made, name = it._accept()
        except OSError as error:
            print(f"accept {self.letter(fd)}:", errno.errorcode[error.errno], flush=True)
            return
        letter = self.add(made, family, STREAM)
        print(f"accept {self.letter(fd)}: {letter} {self.name(name)} {self.flags(made)}", flush=True)
        self.limit(made, family, STREAM)

    def accept(self):
        self.accepted(*self.some())

    def bytes(self):
        size = self.choose(0, 1, 2, 10, 100, 1400, 4000)
        self.counter = (self.counter + 1) % 256
        return bytes([self.counter]) * size

    def send(self):
        fd, family, kind = self.some()
        data = self.bytes()
        how = self.choose(0, 0, 0, socket.MSG_DONTWAIT, socket.MSG_NOSIGNAL)
        way = self.choose("send", "write", "writev", "sendmsg")
        if way == "send":
            self.with_held(f"send {len(data)} {int(how)}", fd, family, kind, lambda it: it.send(data, how))
        elif way == "write":
            self.say(f"write {self.letter(fd)} {len(data)}:", os.write, fd, data)
        elif way == "writev":
            self.say(f"writev {self.letter(fd)} {len(data)}:", os.writev, fd, [data[:1], data[1:], b""])
        else:
            self.with_held(
                f"sendmsg {len(data)}", fd, family, kind, lambda it: it.sendmsg([data[:3], data[3:]])
            )

    def sendto(self):
        fd, family, kind = self.some()
        of, at, port = self.peer(family, kind)
        data = self.bytes()
        if of != family or port == 0:
            return
        said = self.name((at, port))[1]
        self.with_held(
            f"sendto {len(data)} {at} {said}", fd, family, kind, lambda it: it.sendto(data, (at, port))
        )

    def digest(self, data):
        return f"{len(data)} bytes of {sorted(set(data))}"

    def recv(self):
        fd, family, kind = self.some()
        size = self.choose(0, 1, 5, 100, 3000, 9000)
        how = self.choose(0, 0, socket.MSG_DONTWAIT, socket.MSG_PEEK, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        if kind == DATAGRAM:
            how |= self.choose(0, 0, socket.MSG_TRUNC)
        elif size <= 100:
            how |= self.choose(0, 0, 0, socket.MSG_WAITALL)
        way = self.choose("recv", "recvfrom", "recvmsg", "read", "readv")
        if way == "recv":
            into = bytearray(size)

            def call(it):
                count = it.recv_into(into, size, how)
                return f"{count}: {self.digest(into[:count])}"

            # Zero bytes would be all of the buffer for Python.
            if size:
                self.with_held(f"recv {size} {int(how)}", fd, family, kind, call)
        elif way == "recvfrom" and not how & socket.MSG_TRUNC:

            def call(it):
                data, name = it.recvfrom(size, how)
                return self.digest(data), self.name(name)

            self.with_held(f"recvfrom {size} {int(how)}", fd, family, kind, call)
        elif way == "recvmsg" and not how & socket.MSG_TRUNC:

            def call(it):
                data, others, said, name = it.recvmsg(size, 100, how)
                return self.digest(data), len(others), said, self.name(name)

            self.with_held(f"recvmsg {size} {int(how)}", fd, family, kind, call)
        elif way == "read":
            self.say(f"read {self.letter(fd)} {size}:", lambda: self.digest(os.read(fd, size)))
        elif way == "readv":
            first, second = bytearray(3), bytearray(size)

            def call():
                count = os.readv(fd, [first, second])
                return f"{count}: {self.digest((first + second)[:count])}"

            self.say(f"readv {self.letter(fd)} {size}:", call)

    def shutdown(self):
        fd, family, kind = self.some()
        how = self.choose(socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)
        # Linux keeps what it says of a socket without a peer for the socket's next connection.
        if kind == STREAM and not self.has_peer(fd, family):
            return
        self.with_held(f"shutdown {how}", fd, family, kind, lambda it: it.shutdown(how))

    def leave_epoll(self, fd):
        """Linux goes on with a number that was closed while another number is of the same socket."""
        try:
            self.epoll.unregister(fd)
        except OSError:
            pass

    def has_peer(self, fd, family):
        """Whether a stream is connected, or listens."""
        try:
            with self.held(fd, family, STREAM) as it:
                if it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return True
                it.getpeername()
                return True
        except OSError:
            return False

    def close(self):
        fd, *_ = self.some()
        self.leave_epoll(fd)
        self.say(f"close {self.letter(fd)}:", os.close, fd)
        self.slots.pop(fd, None)
        self.letters.pop(fd, None)

    def dup(self):
        fd, family, kind = self.some()
        if len(self.slots) >= SLOTS:
            return
        try:
            made = self.add(os.dup(fd), family, kind)
        except OSError as error:
            made = errno.errorcode[error.errno]
        print(f"dup {self.letter(fd)}:", made, flush=True)

    def dup2(self):
        fd, family, kind = self.some()
        other, *_ = self.some()
        if fd not in self.slots or other not in self.slots:
            return
        self.leave_epoll(other)
        self.say(f"dup2 {self.letter(fd)} {self.letter(other)}:", lambda: os.dup2(fd, other) == other)
        self.add(other, family, kind)

    def names(self):
        fd, family, kind = self.some()
        self.with_held("getsockname", fd, family, kind, lambda it: self.name(it.getsockname()))
        self.with_held("getpeername", fd, family, kind, lambda it: self.name(it.getpeername()))

    def option(self, kind):
        """An option; of accepted connections Linux has another value of one of them."""
        known = [one for one in OPTIONS if kind == DATAGRAM or one[1] != "IP_MULTICAST_TTL"]
        return self.choose(*known)

    def getsockopt(self):
        fd, family, kind = self.some()
        level, option, _ = self.option(kind)
        number = getattr(socket, option)
        self.with_held(f"getsockopt {option}", fd, family, kind, lambda it: it.getsockopt(level, number))

    def differs(self, fd, family, kind, option):
        """Whether the option is of a listener, whose waiting connections have those of accept(2) with weir; or
        is one of which Linux takes a socket for full after a failed connect."""
        if option == "TCP_NOTSENT_LOWAT":
            return True
        try:
            with self.held(fd, family, kind) as it:
                return kind == STREAM and it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        except OSError:
            return False

    def setsockopt(self):
        fd, family, kind = self.some()
        level, option, values = self.option(kind)
        if self.differs(fd, family, kind, option):
            return
        number, value = getattr(socket, option), self.choose(*values)
        self.with_held(
            f"setsockopt {option} {value}", fd, family, kind, lambda it: it.setsockopt(level, number, value)
        )
        self.with_held(f"then {option}", fd, family, kind, lambda it: it.getsockopt(level, number))

    def linger(self):
        fd, family, kind = self.some()
        if self.differs(fd, family, kind, "SO_LINGER"):
            return
        value = struct.pack("ii", self.choose(0, 1, 1), 0)
        self.with_held(
            f"linger {value.hex()}",
            fd,
            family,
            kind,
            lambda it: it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, value),
        )

    def nonblocking(self):
        fd, *_ = self.some()
        how = self.choose(True, False)
        self.say(f"set_blocking {self.letter(fd)} {how}:", os.set_blocking, fd, how)
        self.say(f"F_GETFL {self.letter(fd)}:", self.flags, fd)

    def ioctl(self):
        fd, *_ = self.some()
        value = array.array("i", [-1])
        self.say(f"FIONREAD {self.letter(fd)}:", lambda: (fcntl.ioctl(fd, termios.FIONREAD, value), value[0]))

    def poll(self):
        poll = select.poll()
        wanted = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP
        for fd in sorted(self.slots):
            poll.register(fd, wanted)
        found = [f"{self.letter(fd)} {flags(mask, EVENTS)}" for fd, mask in poll.poll(0)]
        print("poll:", ", ".join(sorted(found)), flush=True)

    def select(self):
        all = list(self.slots)
        found = [sorted(map(self.letter, one)) for one in select.select(all, all, all, 0)]
        print("select:", found, flush=True)

    def epoll_ctl(self):
        fd, *_ = self.some()
        wanted = select.EPOLLIN | self.choose(0, select.EPOLLOUT) | self.choose(0, select.EPOLLRDHUP)
        way = self.choose("register", "register", "modify", "unregister")
        if way == "unregister":
            self.say(f"epoll unregister {self.letter(fd)}:", self.epoll.unregister, fd)
        else:
            self.say(f"epoll {way} {self.letter(fd)} {wanted:x}:", getattr(self.epoll, way), fd, wanted)

    def epoll_wait(self):
        found = [f"{self.letter(fd)} {flags(mask, EPOLL_EVENTS)}" for fd, mask in self.epoll.poll(0, 64)]
        print("epoll_wait:", ", ".join(sorted(found)), flush=True)

    def close_all(self):
        for fd in sorted(self.slots):
            os.close(fd)
        self.epoll.close()

    def run(self, calls):
        weighted = {
            self.socket: 8,
            self.listener: 4,
            self.pair: 8,
            self.bind: 5,
            self.listen: 3,
            self.connect: 8,
            self.accept: 5,
            self.send: 14,
            self.sendto: 6,
            self.recv: 16,
            self.shutdown: 4,
            self.close: 4,
            self.dup: 2,
            self.dup2: 1,
            self.names: 4,
            self.getsockopt: 5,
            self.setsockopt: 4,
            self.linger: 1,
            self.nonblocking: 2,
            self.ioctl: 3,
            self.poll: 10,
            self.select: 3,
            self.epoll_ctl: 4,
            self.epoll_wait: 6,
        }
        makes, weights = list(weighted), list(weighted.values())
        for make in self.random.choices(makes, weights, k=calls):
            make()
            time.sleep(self.settle)
        self.close_all()


class Held:
    """A socket object for a descriptor, which it does not close."""

    def __init__(self, fd, family, kind):
        self.made = socket.socket(family, kind, 0, fileno=fd)

    def __enter__(self):
        return self.made

    def __exit__(self, *_):
        self.made.detach()


def main():
    first, seeds, calls, settle = map(int, sys.argv[1:5])
    for seed in range(first, first + seeds):
        print("seed", seed, flush=True)
        Run(seed, settle / 1000).run(calls)


main()
