# A parent that owns the link, and children that open sockets of their own, in several manners.
import errno, os, resource, select, signal, socket, struct, sys, time

manner, peer = sys.argv[1], sys.argv[2]


def child(act):
    """Runs act in a child; returns its exit status."""
    number = os.fork()
    if number == 0:
        try:
            act()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def descriptors():
    return len(os.listdir('/proc/self/fd'))


def echo(number):
    with socket.create_connection((peer, 7), 20) as stream:
        sent = bytes((number * 7 + at * 13) & 255 for at in range(100 + number))
        stream.sendall(sent)
        got = b''
        while len(got) < len(sent):
            part = stream.recv(65536)
            assert part, 'an early end'
            got += part
        assert got == sent, number


def at_rest():
    """The number of descriptors once it stays the same: an earlier child's are gone."""
    number, since = descriptors(), time.monotonic()
    while time.monotonic() < since + 0.5:
        if descriptors() != number:
            number, since = descriptors(), time.monotonic()
        time.sleep(0.02)
    return number


def settles(before):
    """The owner has as many descriptors as before."""
    end = time.monotonic() + 10
    while descriptors() != before and time.monotonic() < end:
        time.sleep(0.02)
    return descriptors() - before


if manner == 'many':
    listener = socket.create_server(('192.0.2.5', 4000))
    child(lambda: echo(0))
    before = at_rest()
    print(child(lambda: [echo(number) for number in range(1000)]))
    print('left:', settles(before))

    def refused():
        for _ in range(50):
            stream = socket.socket()
            stream.setblocking(False)
            assert stream.connect_ex((peer, 4)) == errno.EINPROGRESS
            assert select.select([], [stream], [], 10)[1]
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
            stream.close()
    print(child(refused))

    def abandoned():
        # No station answers there: the attempts end with their descriptors.
        for _ in range(50):
            stream = socket.socket()
            stream.setblocking(False)
            assert stream.connect_ex(('192.0.2.77', 4)) == errno.EINPROGRESS
            try:
                stream.send(b'too early')
            except BlockingIOError:
                pass
    print(child(abandoned))
    print('left:', settles(before))
elif manner == 'limit':
    # A child that takes all that it gets leaves the owner its part.
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
    listener = socket.create_server(('192.0.2.5', 4000))

    def greedy():
        held = []
        try:
            while len(held) < 10_000:
                held.append(socket.create_connection((peer, 7), 20))
        except OSError as error:
            print(errno.errorcode[error.errno], len(held) > 60)
        to_parent.send(b'x')
        to_parent.recv(1)
    to_child, to_parent = socket.socketpair()
    number = os.fork()
    if number == 0:
        greedy()
        os._exit(0)
    to_child.recv(1)
    for number in range(10):
        echo(number)
    print('the owner goes on')
    to_child.send(b'x')
    os.wait()
    print(child(lambda: echo(1)))
elif manner == 'killed':
    # The owner is the first child; the second one outlives it.
    to_owner, of_owner = socket.socketpair()
    owner = os.fork()
    if owner == 0:
        listener = socket.create_server(('192.0.2.5', 4000))
        of_owner.send(b'x')
        of_owner.recv(1)
        os._exit(0)
    to_owner.recv(1)
    stream = socket.create_connection((peer, 7), 20)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect((peer, 7))
    datagrams.send(b'x')
    assert datagrams.recv(1) == b'x'
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    began = time.monotonic()
    for one in (stream, datagrams):
        one.settimeout(10)
        try:
            print(one.recv(1))
        except OSError as error:
            print(errno.errorcode[error.errno])
    # The next socket makes this process the owner.
    echo(3)
    print('again, soon:', time.monotonic() - began < 10)
elif manner == 'options':
    listener = socket.create_server(('192.0.2.5', 4000))

    def options():
        stream = socket.create_connection((peer, 4001), 20)
        info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200)
        print('state', info[0], 'smss', struct.unpack_from('I', info, 16)[0] > 500)
        for level, name, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33),
            (socket.IPPROTO_IP, socket.IP_TTL, 17),
            (socket.IPPROTO_IP, socket.IP_TOS, 0x28),
        ):
            stream.setsockopt(level, name, value)
            print(stream.getsockopt(level, name))
        stream.sendall(b'the end')
        assert stream.recv(1) == b'!'
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        stream.close()
    print(child(options))
