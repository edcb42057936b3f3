"""Capture files, with what is easier to say in Python."""

import os
from typing import Iterator, Optional, Union

from . import _weir
from ._closing import Closing
from ._frame import Frame

_Path = Union[str, "os.PathLike[str]"]


class CaptureReader(_weir.CaptureReader, Closing):
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


class CaptureWriter(_weir.CaptureWriter, Closing):
    """Writes a capture file: pcap if the name ends so or ``format="pcap"``, else pcapng. An existing
    file is replaced.

    The file is whole after :meth:`close`, which a ``with`` statement calls.
    """
