"""serve ADDRESS CLIENTS [fork]: for each client, returns what it sends, of TCP and of UDP.
client ADDRESS MIB: sends as many MiB, and compares what returns."""

import hashlib
import os
import socket
import sys
import threading
import time

PORT = 4000
BLOCK = 1 << 19
DATAGRAMS = [0, 1, 512, 1472, 1473, 9000, 60000]


def block(number):
    seed = hashlib.sha256(str(number).encode()).digest()
    return seed * (BLOCK // len(seed))


def echo_datagrams(udp):
    while True:
        data, peer = udp.recvfrom(65536)
        if data == b"end":
            udp.sendto(b"end", peer)
            return
        udp.sendto(data, peer)


def echo(stream):
    while data := stream.recv(1 << 18):
        stream.sendall(data)
    stream.close()


def serve(address, clients, manner):
    listener = socket.create_server((address, PORT), backlog=16)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((address, PORT))
    print("listens", file=sys.stderr, flush=True)
    datagrams = [threading.Thread(target=lambda: [echo_datagrams(udp) for _ in range(clients)])]
    streams = []
    datagrams[0].start()
    for _ in range(clients):
        stream, _ = listener.accept()
        if manner == "fork":
            child = os.fork()
            if child == 0:
                echo(stream)
                os._exit(0)
            stream.close()
            os.waitpid(child, 0)
        else:
            streams.append(threading.Thread(target=echo, args=(stream,)))
            streams[-1].start()
    for thread in datagrams + streams:
        thread.join()


def connected(address):
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def client(address, mib):
    stream = connected(address)
    stream.settimeout(60)
    blocks = 2 * mib

    def send():
        try:
            for number in range(blocks):
                stream.sendall(block(number))
            stream.shutdown(socket.SHUT_WR)
        except OSError as error:
            print(error, file=sys.stderr)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    buffer = memoryview(bytearray(BLOCK))
    for number in range(blocks):
        have = 0
        while have < BLOCK:
            count = stream.recv_into(buffer[have:])
            if count == 0:
                sys.exit(f"the end in block {number}")
            have += count
        if buffer != block(number):
            sys.exit(f"block {number} differs")
        if number == 0:
            print("half a MiB", file=sys.stderr, flush=True)
    if stream.recv(1):
        sys.exit("more than was sent")
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.connect((address, PORT))
    udp.settimeout(60)
    for number in range(2000):
        data = block(number)[: DATAGRAMS[number % len(DATAGRAMS)]]
        udp.send(data)
        if udp.recv(65536) != data:
            sys.exit(f"datagram {number} differs")
    udp.send(b"end")
    udp.recv(16)


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
else:
    client(sys.argv[2], int(sys.argv[3]))