elif manner == 'udp':
    # The parent's socket in a child, the child's own, and one that is passed on.
    inherited = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inherited.bind(('192.0.2.5', 5000))

    def exchange(datagrams, connect):
        datagrams.settimeout(10)
        if connect:
            datagrams.connect((peer, 7))
            assert datagrams.getpeername() == (peer, 7)
        for size in (0, 1, 1472, 9000, 65507):
            sent = bytes((size + at * 11) & 255 for at in range(size))
            if connect:
                datagrams.send(sent)
            else:
                datagrams.sendto(sent, (peer, 7))
            assert select.select([datagrams], [], [], 10)[0] and select.select([], [datagrams], [], 10)[1]
            got, sender = datagrams.recvfrom(70000)
            assert got == sent and sender == (peer, 7), (size, len(got), sender)
        try:
            datagrams.sendto(bytes(65508), (peer, 7))
        except OSError as error:
            assert error.errno == errno.EMSGSIZE

    def own():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            exchange(datagrams, False)
            assert datagrams.getsockname()[1] > 1023
            exchange(datagrams, True)
            assert datagrams.getsockname()[0] == '192.0.2.5'
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            closed.settimeout(10)
            closed.connect((peer, 4))
            closed.send(b'x')
            try:
                closed.recv(1)
            except ConnectionRefusedError:
                print('refused')
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            try:
                taken.bind(('192.0.2.5', 5000))
            except OSError as error:
                print(errno.errorcode[error.errno])
    print(child(lambda: exchange(inherited, False)))
    exchange(inherited, False)
    print(child(own))
    here, there = socket.socketpair()
    if os.fork() == 0:
        inherited.close()
        _, fds, _, _ = socket.recv_fds(there, 1, 1)
        exchange(socket.socket(fileno=fds[0]), True)
        os._exit(0)
    passed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    passed.bind(('192.0.2.5', 5002))
    socket.send_fds(here, [b'x'], [passed.fileno()])
    passed.close()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
elif manner == 'hostile':
    # A process that knows the way sends what it likes.
    listener = socket.create_server(('192.0.2.5', 4000))
    text = os.environ['WEIR_EXEC_PASS']
    name, secret = b'\0weir-door' + bytes.fromhex(text[:32]), bytes.fromhex(text[32:])

    def enter(secret):
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.settimeout(10)
        door.connect(name)
        door.send(secret)
        return door

    def end(door):
        """Whether the owner has closed the connection."""
        try:
            return door.recv(100) == b''
        except (ConnectionResetError, BrokenPipeError):
            return True

    def sends():
        print('wrong', end(enter(bytes(16))), end(enter(secret[:15])))
        key, address = bytes(16), bytes(10) + b'\xff\xff\xc0\0\2\1' + b'\0\7' + bytes(4)
        for garbage in (
            b'\0', b'\xff' * 100, bytes(30000), b'\4', b'\4\4\1\0' + bytes(8) + address + b'x',
            b'\1\4\1\xff' + address, b'\1\5\1\0' + address, b'\3\4\1\1' + bytes(8) + b'\xff\xff' + bytes(12),
        ):
            door = enter(secret)
            assert door.recv(100) == bytes(4), 'no welcome'
            try:
                door.send(garbage)
            except OSError:
                pass
            assert end(door), garbage
        with enter(secret) as door:
            door.recv(100)
            for request in (b'\7' + key, b'\x09' + key + bytes(10), b'\6' + key + address, b'\2' + bytes(8)):
                door.send(request)
                print(struct.unpack('i', door.recv(100)[:4])[0])
            # A child that does not read its answers is let go.
            door.setblocking(False)
            end_at = time.monotonic() + 10
            while time.monotonic() < end_at:
                try:
                    door.send(b'\7' + key)
                except BlockingIOError:
                    time.sleep(0.001)
                except (BrokenPipeError, ConnectionResetError):
                    print('it is closed')
                    break
        # More strangers than there is room for: the oldest go.
        strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
        for stranger in strangers:
            stranger.settimeout(10)
            stranger.connect(name)
        print('the oldest', end(strangers[0]))
        echo(5)
        # Addresses are taken up to a limit.
        with enter(secret) as door:
            door.recv(100)
            bind = b'\1\4\1\0' + bytes(10) + b'\xff\xff\xc0\0\2\5' + bytes(6)
            for number in range(1100):
                door.send(bind)
                if error := struct.unpack_from('i', door.recv(100))[0]:
                    print(errno.errorcode[error], number)
                    break
    before = at_rest()
    print(child(sends))
    print('left:', settles(before))
    with open(sys.argv[3] + '.new', 'w') as file:
        file.write(text)
    os.rename(sys.argv[3] + '.new', sys.argv[3])
    while os.path.exists(sys.argv[3]):
        time.sleep(0.02)
    print(child(lambda: echo(6)))
elif manner == 'waits':
    # The parent waits without a limit when the child's first use moves the socket.
    ways = (
        lambda datagrams: datagrams.recv(10),
        lambda datagrams: select.select([datagrams], [], []) and datagrams.recv(10),
    )
    for port, way in enumerate(ways, 5000):
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(('192.0.2.5', port))
        if os.fork() == 0:
            time.sleep(0.3)
            datagrams.sendto(b'echo', (peer, 7))
            os._exit(0)
        print(way(datagrams))
        os.wait()
else:
    sys.exit('no such manner')
