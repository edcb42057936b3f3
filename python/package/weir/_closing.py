"""What a ``with`` statement closes."""

from types import TracebackType
from typing import Optional, Type, TypeVar

_T = TypeVar("_T", bound="Closing")


class Closing:
    """Closed at the end of a ``with`` statement."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
