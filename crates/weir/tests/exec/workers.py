# A server whose processes share sockets, in several manners. Each connection is answered by all that it
# has sent, backwards, after its end; one that begins with `pid` is told the process at once; after
# one that begins with `reset`, a file tells how it ended.
import errno, multiprocessing, os, select, signal, socket, subprocess, sys

manner, at, folder = sys.argv[1:4]


def serve(connection):
    ours, peer = connection.getsockname(), connection.getpeername()
    assert ours[:2] == (at, 4000) and peer[1] > 0, (ours, peer)
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    got = bytearray()
    try:
        while part := connection.recv(65536):
            got += part
            if got == b'pid':
                connection.sendall(str(os.getpid()).encode() + b'\n')
            if got == b'reset':
                connection.sendall(b'!')
        connection.sendall(got[::-1])
        connection.shutdown(socket.SHUT_WR)
        said = 'orderly'
    except OSError as error:
        said = error.__class__.__name__
        # The error is reported once.
        said += ' ' + str(connection.recv(1))
    if got.startswith(b'reset'):
        with open(folder + '/new', 'w') as file:
            file.write(said)
        os.rename(folder + '/new', folder + '/said')
    connection.close()


def ends_with_owner(error):
    # Without its owner a listener has no link.
    if error.errno == errno.ENETDOWN:
        os._exit(0)
    raise error


def accept_and_serve(listener):
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            ends_with_owner(error)
        serve(connection)


family = socket.AF_INET6 if ':' in at else socket.AF_INET
listener = socket.create_server((at, 4000), family=family, backlog=64)
if manner == 'fork':
    # As sshd: a process for each connection.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            serve(connection)
            os._exit(0)
        connection.close()
elif manner == 'prefork':
    # Two processes accept, and are told of connections by epoll and by select.
    for number in range(2):
        if os.fork() == 0:
            listener.setblocking(False)
            epoll = select.epoll()
            epoll.register(listener, select.EPOLLIN)
            while True:
                if number == 0:
                    epoll.poll()
                else:
                    select.select([listener], [], [])
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                except OSError as error:
                    ends_with_owner(error)
                connection.setblocking(True)
                serve(connection)
    os.wait()
elif manner == 'orphans':
    # The parent has no part in the service, and ends.
    for _ in range(2):
        if os.fork() == 0:
            accept_and_serve(listener)
    sys.exit(0)
elif manner == 'subprocess':
    # As inetd: the connection is the standard input and output of another program.
    program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    while True:
        connection, _ = listener.accept()
        with connection:
            subprocess.run([sys.executable, '-c', program], stdin=connection, stdout=connection, check=True)
elif manner == 'spawned':
    # As above, by posix_spawn(3).
    program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    while True:
        connection, _ = listener.accept()
        with connection:
            copies = [(os.POSIX_SPAWN_DUP2, connection.fileno(), number) for number in (0, 1)]
            line = [sys.executable, '-c', program]
            child = os.posix_spawn(sys.executable, line, os.environ, file_actions=copies)
            os.waitpid(child, 0)
elif manner == 'inherited':
    # Another program gets the descriptor by its number, with the library.
    program = ("import socket, sys; exec(open(sys.argv[4]).read().split('family =')[0]);"
               "serve(socket.socket(fileno=int(sys.argv[5])))")
    while True:
        connection, _ = listener.accept()
        with connection:
            number = connection.fileno()
            os.set_inheritable(number, True)
            line = [sys.executable, '-c', program, *sys.argv[1:4], __file__, str(number)]
            subprocess.run(line, pass_fds=[number], check=True)
elif manner == 'multiprocessing':
    context = multiprocessing.get_context('fork')
    workers = [context.Process(target=accept_and_serve, args=(listener,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
elif manner == 'passed':
    # Connections go to a process that is not told of the listener.
    here, there = socket.socketpair()
    if os.fork() == 0:
        listener.close()
        here.close()
        while True:
            _, fds, _, _ = socket.recv_fds(there, 1, 1)
            if not fds:
                os._exit(0)
            serve(socket.socket(fileno=fds[0]))
    while True:
        connection, _ = listener.accept()
        socket.send_fds(here, [b'x'], [connection.fileno()])
        connection.close()
else:
    sys.exit('no such manner')
