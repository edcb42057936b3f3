"""User-level networking for Linux: ports on live links, filters, plans and capture files.

    import weir

    for frame in weir.Port("eth0", "icmp"):
        print(frame.time, frame.length, frame[:14].hex())

A port is opened through the broker (``weir broker``), by any user whom its policy grants it; without a
broker, root opens it in its own process. ``weir.scapy`` has sockets for scapy.
"""

from ._errors import CaptureError, Error, FilterError, NoBroker, PermissionDenied
from ._frame import Frame
from ._port import Port, Stats
from ._files import CaptureReader, CaptureWriter
from ._plan import Plan
from ._weir import BATCH_MAX, Batch, Filter

__all__ = [
    "BATCH_MAX",
    "Batch",
    "CaptureError",
    "CaptureReader",
    "CaptureWriter",
    "Error",
    "Filter",
    "FilterError",
    "Frame",
    "NoBroker",
    "PermissionDenied",
    "Plan",
    "Port",
    "Stats",
]
