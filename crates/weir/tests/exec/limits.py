# Servers whose peers, or other processes, take more than their part.
import errno, os, resource, select, signal, socket, struct, subprocess, sys, time

manner, folder = sys.argv[1], sys.argv[2]


def say(name, text=''):
    """Makes a file with this text, all at once."""
    with open(f'{folder}/{name}.new', 'w') as file:
        file.write(text)
    os.rename(f'{folder}/{name}.new', f'{folder}/{name}')


def await_file(name):
    while not os.path.exists(f'{folder}/{name}'):
        time.sleep(0.02)


if manner == 'unread':
    # A child writes until nothing is taken any more, and leaves the rest to the owner.
    listener = socket.create_server(('192.0.2.5', 4000))
    connection, _ = listener.accept()
    child = os.fork()
    if child == 0:
        connection.settimeout(0.3)
        count = 0
        try:
            while True:
                part = bytes((count + at) % 251 for at in range(1000))
                count += connection.send(part)
        except TimeoutError:
            say('count', str(count))
        os._exit(0)
    connection.close()
    os.waitpid(child, 0)
    say('left')
    signal.pause()
elif manner == 'backlog':
    # A child that shares the listener does not accept until the file is there.
    listener = socket.create_server(('192.0.2.5', 4000), backlog=8)
    before = len(os.listdir('/proc/self/fd'))
    child = os.fork()
    if child == 0:
        # From now on the listener is relayed.
        select.select([listener], [], [], 0)
        say('ready')
        await_file('go')
        for _ in range(40):
            connection, _ = listener.accept()
            connection.sendall(connection.recv(3)[::-1])
            connection.close()
        os._exit(0)
    await_file('count')
    say('taken', str(len(os.listdir('/proc/self/fd')) - before))
    os.waitpid(child, 0)
    say('done')
    signal.pause()
elif manner == 'inflight':
    # Descriptors of the user on their way in messages, more than a process may have (ETOOMANYREFS).
    def fill():
        pair = socket.socketpair()
        null = os.open('/dev/null', os.O_RDONLY)
        socket.send_fds(pair[0], [b'x'], [null] * 250)
        os.close(null)
        return pair

    first = fill()
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    listener = socket.create_server(('192.0.2.5', 4000))
    child = os.fork()
    if child == 0:
        for end in first:
            end.close()
        try:
            listener.accept()
        except OSError as error:
            say('refused', errno.errorcode[error.errno])
        await_file('drained')
        for _ in range(2):
            connection, _ = listener.accept()
            connection.sendall(connection.recv(3)[::-1])
            connection.close()
        os._exit(0)
    await_file('refused')
    for end in first:
        end.close()
    say('drained')
    await_file('served')
    second = fill()
    say('full')
    await_file('drain')
    for end in second:
        end.close()
    os.waitpid(child, 0)
    say('done')
    signal.pause()
elif manner == 'rights':
    # Descriptors that a process passes on a connection, with the library and without it.
    passes = ("import errno, os, socket, sys\n"
              "stream = socket.socket(fileno=int(sys.argv[1]), family=socket.AF_UNIX)\n"
              "try:\n"
              "    socket.send_fds(stream, [b'x'], [0])\n"
              "    print('passed', flush=True)\n"
              "except OSError as error:\n"
              "    print(errno.errorcode[error.errno], flush=True)\n")
    listener = socket.create_server(('192.0.2.5', 4000))
    connection, _ = listener.accept()
    number = connection.fileno()
    os.set_inheritable(number, True)
    for environment in (None, {}):
        line = [sys.executable, '-c', passes, str(number)]
        subprocess.run(line, env=environment, pass_fds=[number], check=True)
    connection.sendall(b'done')
    try:
        # Linux 6.16 has SO_PASSRIGHTS.
        print(socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 83))
    except OSError as error:
        print(errno.errorcode[error.errno])
elif manner in ('forged', 'forger'):
    # Unix sockets with the name of a relayed connection, which no owner has made.
    path = folder + '/forged.sock'

    def name():
        def at(ip, port):
            return bytes(10) + b'\xff\xff' + socket.inet_aton(ip) + struct.pack('!HI', port, 0)
        return b'\0weir-relay\1\4' + at('192.0.2.5', 22) + at('192.0.2.1', 1) + os.urandom(16)

    def show(fd):
        print(socket.socket(fileno=fd).family.name)

    if manner == 'forger':
        # Another user's process.
        os.setgroups([])
        os.setuid(65533)
        ours, theirs = socket.socketpair()
        ours.bind(name())
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            socket.send_fds(server, [b'x'], [ours.fileno()])
            server.recv(1)
        sys.exit(0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen()
    # A client of one's own server, as which another user can be connected.
    client = socket.socket(socket.AF_UNIX)
    client.bind(name())
    client.connect(path)
    connection, _ = listener.accept()
    here, there = socket.socketpair()
    socket.send_fds(here, [b'x'], [client.fileno()])
    show(socket.recv_fds(there, 1, 1)[1][0])
    say('ready')
    connection, _ = listener.accept()
    show(socket.recv_fds(connection, 1, 1)[1][0])
elif manner == 'door':
    # An owner that passes two descriptors where at most one is expected.
    words = bytes.fromhex(os.environ['WEIR_EXEC_PASS'])
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(b'\0weir-door' + words[:16])
    door.listen()
    say('open')
    guest, _ = door.accept()
    assert guest.recv(100) == words[16:]
    guest.send(struct.pack('i', 0))
    while guest.recv(65536):
        socket.send_fds(guest, [struct.pack('i', errno.EADDRINUSE)], [0, 0])
elif manner == 'twice':
    environment = {'WEIR_EXEC_PASS': os.environ['WEIR_EXEC_PASS']}
    owner = subprocess.Popen([sys.executable, __file__, 'door', folder], env=environment)
    await_file('open')
    sockets = [socket.socket() for _ in range(6)]
    before = 0
    for one in sockets:
        try:
            one.bind(('192.0.2.5', 4000))
        except OSError as error:
            print(errno.errorcode[error.errno])
        before = before or len(os.listdir('/proc/self/fd'))
    print('left:', len(os.listdir('/proc/self/fd')) - before)
    owner.kill()
    owner.wait()
