# Servers whose peers, or other processes, take more than their part.
import os, select, signal, socket, sys, time

manner, folder = sys.argv[1], sys.argv[2]


def say(name, text=''):
    """Makes a file with this text, all at once."""
    with open(f'{folder}/{name}.new', 'w') as file:
        file.write(text)
    os.rename(f'{folder}/{name}.new', f'{folder}/{name}')


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
        while not os.path.exists(f'{folder}/go'):
            time.sleep(0.02)
        for _ in range(40):
            connection, _ = listener.accept()
            connection.sendall(connection.recv(3)[::-1])
            connection.close()
        os._exit(0)
    while not os.path.exists(f'{folder}/count'):
        time.sleep(0.02)
    say('taken', str(len(os.listdir('/proc/self/fd')) - before))
    os.waitpid(child, 0)
    say('done')
    signal.pause()
