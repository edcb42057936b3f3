"""Two network namespaces and a link between them: this process's, and a peer's."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time

OURS, PEER = "10.7.0.1", "10.7.0.2"
LINK, PEERS_LINK = "weir0", "peer0"


def enter_namespace():
    """Runs this program in a network namespace of its own, which goes with it."""
    if os.environ.get("WEIR_PYTHON_NET") != "1":
        os.environ["WEIR_PYTHON_NET"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def broker(grant):
    """A broker here that grants this; gives its socket. WEIR_BINARY says which program."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        policy, socket = os.path.join(folder, "policy.toml"), os.path.join(folder, "socket")
        with open(policy, "w") as file:
            file.write("[[grant]]\n" + grant)
        command = [os.environ["WEIR_BINARY"], "broker", "--config", policy, "--socket", socket]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            try:
                said = []
                while "ready\n" not in said:
                    line = running.stderr.readline()
                    assert line, f"the broker has ended: {said}"
                    said.append(line)
                yield socket
            finally:
                running.terminate()
                running.wait(20)


def as_nobody(work, when_ready=lambda: None):
    """What `work` returns, or its exception as text, in a child process of user nobody.

    `work` gets a function; once it calls that, `when_ready` is called here.
    """
    ours, childs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            text = work(lambda: os.write(childs, b"ready\n"))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(childs, text.encode())
        os._exit(0)
    os.close(childs)
    with os.fdopen(ours) as file:
        text = file.readline()
        if text == "ready\n":
            when_ready()
            text = file.readline()
        text += file.read()
    os.waitpid(pid, 0)
    return text


class Net:
    def __init__(self):
        # Its namespace is the peer's; it ends with its standard input.
        self.peer = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        own = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + 20
        while os.readlink(f"/proc/{self.peer.pid}/ns/net") == own:
            assert time.monotonic() < deadline, "no namespace of the peer"
            time.sleep(0.01)
        pid = str(self.peer.pid)
        ip("link", "set", "lo", "up")
        ip("link", "add", LINK, "type", "veth", "peer", "name", PEERS_LINK, "netns", pid)
        self.inside("ip", "address", "add", f"{PEER}/24", "dev", PEERS_LINK)
        self.inside("ip", "link", "set", PEERS_LINK, "up")
        ip("address", "add", f"{OURS}/24", "dev", LINK)
        ip("link", "set", LINK, "up")

    def inside(self, *words):
        subprocess.run(["nsenter", "-t", str(self.peer.pid), "--net", *words], check=True)

    def send(self, port, count):
        """The peer sends datagrams to a port here."""
        code = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"for n in range({count}): s.sendto(n.to_bytes(4, 'big'), ('{OURS}', {port}))"
        )
        self.inside(sys.executable, "-c", code)

    def sink(self, port):
        """A socket that nobody reads, so that no ICMP errors are sent."""
        taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        taken.bind((OURS, port))
        return taken

    def close(self):
        self.peer.stdin.close()
        self.peer.wait(20)
