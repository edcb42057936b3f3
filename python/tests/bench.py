"""Processor time of a received frame: recv_batch beside scapy's native socket.

    python tests/bench.py          # as root, in namespaces of its own

The peer sends bursts of the same frames to all, which fit all queues, and are long enough that what is
cold at their beginning does not count. Only the time in which a burst is taken is measured, and the
least of all rounds taken. Each contestant takes every frame as an object, and looks
at its length:

- `recv_batch`: the memoryviews of a batch;
- `recv_raw` of scapy's native socket: its bytes, not dissected, which is the least that it does;
- `recv` of the same socket, as programs and `sniff` call it: a packet, and its bytes.

`recv_batch : recv_raw` is to be at least 10.
"""

import socket
import time

import net

import weir

BURST, ROUNDS = 4000, 10
# Room for a burst.
QUEUE = 8 << 20
# Of asm-generic/socket.h: root may exceed net.core.rmem_max.
SO_RCVBUFFORCE = 33
REQUIRED = 10


def measured(take):
    """Nanoseconds of this process for each frame; `take` takes a burst."""
    spent = []
    for _ in range(ROUNDS):
        BED.send(53, BURST)
        began = time.process_time_ns()
        take()
        spent.append((time.process_time_ns() - began) / BURST)
    return min(spent)


def by_batches():
    with weir.Port(net.LINK, "udp dst port 53", queue=QUEUE) as port:

        def take():
            count = 0
            while count < BURST:
                batch = port.recv_batch(timeout=20)
                assert len(batch), "frames are missing"
                for view in batch:
                    if len(view) > 42:
                        count += 1

        return measured(take)


def by_scapy(receive):
    import scapy.all  # noqa: F401 (the layers that recv dissects)
    from scapy.arch.linux import L2ListenSocket
    from scapy.config import conf

    conf.ifaces.reload()
    native = L2ListenSocket(iface=net.LINK, filter="udp dst port 53")
    native.ins.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, QUEUE)

    def take():
        count = 0
        while count < BURST:
            frame = receive(native)
            if frame is not None and len(frame) > 42:
                count += 1

    try:
        return measured(take)
    finally:
        native.close()


if __name__ == "__main__":
    net.enter_namespace()
    BED = net.Net()
    sink = BED.sink(53)
    ours = by_batches()
    least = by_scapy(lambda native: native.recv_raw()[1])
    usual = by_scapy(lambda native: native.recv().original)
    BED.close()
    print(f"recv_batch {ours:.0f} ns a frame; scapy's recv_raw {least:.0f}, its recv {usual:.0f}")
    print(f"recv_batch : recv_raw {least / ours:.1f}, at least {REQUIRED} required")
    print(f"recv_batch : recv {usual / ours:.1f}")
