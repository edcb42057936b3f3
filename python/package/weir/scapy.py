"""scapy on weir's ports: without root, by a broker's grant, each socket with a queue of its own.

    import weir.scapy
    weir.scapy.install()          # or conf.use_weir()

Then ``sniff``, ``AsyncSniffer``, ``sr``, ``srp``, ``send`` and all that is built on them use ports. The
filter of a socket becomes part of the kernel's plan. A port sees what its interface receives: ``promisc``
does not make the interface promiscuous.
"""

import functools
import select
import time
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

from scapy.compat import raw
from scapy.config import conf
from scapy.data import ETH_P_ALL, MTU
from scapy.interfaces import network_name
from scapy.packet import Packet
from scapy.plist import PacketList
from scapy.supersocket import SuperSocket

from . import Error
from ._files import CaptureReader
from ._port import Port

__all__ = ["L2listen", "L2socket", "L3socket", "install", "packets", "rdpcap", "uninstall"]

# Linux' loopback interface has each frame twice: as it goes, and as it comes.
_LOOPBACK = "lo"
# How often a wait looks whether an interface is still there.
_CHECK_SECONDS = 0.5

_options: Dict[str, Any] = {"queue": "8 MiB", "socket": None}
_before: Dict[str, Any] = {}


def _note_sent(x: Any) -> None:
    try:
        x.sent_time = time.time()
    except AttributeError:
        # Bytes have no such attribute.
        pass


def _filter_text(filter: Optional[str], type: int, nofilter: Any) -> Optional[str]:
    parts = []
    if type != ETH_P_ALL:
        parts.append(f"ether proto {type:#x}")
    if filter and not nofilter:
        parts.append(f"({filter})")
    if conf.except_filter and not nofilter:
        parts.append(f"not ({conf.except_filter})")
    return " and ".join(parts) or None


class _Socket(SuperSocket):
    """A port as scapy's socket."""

    keeps_outgoing = False

    def __init__(
        self,
        iface: Any = None,
        type: int = ETH_P_ALL,
        promisc: Optional[bool] = None,
        filter: Optional[str] = None,
        nofilter: Any = 0,
        monitor: Any = None,
        **options: Any,
    ) -> None:
        # First, since scapy's destructor closes what has not been opened, too.
        self.closed = True
        if monitor:
            raise Error("monitor mode: a port has none")
        self.iface = network_name(iface or conf.iface)
        self.promisc = promisc
        self._given = (type, filter, nofilter, options)
        settings = {**_options, **options}
        self.port = Port(self.iface, _filter_text(filter, type, nofilter), **settings)
        self.ins = self.outs = self.port
        self.closed = False
        self.LL = conf.l2types.num2layer.get(self.port.linktype, conf.default_l2)
        self._frames: Deque[Tuple[memoryview, Optional[int]]] = deque()
        self._error: Optional[Error] = None

    def _fill(self, timeout: Optional[float]) -> bool:
        """Whether frames are there."""
        if not self._frames and self._error is None:
            try:
                batch = self.port.recv_batch(timeout=timeout)
                if not len(batch):
                    self.port.check()
            except Error as error:
                self._error = error
                return True
            drops = not self.keeps_outgoing or self.iface == _LOOPBACK
            for view, time_ns, outgoing in zip(batch, batch.times_ns, batch.outgoing):
                if not (drops and outgoing):
                    self._frames.append((view, time_ns))
        return bool(self._frames) or self._error is not None

    def recv_raw(self, x: int = MTU) -> Tuple[Any, Optional[bytes], Optional[float]]:
        while not self._fill(None):
            pass
        if not self._frames and self._error is not None:
            raise self._error
        view, time_ns = self._frames.popleft()
        return self.LL, bytes(view[:x]), None if time_ns is None else time_ns / 1e9

    def send(self, x: Any) -> int:
        frame = raw(x)
        _note_sent(x)
        self.port.send(frame)
        return len(frame)

    def fileno(self) -> int:
        return -1 if self.closed else self.port.fileno()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.port.close()

    def _all(self) -> "List[_Socket]":
        return [self]

    @staticmethod
    def select(sockets: List[Any], remain: Optional[float] = conf.recv_poll_rate) -> List[Any]:
        """The sockets that have frames, after at most ``remain`` seconds."""
        ports = [one for given in sockets if isinstance(given, _Socket) for one in given._all()]
        others = [one for one in sockets if not isinstance(one, _Socket)]
        deadline = None if remain is None else time.monotonic() + remain
        while True:
            ready = [one for one in ports if one._fill(0)]
            left = 0.0 if ready else _CHECK_SECONDS
            if deadline is not None:
                left = max(0.0, min(left, deadline - time.monotonic()))
            waits = others if ready else others + ports
            found = select.select(waits, [], [], left)[0]
            ready += [one for one in found if not isinstance(one, _Socket)]
            if ready or (deadline is not None and time.monotonic() >= deadline):
                return ready


