"""As root, in namespaces of its own: ports, waits, sending, scapy."""

import asyncio
import faulthandler
import itertools
import os
import signal
import threading
import time
import unittest

import net

import weir

BED = None


def setUpModule():
    global BED
    BED = net.Net()


def tearDownModule():
    BED.close()


class Ports(unittest.TestCase):
    def setUp(self):
        self.sink = BED.sink(53)
        self.addCleanup(self.sink.close)

    def test_frames_come_in_order_with_time_and_direction(self):
        with weir.Port(net.LINK, "udp dst port 53") as port:
            BED.send(54, 5)
            BED.send(53, 1000)
            numbers, batches = [], 0
            while len(numbers) < 1000:
                batch = port.recv_batch(timeout=20)
                self.assertGreater(len(batch), 0, "frames are missing")
                batches += 1
                numbers += [int.from_bytes(view[42:46], "big") for view in batch]
                self.assertFalse(any(batch.outgoing))
                self.assertTrue(all(abs(at / 1e9 - time.time()) < 60 for at in batch.times_ns))
                self.assertEqual(batch.lengths, [len(view) for view in batch])
            self.assertEqual(numbers, list(range(1000)))
            self.assertLess(batches, 1000)
            self.assertEqual(len(port.recv_batch(timeout=0)), 0)
            self.assertEqual(port.stats()[:2], (1000, 0))

    def test_iteration_gives_frames(self):
        with weir.Port(net.LINK, "udp dst port 53") as port:
            BED.send(53, 3)
            frames = list(itertools.islice(port, 3))
        self.assertEqual([frame[42:46] for frame in frames], [n.to_bytes(4, "big") for n in range(3)])
        self.assertEqual(frames[0].direction, "in")
        self.assertEqual(list(port), [])

    def test_two_ports_have_a_copy_each_and_filters_change(self):
        with weir.Port(net.LINK, "udp") as all, weir.Port(net.LINK, "udp dst port 54") as few:
            BED.send(53, 10)
            self.assertEqual(received(all, 10), 10)
            few.set_filter("udp dst port 53")
            BED.send(53, 10)
            self.assertEqual(received(few, 10), 10)
            with self.assertRaises(weir.FilterError):
                few.set_filter("udp prot")
            self.assertEqual(few.filter, "udp dst port 53")

    def test_an_event_loop_waits_for_frames(self):
        async def numbers(port):
            found = []
            async for frame in port:
                found.append(int.from_bytes(frame[42:46], "big"))
                if len(found) == 200:
                    return found

        async def both():
            with weir.Port(net.LINK, "udp dst port 53") as port:
                task = asyncio.create_task(numbers(port))
                # Other tasks run meanwhile.
                await asyncio.sleep(0.05)
                await asyncio.to_thread(BED.send, 53, 200)
                return await asyncio.wait_for(task, 20)

        self.assertEqual(asyncio.run(both()), list(range(200)))

    def test_a_wait_ends_by_time_by_a_signal_and_by_closing(self):
        port = weir.Port(net.LINK, "udp dst port 1")
        began = time.monotonic()
        self.assertIsNone(port.recv(timeout=0.1))
        self.assertLess(time.monotonic() - began, 10)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            port.recv(timeout=20)
        timer = threading.Timer(0.2, port.close)
        timer.start()
        with self.assertRaisesRegex(ValueError, "closed"):
            port.recv(timeout=20)

    def test_members_of_a_fan_out_share_the_flows(self):
        for first, second in (("workers", "workers"), ("0/2", "1/2")):
            open = lambda fanout: weir.Port(net.LINK, "udp dst port 53", fanout=fanout)
            with open(first) as one, open(second) as other:
                for _ in range(30):
                    BED.send(53, 4)
                flows = [{}, {}]
                for port, found in zip((one, other), flows):
                    while len(batch := port.recv_batch(timeout=0.2)):
                        for view in batch:
                            source = bytes(view[34:36])
                            found[source] = found.get(source, 0) + 1
            self.assertEqual(sum(map(len, flows)), 30)
            self.assertFalse(flows[0].keys() & flows[1].keys())
            self.assertTrue(all(count == 4 for found in flows for count in found.values()))
            self.assertTrue(all(flows), "30 flows are at one member, of two")

    def test_what_is_sent_arrives(self):
        frame = bytes.fromhex("ffffffffffff020000000001") + b"\x88\xb5" + bytes(46)
        # The peer answers nothing to it; our own port sees it leave.
        with weir.Port(net.LINK, "ether proto 0x88b5", send=True) as port:
            port.send(frame)
            self.assertEqual(port.send_batch([frame, bytearray(frame)]), 2)
            seen = []
            while len(seen) < 3:
                batch = port.recv_batch(timeout=20)
                self.assertGreater(len(batch), 0)
                seen += batch.frames()
        self.assertEqual([bytes(one) for one in seen], [frame] * 3)
        self.assertTrue(all(one.direction == "out" for one in seen))

    def test_an_interface_that_goes_ends_a_wait(self):
        net.ip("link", "add", "gone0", "type", "veth", "peer", "name", "gone1")
        net.ip("link", "set", "gone0", "up")
        with weir.Port("gone0", "udp dst port 1") as port:
            timer = threading.Timer(0.2, net.ip, ("link", "del", "gone0"))
            timer.start()
            began = time.monotonic()
            with self.assertRaisesRegex(weir.Error, "gone0"):
                while time.monotonic() - began < 20:
                    port.recv(timeout=20)
            timer.join()

    def test_an_ordinary_user_gets_what_the_policy_grants(self):
        with net.broker('users = [65534]\ninterfaces = ["weir0"]\nfilter = "udp dst port 53"\n') as socket:

            def frames(ready):
                with weir.Port(net.LINK, "udp", socket=socket) as port:
                    ready()
                    return f"{received(port, 3)} {len(port.recv_batch(timeout=0.1))}"

            def send():
                BED.send(54, 3)
                BED.send(53, 3)

            def taken(_):
                return str(weir.Port(net.LINK, "udp", take=True, socket=socket))

            self.assertEqual(net.as_nobody(frames, send), "3 0")
            self.assertRegex(net.as_nobody(taken), "^PermissionDenied: .*taking")

    def test_what_is_wrong_is_named(self):
        with self.assertRaisesRegex(weir.Error, "none0"):
            weir.Port("none0")
        with self.assertRaises(weir.FilterError):
            weir.Port(net.LINK, "udp prot")
        with self.assertRaisesRegex(ValueError, "queue=many"):
            weir.Port(net.LINK, queue="many")
        with self.assertRaisesRegex(ValueError, "`4/4` is no share"):
            weir.Port(net.LINK, fanout="4/4")


