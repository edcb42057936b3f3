"""A port, with what is easier to say in Python."""

import asyncio
import os
from typing import AsyncIterator, Iterator, NamedTuple, Optional, Union

from . import _weir
from ._closing import Closing
from ._frame import Frame

# How often an asynchronous wait looks whether the interface is still there.
_CHECK_SECONDS = 0.5


class Stats(NamedTuple):
    """The counters of a port since it was opened."""

    delivered: int
    """Frames put into the queue."""
    lost: int
    """Frames lost because the queue was full."""
    interface_lost: int
    """Frames that the interface dropped, for any receiver."""
    sent: int
    """Frames sent by the path that checks; 0 for root, who sends without it."""
    refused: int
    """Frames that the policy did not let pass."""


class Port(_weir.Port, Closing):
    """A queue of the frames of an interface that a filter accepts.

    ``filter`` is a pcap-filter(7) expression; without it, every frame is accepted. ``queue`` is a
    number of bytes or a text such as ``"4 MiB"``. ``take=True`` keeps frames from the host and from
    ports of lower priority. ``fanout`` is the share of the frames that the port gets, by flow:
    ``"0/4"`` is the first of four equal ones, and a name is a group, whose members share all frames
    (a number as the name is also the most members). ``socket`` is the broker's; by default that of the variable
    ``WEIR_SOCKET``, else the usual one.

    Iterating gives each frame as a :class:`Frame`, without end; ``async for`` as well. A signal such
    as Ctrl-C interrupts every wait, and other threads run meanwhile.
    """

    def __new__(
        cls,
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
        socket: Union[str, "os.PathLike[str]", None] = None,
    ) -> "Port":
        return super().__new__(
            cls, interface, filter, language=language, priority=priority, take=take, queue=queue,
            snaplen=snaplen, timestamps=timestamps, send=send, latency=latency, fanout=fanout,
            socket=socket or os.environ.get("WEIR_SOCKET") or None,
        )

    def stats(self) -> Stats:
        """The counters since the port was opened."""
        return Stats(*self.counters())

    def __iter__(self) -> Iterator[Frame]:
        while not self.closed:
            yield from self.recv_batch().frames()

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while not self.closed:
            batch = self.recv_batch(timeout=0)
            if not len(batch):
                await self.readable()
            for frame in batch.frames():
                yield frame

    async def readable(self) -> None:
        """Returns when a frame may be there, or after half a second; one task at a time."""
        loop = asyncio.get_running_loop()
        ready: "asyncio.Future[None]" = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        fd = self.fileno()
        loop.add_reader(fd, wake)
        timer = loop.call_later(_CHECK_SECONDS, wake)
        try:
            await ready
        finally:
            timer.cancel()
            loop.remove_reader(fd)
        self.check()