class L2listen(_Socket):
    """What is received and what this host sends, from the link layer on; does not send."""

    desc = "read frames of a link from a weir port"
    keeps_outgoing = True

    def send(self, x: Any) -> int:
        raise Error("L2listen: only L2socket and L3socket send")


class L2socket(_Socket):
    """Receives and sends frames, from the link layer on."""

    desc = "read and write frames of a link by a weir port"


class L3socket(_Socket):
    """Receives and sends packets, from the network layer on. A packet is sent on the interface of its
    route, whose answers are received, too."""

    desc = "read and write packets by weir ports"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._by_name: Dict[str, "L3socket"] = {self.iface: self}

    def recv(self, x: int = MTU, **kwargs: Any) -> Optional[Packet]:
        frame = super().recv(x, **kwargs)
        if frame is None or self.port.linktype != 1:
            return frame
        frame.payload.time = frame.time
        return frame.payload

    def send(self, x: Any) -> int:
        name = x.route()[0] or network_name(conf.iface)
        if name not in self._by_name:
            type, filter, nofilter, options = self._given
            self._by_name[name] = L3socket(
                iface=name, type=type, filter=filter, nofilter=nofilter, **options
            )
        socket = self._by_name[name]
        frame = bytes(socket.LL() / x) if socket.port.linktype == 1 else bytes(x)
        _note_sent(x)
        socket.port.send(frame)
        return len(frame)

    def _all(self) -> List[_Socket]:
        return list(self._by_name.values())

    def close(self) -> None:
        for socket in getattr(self, "_by_name", {}).values():
            _Socket.close(socket)
        super().close()


def install(*, queue: Any = "8 MiB", socket: Any = None) -> None:
    """Makes scapy use ports. ``queue`` is the size of each socket's queue; ``socket`` is the broker's, by
    default as for :class:`weir.Port`."""
    _options.update(queue=queue, socket=socket)
    sockets = {
        "L2socket": L2socket,
        "L2listen": L2listen,
        "L3socket": L3socket,
        "L3socket6": functools.partial(L3socket, filter="ip6"),
    }
    for name, ours in sockets.items():
        _before.setdefault(name, getattr(conf, name))
        setattr(conf, name, ours)


def uninstall() -> None:
    """Makes scapy use the sockets that it had before :func:`install`."""
    while _before:
        name, before = _before.popitem()
        setattr(conf, name, before)


def packets(path: str, filter: Optional[str] = None) -> Iterator[Packet]:
    """The packets of a capture file of any form that weir reads, without tcpdump for the filter."""
    with CaptureReader(path, filter) as reader:
        for frame in reader:
            layer = conf.l2types.num2layer.get(frame.linktype, conf.raw_layer)
            try:
                packet = layer(bytes(frame))
            except Exception:  # As scapy's own sockets do with what they cannot dissect.
                if conf.debug_dissector:
                    raise
                packet = conf.raw_layer(bytes(frame))
            if frame.time is not None:
                packet.time = frame.time
            packet.wirelen = frame.length
            yield packet


def rdpcap(path: str, filter: Optional[str] = None, count: int = -1) -> PacketList:
    """As scapy's, with a filter; also for ``sniff(offline=…)``."""
    found = []
    for packet in packets(path, filter):
        if len(found) == count:
            break
        found.append(packet)
    return PacketList(found, name=path)


conf.use_weir = install
