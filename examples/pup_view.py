"""Pup (Boggs, Shoch, Taft and Metcalfe, 1980) for `weir top --view examples/pup_view.py`."""

import struct

name = "Pup"
# Which frames: a pcap filter. The payload is what follows the headers of link, IP, UDP and TCP.
match = "ether[12:2] = 0x0200 or ether proto 0x0a00"

TYPES = {1: "EchoMe", 2: "ImAnEcho", 4: "Error", 8: "RFC", 9: "Abort", 10: "End", 11: "EndReply",
         16: "Data", 17: "AData", 18: "Ack"}


def port(payload, at):
    net, host, socket = struct.unpack_from("!BBI", payload, at)
    return f"{net:o}#{host:o}#{socket:o}"


def view(payload):
    length, control, kind, identifier = struct.unpack_from("!HBBI", payload)
    if length < 22:
        return None  # not Pup: the next view is asked
    what = TYPES.get(kind, f"type {kind}")
    to, source = port(payload, 8), port(payload, 14)
    return f"{source} > {to} {what}", [
        # Name and value, and the bytes that they stand for.
        ("Length", length, 0, 2),
        ("Transport control", control, 2, 3, [("Hops", control >> 4, 2, 3)]),
        ("Type", f"{what} ({kind})", 3, 4),
        ("Identifier", identifier, 4, 8),
        ("Destination", to, 8, 14),
        ("Source", source, 14, 20),
        ("Contents", f"{length - 22} bytes", 20, length - 2),
        ("Checksum", payload[length - 2:length].hex() or "cut", length - 2, length),
    ]
