"""A frame as an object."""

from typing import Optional


class Frame(bytes):
    """The captured bytes of a frame, and what is known of it.

    It is ``bytes``: it can be sliced, compared, sent and given to any parser. A slice is plain bytes.
    """

    time_ns: Optional[int]
    """Receive time in nanoseconds since 1970; ``None`` if there is none."""
    length: int
    """Length on the wire, which is more than ``len(frame)`` if the frame was cut."""
    outgoing: bool
    """Whether this host sent the frame."""
    lost_before: int
    """Frames that the port lost between the previous frame and this one."""
    linktype: int
    """The ``LINKTYPE_`` number: 1 for Ethernet."""
    interface: Optional[str]
    """The name of the interface, if it is known."""

    def __new__(
        cls,
        data: bytes = b"",
        time_ns: Optional[int] = None,
        length: Optional[int] = None,
        outgoing: bool = False,
        lost_before: int = 0,
        linktype: int = 1,
        interface: Optional[str] = None,
    ) -> "Frame":
        frame = super().__new__(cls, data)
        frame.time_ns = time_ns
        frame.length = len(frame) if length is None else length
        frame.outgoing = outgoing
        frame.lost_before = lost_before
        frame.linktype = linktype
        frame.interface = interface
        return frame

    def __getnewargs__(self):  # type: ignore[no-untyped-def]
        return (
            bytes(self), self.time_ns, self.length, self.outgoing, self.lost_before, self.linktype,
            self.interface,
        )

    @property
    def time(self) -> Optional[float]:
        """Receive time in seconds since 1970; ``None`` if there is none."""
        return None if self.time_ns is None else self.time_ns / 1e9

    @property
    def direction(self) -> str:
        """``"out"`` if this host sent the frame, else ``"in"``."""
        return "out" if self.outgoing else "in"

    def __repr__(self) -> str:
        shown = self[:16].hex(" ") + (" …" if len(self) > 16 else "")
        return f"<weir.Frame of {self.length} bytes, {self.direction}: {shown}>"
