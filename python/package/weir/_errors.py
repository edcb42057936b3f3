"""The exceptions of the package."""

from typing import Optional, Tuple


class Error(Exception):
    """Base of the package's own exceptions; its text names what was wrong."""


class FilterError(Error, ValueError):
    """A filter that cannot be compiled."""

    def __init__(self, message: str, text: str = "", span: Optional[Tuple[int, int]] = None) -> None:
        shown = f"{message}\n  {text}" if text and "\n" not in text else message
        if shown is not message and span is not None:
            # In bytes; the mark is under characters.
            start, end = (len(text.encode()[:at].decode(errors="ignore")) for at in span)
            shown += "\n  " + " " * start + "^" * max(1, end - start)
        super().__init__(shown)
        self.message = message
        self.text = text
        self.span = span


class PermissionDenied(Error, PermissionError):
    """The broker's policy does not grant it."""


class NoBroker(Error, ConnectionError):
    """No broker listens, and this process may not open ports itself."""


class CaptureError(Error, OSError):
    """A capture file that cannot be opened, read or written."""
