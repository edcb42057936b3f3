"""Processor time of a received frame: recv_batch beside scapy's native socket.

    python tests/bench.py          # as root, in namespaces of its own

The peer sends bursts that fit both queues; only the time in which a burst is taken counts.
"""

import time

import net

import weir

BURST, ROUNDS = 200, 20


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
    with weir.Port(net.LINK, "udp dst port 53") as port:

        def take():
            count = 0
            while count < BURST:
                batch = port.recv_batch(timeout=20)
                assert len(batch), "frames are missing"
                count += sum(1 for view in batch if len(view) > 42)

        return measured(take)


def by_scapy():
    from scapy.arch.linux import L2ListenSocket
    from scapy.config import conf

    conf.ifaces.reload()
    # Room for a burst, which its 64 KiB are not.
    conf.bufsize = 1 << 20
    native = L2ListenSocket(iface=net.LINK, filter="udp dst port 53")

    def take():
        count = 0
        while count < BURST:
            _, data, _ = native.recv_raw()
            count += data is not None and len(data) > 42

    try:
        return measured(take)
    finally:
        native.close()


if __name__ == "__main__":
    net.enter_namespace()
    BED = net.Net()
    sink = BED.sink(53)
    ours, theirs = by_batches(), by_scapy()
    BED.close()
    print(f"recv_batch {ours:.0f} ns a frame, scapy's native socket {theirs:.0f}: {theirs / ours:.1f}")
