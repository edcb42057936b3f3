#!/usr/bin/env python3
"""Pup over UDP and on a packet socket: a second, small implementation.

Written from the specifications (Pup paper 1980, PupSpec 1978, FTP), as a judge
of the Rust one; shares nothing with it. One Pup of data is under way at a time.
Usage:

    pup.py echo LINK OWN HOST                 one echo
    pup.py get LINK OWN HOST NAME LOSS PATH   retrieves NAME into PATH
    pup.py put LINK OWN HOST NAME LOSS PATH   stores PATH as NAME
    pup.py serve LINK OWN LOSS FOLDER [LIE]   echo, and FTP for one client a time

LIE is what the server does wrong: `more` or `less` than the length that it states,
or `comments` without end.

LINK is an interface, or udp:ADDR:PORT. OWN and HOST are NET#HOST#, in octal.
"""

import os
import random
import socket
import struct
import sys
import time

ECHO_ME, ECHO, ERROR = 1, 2, 4
RFC, ABORT, END, END_REPLY = 8, 9, 10, 11
DATA, ADATA, ACK, MARK, INTERRUPT, INTERRUPT_REPLY, AMARK = 16, 17, 18, 19, 20, 21, 22
RETRIEVE, YES, NO, HERE_IS_FILE, EOC, COMMENT, VERSION, NEW_STORE, LIST = 1, 3, 4, 5, 6, 7, 8, 9, 11


def checksum(data):
    total = 0
    for (word,) in struct.iter_unpack(">H", data):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
        total = (total << 1 & 0xFFFF) | total >> 15
    return 0 if total == 0xFFFF else total


def pack(kind, number, dst, src, data=b""):
    head = struct.pack(">HBBI", 22 + len(data), 0, kind, number)
    body = head + struct.pack(">BBI", *dst) + struct.pack(">BBI", *src) + data
    body += bytes(len(data) % 2)
    return body + struct.pack(">H", checksum(body))


def unpack(raw):
    if len(raw) < 22:
        return None
    length, _, kind, number = struct.unpack_from(">HBBI", raw)
    end = length - 2 + length % 2
    if length < 22 or len(raw) < end + 2:
        return None
    stated = struct.unpack_from(">H", raw, end)[0]
    if stated not in (0xFFFF, checksum(raw[:end])):
        return None
    return (kind, number, struct.unpack_from(">BBI", raw, 8), struct.unpack_from(">BBI", raw, 14),
            raw[20:length - 2])


