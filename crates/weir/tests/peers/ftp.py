#!/usr/bin/env python3
"""FTP for the tests of a translator: a small server (RFC 959, RFC 2428), and exchanges by ftplib.

    ftp.py server ADDRESS                   serves /data, which clients write and read
    ftp.py client ADDRESS HOW               HOW: active, eprt, pasv, epsv, pieces
"""
import ftplib
import io
import socket
import sys
import threading

PORT = 21
PATIENCE = 20
DATA = bytes(i * 7 % 251 for i in range(200_000))


class Session:
    """One control connection."""

    store = {}

    def __init__(self, control):
        control.settimeout(PATIENCE)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.control = control
        self.active = None
        self.passive = None

    def say(self, line):
        """Byte by byte, so that segments split it anywhere."""
        for byte in (line + "\r\n").encode():
            self.control.send(bytes([byte]))

    def data(self):
        if self.passive:
            listener, self.passive = self.passive, None
            connection, _ = listener.accept()
            listener.close()
        else:
            host, self.active = self.active, None
            connection = socket.create_connection(host, PATIENCE)
        connection.settimeout(PATIENCE)
        return connection

    def listen(self):
        address = self.control.getsockname()[0]
        self.passive = socket.create_server((address, 0))
        self.passive.settimeout(PATIENCE)
        return address, self.passive.getsockname()[1]

    def run(self):
        self.say("220 ready")
        for line in self.control.makefile("r", encoding="latin-1", newline="\r\n"):
            word, _, rest = line.strip().partition(" ")
            if self.command(word.upper(), rest) is False:
                return

    def command(self, word, rest):
        if word == "USER":
            self.say("230 in")
        elif word == "TYPE":
            self.say("200 so be it")
        elif word == "PORT":
            numbers = [int(it) for it in rest.split(",")]
            self.active = (".".join(map(str, numbers[:4])), numbers[4] * 256 + numbers[5])
            print("named", *self.active, file=sys.stderr, flush=True)
            self.say("200 there")
        elif word == "EPRT":
            _, _, address, port, _ = rest.split(rest[0])
            self.active = (address, int(port))
            print("named", *self.active, file=sys.stderr, flush=True)
            self.say("200 there")
        elif word == "PASV":
            address, port = self.listen()
            text = address.replace(".", ",")
            self.say(f"227 Entering Passive Mode ({text},{port // 256},{port % 256}).")
        elif word == "EPSV":
            _, port = self.listen()
            self.say(f"229 Entering Extended Passive Mode (|||{port}|)")
        elif word == "STOR":
            self.say("150 go on")
            with self.data() as data:
                self.store[rest] = b"".join(iter(lambda: data.recv(65536), b""))
            self.say("226 done")
        elif word == "RETR":
            self.say("150 here it comes")
            with self.data() as data:
                data.sendall(self.store[rest])
            self.say("226 done")
        elif word == "QUIT":
            self.say("221 bye")
            return False
        else:
            self.say("502 no")
        return True


def serve(address):
    listener = socket.create_server((address, PORT))
    print("ready", file=sys.stderr, flush=True)
    while True:
        control, _ = listener.accept()
        threading.Thread(target=Session(control).run, daemon=True).start()


class InPieces(ftplib.FTP):
    """Sends each byte of a command by itself."""

    def putline(self, line):
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in (line + "\r\n").encode():
            self.sock.send(bytes([byte]))


def exchange(address, how):
    kind = InPieces if how == "pieces" else ftplib.FTP
    with kind(address, "anonymous", timeout=PATIENCE) as ftp:
        ftp.set_pasv(how in ("pasv", "epsv"))
        # What the server says is to be right.
        ftp.trust_server_pasv_ipv4_address = True
        if how == "eprt":
            ftp.sendport = ftp.sendeprt
        if how == "epsv":
            ftp.makepasv = lambda: ftplib.parse229(ftp.sendcmd("EPSV"), ftp.sock.getpeername())
        for round_ in range(3):
            name = f"{how}{round_}"
            ftp.storbinary(f"STOR {name}", io.BytesIO(DATA))
            back = io.BytesIO()
            ftp.retrbinary(f"RETR {name}", back.write)
            assert back.getvalue() == DATA, "other data came back"
        print("good", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        exchange(sys.argv[2], sys.argv[3])
