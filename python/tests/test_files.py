"""Without root: filters, plans, capture files, scapy offline."""

import itertools
import os
import pickle
import tempfile
import unittest

import weir

# From port 53 to port 53, of 60 bytes.
UDP = (
    bytes(12) + b"\x08\x00"
    + b"\x45" + bytes(8) + b"\x11" + bytes(10)
    + bytes([0, 53, 0, 53, 0, 8, 0, 0]) + bytes(18)
)


class Filters(unittest.TestCase):
    def test_a_filter_accepts_what_pcap_filter_says(self):
        dns = weir.Filter("udp port 53")
        self.assertTrue(dns.matches(UDP))
        self.assertTrue(dns.matches(bytearray(UDP)))
        self.assertTrue(dns.matches(memoryview(UDP)))
        self.assertFalse(weir.Filter("tcp").matches(UDP))
        self.assertFalse(weir.Filter("greater 100").matches(UDP))
        self.assertTrue(weir.Filter("greater 100").matches(UDP, 100))

    def test_a_wrong_filter_is_shown_with_a_mark(self):
        with self.assertRaises(weir.FilterError) as caught:
            weir.Filter("udp prot 53")
        self.assertIn("udp prot 53", str(caught.exception))
        self.assertIn("^", str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(ValueError, "language"):
            weir.Filter("udp", language="perl")

    def test_a_plan_names_the_filters_that_accept(self):
        plan = weir.Plan({"dns": "udp port 53", "tcp": "tcp"})
        plan.add("all", "")
        self.assertEqual(sorted(plan.matches(UDP)), ["all", "dns"])
        plan.remove("dns")
        self.assertEqual(plan.matches(UDP), ["all"])
        self.assertEqual(len(plan), 2)
        with self.assertRaises(weir.FilterError):
            plan.add("wrong", "udp prot")


class Captures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weir-python-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_a_batch_is_a_sequence_of_views_that_outlive_it(self):
        frames = [UDP + bytes([number]) * number for number in range(5)]
        with weir.CaptureWriter(self.path("a.pcap")) as writer:
            for frame in frames:
                writer.write(frame)
        with weir.CaptureReader(self.path("a.pcap")) as reader:
            batch, rest = reader.read_batch(), reader.read_batch()
        self.assertEqual(list(rest), [])
        views = iter(batch)
        self.assertEqual(list(itertools.islice(views, 2)), frames[:2])
        self.assertEqual(views.__length_hint__(), 3)
        # Another iterator begins anew, and leaves the first where it is.
        self.assertEqual([bytes(view) for view in batch], frames)
        self.assertEqual(list(views), frames[2:])
        self.assertEqual(list(views), [], "at the end it stays there")
        for _ in range(2):
            self.assertEqual([batch[index] for index in range(-5, 5)], frames * 2)
            for index in [-6, 5]:
                with self.assertRaises(IndexError):
                    batch[index]
            # From now on it keeps its views.
            self.assertEqual(batch.views, frames)
        last = list(batch)[4]
        self.assertIs(last.obj, batch.data)
        del batch
        self.assertEqual(last, frames[4])

    def test_what_is_written_is_read(self):
        for name in ["a.pcap", "a.pcapng"]:
            with weir.CaptureWriter(self.path(name)) as writer:
                for number in range(300):
                    frame = weir.Frame(UDP, 1_000_000_000 * number, len(UDP) + 5)
                    writer.write(frame)
            with weir.CaptureReader(self.path(name)) as reader:
                frames = list(reader)
            self.assertEqual(len(frames), 300)
            self.assertEqual(frames[7], UDP)
            self.assertEqual((frames[7].time, frames[7].length), (7.0, len(UDP) + 5))
            filtered = weir.CaptureReader(self.path(name), "tcp")
            self.assertEqual(list(filtered), [])

    def test_a_damaged_file_gives_what_is_whole(self):
        with weir.CaptureWriter(self.path("a.pcap")) as writer:
            for _ in range(3):
                writer.write(weir.Frame(UDP, 0))
        with open(self.path("a.pcap"), "rb") as file:
            whole = file.read()
        with open(self.path("cut.pcap"), "wb") as file:
            file.write(whole[:-5])
        frames = []
        with self.assertRaises(weir.CaptureError):
            for frame in weir.CaptureReader(self.path("cut.pcap")):
                frames.append(frame)
        self.assertEqual(len(frames), 2)
        with self.assertRaisesRegex(weir.CaptureError, "nonexistent"):
            weir.CaptureReader("/nonexistent.pcap")

    def test_a_frame_is_bytes_and_travels(self):
        frame = weir.Frame(UDP, 5, 100, True, 2, 1, "eth0")
        same = pickle.loads(pickle.dumps(frame))
        self.assertEqual((same, same.time_ns, same.length), (frame, 5, 100))
        self.assertEqual((same.direction, same.lost_before), ("out", 2))
        self.assertEqual((same.linktype, same.interface), (1, "eth0"))

    def test_scapy_reads_offline(self):
        import weir.scapy
        from scapy.layers.inet import UDP as Udp
        from scapy.sendrecv import sniff

        with weir.CaptureWriter(self.path("a.pcapng")) as writer:
            for number in range(5):
                writer.write(weir.Frame(UDP, 1_000_000_000 * number))
        found = weir.scapy.rdpcap(self.path("a.pcapng"), "udp port 53")
        self.assertEqual(len(found), 5)
        self.assertEqual((found[3][Udp].dport, float(found[3].time)), (53, 3.0))
        self.assertEqual(len(sniff(offline=found, count=3)), 3)
        self.assertEqual(len(sniff(offline=found, lfilter=lambda packet: Udp not in packet)), 0)


if __name__ == "__main__":
    unittest.main()