class Wire:
    def __init__(self, link, own, loss):
        net, host = own.split("#")[:2]
        self.net, self.host = int(net, 8), int(host, 8)
        self.loss, self.random = loss, random.Random(1980)
        self.stations = {}
        if link.startswith("udp:"):
            _, address, port = link.split(":")
            self.peers = (address, int(port))
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self.socket.bind(("", int(port)))
        else:
            self.peers = None
            # The kernel takes Pup's type for a length: all frames, of which Pups are chosen.
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.socket.bind((link, 3))
            self.mac = self.socket.getsockname()[4]

    def send(self, kind, number, dst, src, data=b""):
        if self.random.randrange(100) < self.loss:
            return
        pup = pack(kind, number, dst, (self.net, self.host, src), data)
        if self.peers:
            frame = struct.pack(">BBH", dst[1], self.host, 0o1000) + pup
            self.socket.sendto(struct.pack(">H", len(frame) // 2) + frame, self.peers)
        else:
            station = self.stations.get(dst[1], b"\xff" * 6)
            self.socket.send((station + self.mac + b"\x02\x00" + pup).ljust(60, b"\0"))

    def receive(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                frame, origin = self.socket.recvfrom(2048)
            except TimeoutError:
                return None
            if not self.peers and (origin[2] == socket.PACKET_OUTGOING or frame[12:14] != b"\x02\x00"):
                continue
            pup = unpack(frame[6:] if self.peers else frame[14:])
            if pup and pup[2][1] in (0, self.host) and pup[3][1] != self.host:
                if not self.peers:
                    self.stations[pup[3][1]] = frame[6:12]
                return pup


class Stream:
    """A byte stream; items are (is a mark, bytes)."""

    def __init__(self, wire, own, peer, number):
        self.wire, self.own, self.peer, self.number = wire, own, peer, number
        self.sent = self.got = number
        self.items, self.over, self.acked = [], False, None

    @classmethod
    def open(cls, wire, host, well_known):
        own, number = random.randrange(1 << 17, 1 << 30), random.randrange(1 << 32)
        asked = (host[0], host[1], well_known)
        for _ in range(40):
            wire.send(RFC, number, asked, own, struct.pack(">BBI", wire.net, wire.host, own))
            pup = wire.receive(0.2)
            if pup and pup[0] == RFC and pup[1] == number and pup[2][2] == own:
                return cls(wire, own, struct.unpack(">BBI", pup[4]), number)
            if pup and pup[0] == ERROR:
                raise SystemExit(pup[4][24:].decode())
        raise SystemExit("no answer")

    def handle(self, pup):
        kind, position, dst, _, data = pup
        if dst[2] != self.own:
            return False
        if kind in (DATA, ADATA, MARK, AMARK):
            if position == self.got and data:
                self.items.append((kind in (MARK, AMARK), data))
                self.got = self.got + len(data) & 0xFFFFFFFF
            if kind in (ADATA, AMARK):
                self.wire.send(ACK, self.got, self.peer, self.own, struct.pack(">HHH", 532, 4, 2128))
        elif kind == ACK:
            self.acked = position
        elif kind == END:
            self.over = True
            self.wire.send(END_REPLY, self.number, self.peer, self.own)
        elif kind == END_REPLY:
            self.over = True
        elif kind == ABORT:
            raise SystemExit("aborted: " + data[2:].decode())
        return True

    def send_item(self, kind, data):
        end = self.sent + len(data) & 0xFFFFFFFF
        self.acked = None
        for _ in range(60):
            self.wire.send(kind, self.sent, self.peer, self.own, data)
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                pup = self.wire.receive(until - time.monotonic())
                if pup:
                    self.handle(pup)
                if self.acked == end:
                    self.sent = end
                    return
        raise SystemExit("no acknowledgment")

    def write(self, data):
        for at in range(0, len(data), 532):
            self.send_item(ADATA, data[at:at + 532])

    def mark(self, number):
        self.send_item(AMARK, bytes([number]))

    def command(self, number, argument=b""):
        self.mark(number)
        self.write(argument)
        self.mark(EOC)

    def read(self, ends=False):
        """The next item; None at the end of the stream."""
        until = time.monotonic() + 20
        while not self.items:
            if self.over:
                return None
            if time.monotonic() > until:
                raise SystemExit("nothing comes")
            pup = self.wire.receive(0.3)
            if pup:
                self.handle(pup)
        return self.items.pop(0)

    def read_to_mark(self):
        """Bytes up to the next mark, and the mark."""
        data = b""
        while True:
            item = self.read()
            if item is None:
                return data, None
            if item[0]:
                return data, item[1][0]
            data += item[1]

    def read_command(self):
        """A command and its argument, up to End-of-command."""
        while True:
            _, number = self.read_to_mark()
            if number is None or number == EOC:
                return number, b""
            argument, _ = self.read_to_mark()
            if number != COMMENT:
                return number, argument

    def close(self):
        for _ in range(40):
            self.wire.send(END, self.number, self.peer, self.own)
            pup = self.wire.receive(0.2)
            if pup:
                self.handle(pup)
            if self.over:
                self.wire.send(END_REPLY, self.number, self.peer, self.own)
                return


def properties(name, size=None):
    size = "" if size is None else f"(Size {size})"
    return f"((Server-Filename {name})(Type Binary)(Byte-Size 8){size})".encode()


def address(text):
    net, host = text.split("#")[:2]
    return int(net, 8), int(host, 8)


def echo(link, own, host):
    wire = Wire(link, own, 0)
    for number in range(5):
        wire.send(ECHO_ME, number, (*address(host), 5), 0x4321, b"odd")
        pup = wire.receive(1)
        if pup and pup[0] == ECHO and pup[1] == number and pup[4] == b"odd":
            print("echo")
            return
    raise SystemExit("no echo")


def begin(link, own, host, loss):
    stream = Stream.open(Wire(link, own, int(loss)), address(host), 3)
    stream.command(VERSION, b"\x01python")
    assert stream.read_command()[0] == VERSION
    return stream


def get(link, own, host, name, loss, path):
    stream = begin(link, own, host, loss)
    stream.command(RETRIEVE, properties(name))
    number, argument = stream.read_command()
    if number != LIST:
        raise SystemExit(f"refused: {argument[1:].decode()}")
    stream.command(YES, b"\0please")
    _, number = stream.read_to_mark()
    assert number == HERE_IS_FILE, number
    data, number = stream.read_to_mark()
    assert number == YES, number
    stream.read_to_mark()
    stream.close()
    with open(path, "wb") as file:
        file.write(data)


def put(link, own, host, name, loss, path):
    stream = begin(link, own, host, loss)
    stream.command(NEW_STORE, properties(name))
    number, argument = stream.read_command()
    if number != LIST:
        raise SystemExit(f"refused: {argument[1:].decode()}")
    stream.mark(HERE_IS_FILE)
    with open(path, "rb") as file:
        stream.write(file.read())
    stream.command(YES, b"\0done")
    number, argument = stream.read_command()
    if number != YES:
        raise SystemExit(f"refused: {argument[1:].decode()}")
    stream.close()


def serve(link, own, loss, folder, lie=None):
    wire = Wire(link, own, int(loss))
    print("ready", file=sys.stderr, flush=True)
    stream, asked = None, None
    while True:
        pup = wire.receive(3600)
        if pup is None:
            continue
        kind, number, dst, src, data = pup
        if kind == ECHO_ME and dst[2] == 5:
            wire.send(ECHO, number, src, 5, data)
        elif kind == RFC and dst[2] == 3:
            if asked != (src, number):
                peer = struct.unpack(">BBI", data)
                peer = (peer[0] or src[0], peer[1] or src[1], peer[2])
                stream, asked = Stream(wire, random.randrange(1 << 17, 1 << 30), peer, number), (src, number)
            own_port = struct.pack(">BBI", wire.net, wire.host, stream.own)
            wire.send(RFC, number, src, 3, own_port)
            # A request that was repeated is answered before the session begins.
            again = wire.receive(0.3)
            while again and again[0] == RFC:
                wire.send(RFC, number, src, 3, own_port)
                again = wire.receive(0.3)
            if again:
                stream.handle(again)
            session(stream, folder, lie)


def session(stream, folder, lie):
    while True:
        number, argument = stream.read_command()
        if number is None:
            return
        if number == VERSION:
            stream.command(VERSION, b"\x01python")
            continue
        name = argument.decode().split("(Server-Filename ")[1].split(")")[0]
        path = os.path.join(folder, os.path.basename(name))
        if number == RETRIEVE and os.path.exists(path):
            if lie == "comments":
                while not stream.over:
                    stream.command(COMMENT, b"wait")
                return
            size = os.path.getsize(path) + {"more": -1, "less": 1}.get(lie, 0)
            stream.command(LIST, properties(name, size))
            if stream.read_command()[0] != YES:
                stream.mark(EOC)
                continue
            stream.mark(HERE_IS_FILE)
            with open(path, "rb") as file:
                stream.write(file.read())
            stream.command(YES, b"\0done")
        elif number == NEW_STORE:
            stream.command(LIST, properties(name))
            assert stream.read_to_mark()[1] == HERE_IS_FILE
            data, number = stream.read_to_mark()
            assert number == YES, number
            stream.read_to_mark()
            with open(path, "wb") as file:
                file.write(data)
            stream.command(YES, b"\0stored")
        else:
            stream.command(NO, b"\x40no such file")


if __name__ == "__main__":
    {"echo": echo, "get": get, "put": put, "serve": serve}[sys.argv[1]](*sys.argv[2:])
