"""Capture files, with what is easier to say in Python."""

import os
from types import TracebackType
from typing import Iterator, Optional, Type, Union

from . import _weir
from ._frame import Frame

_Path = Union[str, "os.PathLike[str]"]


class CaptureReader(_weir.CaptureReader):
    """The frames of a capture file: pcap or pcapng, also compressed by gzip or zstd; ``-`` is
    standard input. With a filter, only those that it accepts.

    The frames before a damaged record come first; then :class:`CaptureError` says where it is.
    """

    def __new__(cls, path: _Path, filter: Optional[str] = None) -> "CaptureReader":
        reader = super().__new__(cls, path, filter)
        # A pipe's frames are given as they come.
        reader._max = 256 if os.path.isfile(path) else 1
        return reader

    _max: int

    def __iter__(self) -> Iterator[Frame]:
        while True:
            batch = self.read_batch(self._max)
            if not len(batch):
                return
            yield from batch.frames()

    def __enter__(self) -> "CaptureReader":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class CaptureWriter(_weir.CaptureWriter):
    """Writes a capture file: pcap if the name ends so or ``format="pcap"``, else pcapng. An existing
    file is replaced.

    The file is whole after :meth:`close`, which a ``with`` statement calls.
    """

    def __enter__(self) -> "CaptureWriter":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
