#!/usr/bin/env python3
"""VMTP (RFC 1045) on a packet socket: a second, small implementation.

Written from the specification, as a judge of the Rust one; shares nothing with
it. Usage:

    vmtp.py read IF OWN SERVER NAME LOSS PATH    writes the file NAME to PATH
    vmtp.py serve IF OWN NAME LOSS PATH          serves the file at PATH as NAME
    vmtp.py twice IF OWN SERVER NAME             sends one request several times
    vmtp.py endless IF OWN                       serves a file of 2^64-1 bytes, one at a time

OWN and SERVER are NUMBER@ADDRESS. LOSS: of each hundred packets sent, as many
are not.
"""

import random
import socket
import struct
import sys
import time

ETHER_TYPE = 0x805B
BLOCK = 512
MANAGERS = (0x40000001, 0xE0000100)
FILES = (0x40000000 | 1045, 0xE8000415)
PUBLIC, RESIDENT, DATAGRAM, DATA = 1, 4, 0x40, 0x10
PROBE, TELL_CLIENT, TELL_SERVER = 0x101, 0x10F, 0x110
OK, RETRY, RETRY_ALL = 0, 1, 2
HEADER = struct.Struct(">II I I I I II I II III I I")


def entity(text):
    number, address = text.split("@")
    return int(number), struct.unpack(">I", socket.inet_aton(address))[0]


class Packet:
    """One packet; fields by the names of the RFC."""

    def __init__(self, client, server, transact, code, flags=0, response=False, apg=False,
                 resident=(0, 0), user=(0, 0, 0), message=0, size=0, delivery=0, data=b""):
        self.client, self.server, self.transact = client, server, transact
        self.code, self.flags, self.response, self.apg = code, flags, response, apg
        self.resident, self.user, self.message = resident, tuple(user), message
        self.size, self.delivery, self.data = size, delivery, data

    def pack(self):
        padded = self.data + bytes(-len(self.data) % 4)
        multicast = 0x2000 if self.server[0] & 0x40000000 and not self.response else 0
        first = 1 << 16 | multicast | len(padded) // 4
        second = (0x40000000 if self.apg else 0) | int(self.response)
        head = HEADER.pack(*self.client, first, second, self.transact, self.delivery,
                           *self.server, self.flags << 24 | self.code, *self.resident,
                           *self.user, self.message, self.size)
        return head + padded + bytes(4)

    @classmethod
    def unpack(cls, raw):
        if len(raw) < HEADER.size + 4:
            return None
        (c1, c2, first, second, transact, delivery, s1, s2, code, r1, r2, u1, u2, u3,
         message, size) = HEADER.unpack_from(raw)
        words = first & 0x1FFF
        end = HEADER.size + words * 4
        if first >> 16 != 1 or len(raw) < end + 4 or raw[end:end + 4] != bytes(4):
            return None
        length = sum(min(BLOCK, size - BLOCK * bit) for bit in range(32) if delivery >> bit & 1)
        if length < 0 or (length + 3) // 4 != words:
            return None
        return cls((c1, c2), (s1, s2), transact, code & 0xFFFFFF, code >> 24, bool(second & 1),
                   bool(second & 0x40000000), (r1, r2), (u1, u2, u3), message, size, delivery,
                   raw[HEADER.size:HEADER.size + length])


