"""Prints what epoll sets report of connections, a line each. Run on the kernel's sockets and on weir's,
the lines must be the same."""

import ctypes
import os
import select
import socket
import threading
import time

IN, OUT, ET, ONESHOT = select.EPOLLIN, select.EPOLLOUT, select.EPOLLET, select.EPOLLONESHOT
RDHUP, EXCLUSIVE = select.EPOLLRDHUP, select.EPOLLEXCLUSIVE
NAMES = {"IN": IN, "OUT": OUT, "RDHUP": RDHUP, "HUP": select.EPOLLHUP, "ERR": select.EPOLLERR}
# Longest wait for what must come, and a wait in which nothing may come, in seconds.
LONG, SHORT = 20, 0.05


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    one.setblocking(False)
    return one, other


def named(found, sockets):
    names = {end.fileno(): name for name, end in sockets.items()}
    words = []
    for fd, events in found:
        flags = [name for name, bit in NAMES.items() if events & bit]
        words.append(f"{names.get(fd, 'another')} {' '.join(flags)}")
    return ", ".join(sorted(words)) or "nothing"


def say(what, epoll, timeout, most=-1, **sockets):
    print(f"{what}: {named(epoll.poll(timeout, most), sockets)}", flush=True)


def settle(end, count=1):
    """Waits until bytes have arrived, without a call that would report it."""
    limit = time.monotonic() + LONG
    while time.monotonic() < limit:
        try:
            if len(end.recv(100000, socket.MSG_PEEK)) >= count:
                return
        except BlockingIOError:
            pass
        time.sleep(0.001)
    raise TimeoutError("the bytes have not arrived")


def level():
    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN)
    say("level, nothing sent", epoll, SHORT, one=one)
    other.send(b"abc")
    say("level, sent", epoll, LONG, one=one)
    say("level, not read", epoll, LONG, one=one)
    say("level, not read, no wait", epoll, 0, one=one)
    print("level, read", one.recv(1), flush=True)
    say("level, read in part", epoll, LONG, one=one)
    print("level, read", one.recv(10), flush=True)
    say("level, all read", epoll, SHORT, one=one)
    other.send(b"d")
    say("level, sent again", epoll, LONG, one=one)
    other.shutdown(socket.SHUT_WR)
    time.sleep(SHORT)
    say("level, ended", epoll, LONG, one=one)
    print("level, read", one.recv(10), one.recv(10), flush=True)
    say("level, the end", epoll, LONG, one=one)


def edge():
    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN | OUT | ET)
    say("edge, nothing sent", epoll, LONG, one=one)
    say("edge, nothing new", epoll, SHORT, one=one)
    other.send(b"abc")
    say("edge, sent", epoll, LONG, one=one)
    say("edge, not read", epoll, SHORT, one=one)
    epoll.modify(one, IN | ET)
    say("edge, modified", epoll, LONG, one=one)
    say("edge, not read either", epoll, SHORT, one=one)
    print("edge, read", one.recv(10), flush=True)
    other.send(b"d")
    say("edge, sent again", epoll, LONG, one=one)


def places():
    one, other = pair()
    epoll, second = select.epoll(), select.epoll()
    epoll.register(one, OUT)
    other.send(b"abc")
    settle(one)
    say("places, not asked for", epoll, LONG, one=one)
    epoll.modify(one, IN)
    say("places, asked for", epoll, LONG, one=one)
    second.register(one, IN)
    say("places, in a second set", second, LONG, one=one)
    say("places, and in the first", epoll, LONG, one=one)
    second.unregister(one)
    epoll.unregister(one)
    say("places, in none", epoll, SHORT, one=one)
    epoll.register(one, IN)
    copy = one.dup()
    say("places, with a copy", epoll, LONG, one=one)
    epoll.register(copy, IN)
    say("places, twice", epoll, LONG, one=one, copy=copy)
    one.recv(10)
    say("places, read", epoll, SHORT, one=one, copy=copy)
    other.send(b"d")
    say("places, sent again", epoll, LONG, one=one, copy=copy)
    copy.close()
    say("places, copy closed", epoll, LONG, one=one)


def kinds():
    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN | ONESHOT)
    other.send(b"a")
    say("once", epoll, LONG, one=one)
    say("once, not again", epoll, SHORT, one=one)
    epoll.modify(one, IN | ONESHOT)
    say("once, armed", epoll, LONG, one=one)
    epoll.unregister(one)
    epoll.register(one, IN | EXCLUSIVE)
    say("exclusive", epoll, LONG, one=one)