def received(port, count):
    found = 0
    while found < count:
        batch = port.recv_batch(timeout=20)
        if not len(batch):
            break
        found += len(batch)
    return found


class Scapy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import scapy.all
        import weir.scapy
        from scapy.config import conf

        conf.verb = 0
        conf.ifaces.reload()
        conf.route.resync()
        conf.iface = net.LINK
        weir.scapy.install()

    def test_a_thousand_of_a_thousand_echoes_are_answered(self):
        from scapy.layers.inet import ICMP, IP
        from scapy.sendrecv import sr

        answered, missing = sr(IP(dst=net.PEER) / ICMP(seq=(1, 1000)), timeout=20)
        self.assertEqual((len(answered), len(missing)), (1000, 0))

    def test_sniff_and_async_sniffer(self):
        from scapy.sendrecv import AsyncSniffer, sniff

        sniffer = AsyncSniffer(filter="udp dst port 53", count=20)
        started = threading.Event()
        sniffer.kwargs["started_callback"] = started.set
        sniffer.start()
        self.assertTrue(started.wait(20))
        BED.send(53, 20)
        sniffer.join(timeout=20)
        self.assertEqual(len(sniffer.results), 20)
        self.assertEqual(len(sniff(filter="udp dst port 9", timeout=0.2)), 0)

    def test_srp_asks_the_link(self):
        from scapy.layers.l2 import ARP, Ether
        from scapy.sendrecv import srp

        asked = Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst=net.PEER)
        answered, _ = srp(asked, timeout=20)
        self.assertEqual(answered[0][1].psrc, net.PEER)


if __name__ == "__main__":
    net.enter_namespace()
    # No test waits for ever.
    faulthandler.dump_traceback_later(300, exit=True)
    unittest.main()
