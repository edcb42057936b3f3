# Parent and child use one connection in turns, and both get what follows what the other had.
import os, select, socket, sys, threading, time

stream = socket.create_connection((sys.argv[1], 7), 10)
stream.settimeout(10)
stream.sendall(b'0123456789' * 3)
time.sleep(0.3)
print(stream.recv(5))
epoll = select.epoll()
epoll.register(stream, select.EPOLLIN)
assert epoll.poll(10) == [(stream.fileno(), select.EPOLLIN)]
to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.read(to_child[0], 1)
    print(stream.recv(5), flush=True)
    os.write(to_parent[1], b'x')
    os.read(to_child[0], 1)
    print(stream.recv(5), flush=True)
    stream.sendall(b'child')
    stream.close()
    os._exit(0)
os.write(to_child[1], b'x')
os.read(to_parent[0], 1)
# The parent's places in sets are those of before.
assert epoll.poll(10) == [(stream.fileno(), select.EPOLLIN)]
print(stream.recv(5), flush=True)
os.write(to_child[1], b'x')
os.waitpid(child, 0)
got = b''
while len(got) < 15:
    got += stream.recv(100)
print(got)
assert epoll.poll(0.1) == []
# A thread that waits while the child takes the connection gets the answer.
stream.setblocking(True)
second = socket.create_connection((sys.argv[1], 7), 10)
second.settimeout(None)
answers = []
thread = threading.Thread(target=lambda: answers.append(second.recv(100)))
thread.start()
time.sleep(0.2)
child = os.fork()
if child == 0:
    second.send(b'by the child')
    os._exit(0)
os.waitpid(child, 0)
thread.join(10)
print(answers)
second.shutdown(socket.SHUT_WR)
print(second.recv(100), stream.getpeername() == (sys.argv[1], 7))