def others():
    """Waits that only the kernel sees."""
    one, other = pair()
    epoll, outer = select.epoll(), select.epoll()
    epoll.register(one, IN)
    other.send(b"a")
    settle(one)
    poll = select.poll()
    poll.register(one, select.POLLIN)
    print("others, poll", [event for _, event in poll.poll(LONG * 1000)], flush=True)
    say("others, behind poll", epoll, LONG, one=one)
    one.recv(10)
    other.send(b"a")
    print("others, select", len(select.select([one], [], [], LONG)[0]), flush=True)
    one.recv(10)
    epoll.modify(one, IN)
    poll = select.poll()
    poll.register(epoll, select.POLLIN)
    other.send(b"a")
    print("others, poll on the set", [event for _, event in poll.poll(LONG * 1000)], flush=True)
    say("others, behind that", epoll, LONG, one=one)

    one, other = pair()
    epoll = select.epoll()
    outer.register(epoll, IN)
    epoll.register(one, IN)
    other.send(b"a")
    say("others, a set of sets", outer, LONG, inner=epoll)

    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN)
    outer = select.epoll()
    outer.register(epoll, IN)
    other.send(b"a")
    say("others, a later set of sets", outer, LONG, inner=epoll)

    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN)
    copy = select.epoll.fromfd(os.dup(epoll.fileno()))
    other.send(b"a")
    say("others, a copy of the set", copy, LONG, one=one)
    say("others, the set", epoll, LONG, one=one)

    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN)
    one.setblocking(True)
    threading.Timer(SHORT, other.send, [b"b"]).start()
    print("others, a read that waits", one.recv(10), flush=True)


def threads():
    one, other = pair()
    two, another = pair()
    epoll = select.epoll()
    reader, writer = os.pipe()
    epoll.register(reader, IN)
    found = []

    def wait(kept=None):
        found.append(named((kept or epoll).poll(LONG), {"one": one, "two": two}))

    def waits(count, act):
        found.clear()
        all_of = [threading.Thread(target=wait) for _ in range(count)]
        for thread in all_of:
            thread.start()
        time.sleep(SHORT)
        act()
        for thread in all_of:
            thread.join()
        return found[0]

    # The thread waits before the set has any connection.
    print("threads, a first one", waits(1, lambda: (epoll.register(one, IN), other.send(b"a"))), flush=True)
    print("threads, another one", waits(1, lambda: (epoll.register(two, IN), another.send(b"a"))), flush=True)
    one.recv(10)
    two.recv(10)
    print("threads, two of them", waits(2, lambda: other.send(b"a")), flush=True)

    # One thread waits for a set, and another one for another set.
    first, second = select.epoll(), select.epoll()
    one, other = pair()
    two, another = pair()
    first.register(one, IN)
    second.register(two, IN)
    found.clear()
    both = [threading.Thread(target=wait, args=[kept]) for kept in (first, second)]
    for thread in both:
        thread.start()
        time.sleep(SHORT)
    other.send(b"a")
    another.send(b"a")
    for thread in both:
        thread.join()
    print("threads, two sets", sorted(found), flush=True)


def by_time():
    """`epoll_pwait2`, whose time is in nanoseconds. The C library has it since 2.35."""
    if not hasattr(ctypes.CDLL("libc.so.6"), "epoll_pwait2"):
        return
    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN)
    wait = ctypes.CDLL(None).epoll_pwait2
    events = ctypes.create_string_buffer(12 * 8)

    def waits(ns):
        time = (ctypes.c_long * 2)(*divmod(ns, 10**9))
        return wait(epoll.fileno(), events, 8, time, None)

    print("by time, nothing sent", waits(500_000), flush=True)
    other.send(b"a")
    print("by time, sent", waits(LONG * 10**9), int.from_bytes(events.raw[:4], "little"), flush=True)
    print("by time, without a wait", waits(0), flush=True)
    print("by time, no such time", waits(-1), flush=True)


def many():
    pairs = [pair() for _ in range(20)]
    epoll = select.epoll()
    for one, other in pairs:
        epoll.register(one, IN)
        other.send(b"a")
    for one, _ in pairs:
        settle(one)
    seen = set()
    for _ in range(20):
        seen.update(fd for fd, _ in epoll.poll(LONG, 3))
    print("many, in turn", len(seen), flush=True)
    print("many, at once", len(epoll.poll(LONG, 64)), flush=True)
    reader, writer = os.pipe()
    epoll.register(reader, IN)
    os.write(writer, b"a")
    print("many, with a pipe", len(epoll.poll(LONG, 64)), flush=True)
    # Not always, while connections take all the room.
    for most in (3, 2, 1):
        found = [fd for _ in range(60) for fd, _ in epoll.poll(LONG, most)]
        print("many, with little room", most, reader in found, len(set(found)), flush=True)
    for one, _ in pairs:
        one.close()
    print("many, closed", len(epoll.poll(LONG, 64)), flush=True)


def forks():
    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, IN)
    other.send(b"a")
    settle(one)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    say("forks, the parent", epoll, LONG, one=one)
    one.recv(10)
    other.send(b"a")
    say("forks, sent again", epoll, LONG, one=one)


for part in (level, edge, places, kinds, others, threads, by_time, many, forks):
    part()
