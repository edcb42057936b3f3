"""The native half: see the package's page of the manual."""

import os
from typing import Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union, final

from ._frame import Frame

_Path = Union[str, "os.PathLike[str]"]
# Any object with a buffer of bytes.
_Bytes = Union[bytes, bytearray, memoryview]
_P = TypeVar("_P", bound="Port")
_R = TypeVar("_R", bound="CaptureReader")
_W = TypeVar("_W", bound="CaptureWriter")
_L = TypeVar("_L", bound="Plan")

BATCH_MAX: int
"""Frames of a batch, at most."""

@final
class Batch:
    """A sequence of memoryviews, all of :attr:`data`: one copy, out of the port's ring."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    @property
    def views(self) -> List[memoryview]: ...
    @property
    def data(self) -> bytes:
        """The captured bytes of all frames, one behind the other."""
    @property
    def offsets(self) -> List[int]:
        """Where each frame begins in :attr:`data`, and at last where it ends."""
    @property
    def times_ns(self) -> List[Optional[int]]: ...
    @property
    def lengths(self) -> List[int]:
        """Lengths on the wire."""
    @property
    def outgoing(self) -> List[bool]: ...
    @property
    def lost_before(self) -> List[int]: ...
    @property
    def linktypes(self) -> List[int]: ...
    def frames(self) -> List[Frame]:
        """The frames as objects; a second copy."""

class Port:
    def __new__(
        cls: Type[_P],
        interface: str,
        filter: Optional[str] = None,
        *,
        language: str = "expr",
        priority: int = 0,
        take: bool = False,
        queue: Union[int, str, None] = None,
        snaplen: Optional[int] = None,
        timestamps: bool = True,
        send: bool = False,
        latency: bool = False,
        fanout: Optional[str] = None,
        socket: Optional[_Path] = None,
    ) -> _P: ...
    @property
    def interface(self) -> str: ...
    @property
    def number(self) -> int:
        """The port's number, as ``weir ports`` shows it."""
    @property
    def attached(self) -> str:
        """The hook at which frames are divided."""
    @property
    def linktype(self) -> int: ...
    @property
    def filter(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def set_filter(self, text: str, *, language: str = "expr") -> None:
        """Replaces the filter; the old one stays if the new one is refused."""
    def recv_batch(self, max: int = 256, timeout: Optional[float] = None) -> Batch:
        """The frames that are there, at most 256; waits for the first for ``timeout`` seconds, or
        without end. Empty if the time is over."""
    def recv(self, timeout: Optional[float] = None) -> Optional[Frame]:
        """The next frame; ``None`` if the time is over."""
    def send(self, frame: _Bytes) -> None:
        """Sends a whole frame. For a user other than root, the policy decides whether it passes:
        ``stats().refused`` counts those that did not."""
    def send_batch(self, frames: Sequence[_Bytes]) -> int:
        """Sends whole frames; returns how many were sent, which are the first ones."""
    def counters(self) -> Tuple[int, int, int, int, int]: ...
    def fileno(self) -> int:
        """A descriptor for ``select`` and event loops, readable when frames are there."""
    def check(self) -> None:
        """Raises an :class:`~weir.Error` if the interface or the right to it is gone."""
    def close(self) -> None: ...

@final
class Filter:
    """A compiled filter."""

    def __new__(cls, text: str, *, linktype: int = 1, language: str = "expr") -> "Filter": ...
    @property
    def text(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def linktype(self) -> int: ...
    def matches(self, frame: _Bytes, length: Optional[int] = None) -> bool:
        """Whether it accepts the frame, of this length on the wire. Bytes are read in place; another
        object is copied first."""
    def run(self, frame: _Bytes, length: Optional[int] = None) -> int:
        """The verdict: 0, or how many bytes of the frame it accepts."""
    def matches_batch(self, batch: Batch) -> List[bool]:
        """For each frame of a batch, without a copy."""

class Plan:
    def __new__(cls: Type[_L], *, linktype: int = 1) -> _L: ...
    @property
    def linktype(self) -> int: ...
    def add(
        self,
        name: str,
        filter: str,
        *,
        priority: int = 0,
        take: bool = False,
        language: str = "expr",
    ) -> None:
        """Adds a filter. Of one that takes, those of lower priority do not see what it accepts."""
    def remove(self, name: str) -> None: ...
    def matches(self, frame: _Bytes, length: Optional[int] = None) -> List[str]:
        """The names of the filters that accept the frame, in order of priority."""
    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...

class CaptureReader:
    def __new__(cls: Type[_R], path: _Path, filter: Optional[str] = None) -> _R: ...
    def read_batch(self, max: int = 256) -> Batch:
        """The next frames; an empty batch at the end of the file."""
    def close(self) -> None: ...

class CaptureWriter:
    def __new__(cls: Type[_W], path: _Path, *, format: Optional[str] = None) -> _W: ...
    def write(
        self,
        frame: _Bytes,
        *,
        time_ns: Optional[int] = None,
        length: Optional[int] = None,
        linktype: Optional[int] = None,
        interface: Optional[str] = None,
    ) -> None:
        """Writes a frame. What is not given is taken from a :class:`~weir.Frame`."""
    def write_batch(self, batch: Batch) -> None: ...
    def flush(self) -> None: ...
    @property
    def frames(self) -> int:
        """Frames that were written."""
    def close(self) -> None: ...