class Wire:
    """A packet socket that loses some of what it sends."""

    def __init__(self, interface, loss):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHER_TYPE))
        self.socket.bind((interface, ETHER_TYPE))
        # All multicast frames (PACKET_MR_ALLMULTI).
        member = struct.pack("iHH8s", socket.if_nametoindex(interface), 2, 0, bytes(8))
        self.socket.setsockopt(263, 1, member)
        self.mac = self.socket.getsockname()[4]
        self.loss = loss
        self.random = random.Random(1045)

    def send(self, station, packet):
        if self.random.randrange(100) >= self.loss:
            self.socket.send(station + self.mac + struct.pack(">H", ETHER_TYPE) + packet.pack())

    def receive(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None, None
            self.socket.settimeout(left)
            try:
                frame, (_, _, kind, _, _) = self.socket.recvfrom(2048)
            except TimeoutError:
                return None, None
            packet = Packet.unpack(frame[14:])
            if kind != socket.PACKET_OUTGOING and packet:
                return frame[6:12], packet


def group_station(server):
    address = server[1] if server[0] & 0x40000000 else MANAGERS[1]
    return b"\x01\x00\x5e" + struct.pack(">I", address & 0x7FFFFF)[1:]


def packets(make, segment, mask):
    """The packets of a segment's blocks in a mask, two blocks in each."""
    if not segment:
        yield make(0, b"")
    for bit in range(0, (len(segment) + BLOCK - 1) // BLOCK, 2):
        blocks = [index for index in (bit, bit + 1)
                  if mask >> index & 1 and index * BLOCK < len(segment)]
        if blocks:
            data = b"".join(segment[index * BLOCK:(index + 1) * BLOCK] for index in blocks)
            yield make(sum(1 << index for index in blocks), data)


def all_blocks(size):
    return (1 << (size + BLOCK - 1) // BLOCK) - 1


def place(packet, segment):
    """Puts a packet's blocks into a segment."""
    at = 0
    for bit in range(32):
        if packet.delivery >> bit & 1:
            length = min(BLOCK, packet.size - BLOCK * bit)
            segment[BLOCK * bit:BLOCK * bit + length] = packet.data[at:at + length]
            at += length


class Client:
    def __init__(self, wire, own):
        # Transactions go on where an earlier process with this entity ended.
        self.wire, self.own, self.transact = wire, own, int(time.time() * 1000) & 0xFFFFFFFF
        self.stations = {}

    def answer_probe(self, station, packet, waits):
        answer = Packet(packet.client, packet.server, packet.transact, OK,
                        PUBLIC | RESIDENT | DATAGRAM, response=True, resident=self.own,
                        user=(self.transact, int(waits), 0))
        self.wire.send(station, answer)

    def call(self, server, code, user, segment):
        """One transaction; returns the server, the code, its words and its segment."""
        self.transact = self.transact + 1 & 0xFFFFFFFF
        station = self.stations.get(server, group_station(server))
        # Group requests are answered by an entity of another name.
        is_group = bool(server[0] & 0x40000000)
        flags = DATA if segment else 0
        mask, repeated = all_blocks(len(segment)), False
        for _ in range(40):
            for packet in packets(
                    lambda delivery, data: Packet(
                        self.own, server, self.transact, code, flags, apg=repeated, user=user,
                        size=len(segment), delivery=delivery, data=data), segment, mask):
                self.wire.send(station, packet)
            mask, got, body, head = 0, 0, None, None
            patience = 0.1
            while not mask:
                origin, packet = self.wire.receive(patience)
                if packet is None:
                    if head is None or head.flags & DATAGRAM:
                        mask, repeated = all_blocks(len(segment)) or 1, True
                    else:
                        ask = Packet(self.own, head.server, self.transact, TELL_SERVER,
                                     PUBLIC | RESIDENT | DATAGRAM, resident=head.server,
                                     user=(RETRY, 0, 0), message=got)
                        self.wire.send(origin_of, ask)
                    continue
                ours = packet.client == self.own and packet.transact == self.transact
                if packet.response and ours and (is_group or packet.server == server):
                    if head is not None and packet.server != head.server:
                        continue
                    if head is None:
                        head, body, origin_of = packet, bytearray(packet.size), origin
                        self.stations[packet.server] = origin
                    place(packet, body)
                    got |= packet.delivery
                    if got == all_blocks(packet.size):
                        return packet.server, packet.code, packet.user, bytes(body)
                elif packet.code == PROBE and packet.flags & PUBLIC and packet.server == self.own:
                    self.answer_probe(origin, packet, True)
                elif packet.code == TELL_CLIENT and packet.flags & PUBLIC and ours:
                    why = packet.user[0]
                    if why == RETRY:
                        mask = all_blocks(len(segment)) & ~packet.message
                    elif why == RETRY_ALL:
                        mask = all_blocks(len(segment)) or 1
                    elif why != OK:
                        raise SystemExit(f"refused: {why}")
        raise SystemExit("no answer")


def read(interface, own, server, name, loss, path):
    client = Client(Wire(interface, int(loss)), entity(own))
    server = FILES if server == "any" else entity(server)
    offset, out = 0, bytearray()
    while True:
        words = (offset >> 32, offset & 0xFFFFFFFF, 32 * BLOCK)
        server, code, user, part = client.call(server, 1, words, name.encode())
        if code:
            raise SystemExit(f"code {code:#x}")
        out += part
        offset += len(part)
        if not part or offset >= user[0] << 32 | user[1]:
            break
    with open(path, "wb") as file:
        file.write(out)


def serve(interface, own, name, loss, path):
    """Serves one file, to each client without a probe, until it is killed."""
    wire, own = Wire(interface, int(loss)), entity(own)
    with open(path, "rb") as file:
        content = file.read()
    records, executed = {}, 0
    print("ready", file=sys.stderr, flush=True)
    while True:
        station, packet = wire.receive(3600)
        if packet is None or packet.response or packet.server not in (own, FILES, MANAGERS):
            continue
        key = (packet.client, packet.transact)
        if packet.flags & PUBLIC:
            if packet.code == PROBE:
                wire.send(station, Packet(packet.client, own, packet.transact, OK,
                                          PUBLIC | RESIDENT | DATAGRAM, response=True,
                                          resident=own))
            elif packet.code == TELL_SERVER and key in records and packet.user[0] == RETRY:
                respond(wire, station, own, key, records[key], ~packet.message)
            continue
        if key in records:
            if packet.apg:
                respond(wire, station, own, key, records[key], -1)
            continue
        # The name fits into one packet.
        if packet.delivery != all_blocks(packet.size):
            continue
        executed += 1
        print(f"executed {executed}", file=sys.stderr, flush=True)
        offset, length = packet.user[0] << 32 | packet.user[1], packet.user[2]
        if packet.code == 1 and packet.data.decode() == name:
            answer = OK, (len(content) >> 32, len(content) & 0xFFFFFFFF, 9), \
                content[offset:offset + length]
        else:
            answer = 0x100, (0, 0, 0), b""
        records = {key: answer}
        respond(wire, station, own, key, answer, -1)


def respond(wire, station, own, key, answer, mask):
    code, user, segment = answer
    client, transact = key
    for packet in packets(
            lambda delivery, data: Packet(
                client, own, transact, code, DATA if segment else 0, response=True, user=user,
                size=len(segment), delivery=delivery, data=data), segment, mask):
        wire.send(station, packet)


def twice(interface, own, server, name):
    """Sends a request five times before anything else: it is answered."""
    wire, own, server = Wire(interface, 0), entity(own), entity(server)
    request = Packet(own, server, 77, 1, DATA, user=(0, 0, 4000), size=len(name),
                     delivery=1, data=name.encode())
    for _ in range(5):
        wire.send(group_station(server), request)
    probes = responses = 0
    while True:
        station, packet = wire.receive(0.5)
        if packet is None:
            break
        if packet.code == PROBE and not packet.response and packet.server == own:
            probes += 1
            # Answered twice as well.
            for _ in range(2):
                wire.send(station, Packet(packet.client, own, packet.transact, OK,
                                          PUBLIC | RESIDENT | DATAGRAM, response=True,
                                          resident=own, user=(77, 1, 0)))
        elif packet.response and packet.client == own:
            responses += 1
    print(probes, responses)


def endless(interface, own):
    """Answers each request with one byte of a file that has no end, until it is killed."""
    wire, own = Wire(interface, 0), entity(own)
    print("ready", file=sys.stderr, flush=True)
    while True:
        station, packet = wire.receive(3600)
        if packet and not packet.response and packet.server == own and not packet.flags & PUBLIC:
            answer = OK, (0xFFFFFFFF, 0xFFFFFFFF, 1), b"a"
            respond(wire, station, own, (packet.client, packet.transact), answer, -1)


if __name__ == "__main__":
    {"read": read, "serve": serve, "twice": twice, "endless": endless}[sys.argv[1]](*sys.argv[2:])
