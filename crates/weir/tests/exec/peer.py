"""The other end of observe.py, on the kernel's sockets: echoes over TCP and UDP at port 7, over
both versions of IP, and at port 9 connects back to where it is told."""

import socket
import sys
import threading


def tcp(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection):
    with connection:
        while bytes_ := connection.recv(65536):
            if bytes_.startswith(b"reset"):
                linger = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            connection.sendall(bytes_)


def call(listener):
    """Connects to the address that each client sends, and says hello there."""
    while True:
        connection, _ = listener.accept()
        with connection:
            at, port = connection.recv(100).decode().split()
            try:
                with socket.create_connection((at, int(port)), 5) as other:
                    other.sendall(b"hello")
                    other.recv(1)
            except OSError as error:
                print(error, file=sys.stderr)


def udp(peer):
    while True:
        bytes_, sender = peer.recvfrom(65536)
        peer.sendto(bytes_, sender)


def main():
    work = []
    for port, run in ((7, tcp), (9, call)):
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        work.append(threading.Thread(target=run, args=(listener,)))
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    datagrams.bind(("::", 7))
    work.append(threading.Thread(target=udp, args=(datagrams,)))
    for thread in work:
        thread.start()


main()
