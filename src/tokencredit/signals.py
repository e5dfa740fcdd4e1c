"""SIGINT and SIGTERM counted for a while, instead of ending the process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any


class Interruptions:
    """Counts both signals inside its `with`, and brings the former handlers back; for the main thread alone.

    Args:
        then: called with the count, in the signal's handler.

    Attributes:
        count: signals so far.
    """

    def __init__(self, then: Callable[[int], None] = lambda count: None) -> None:
        self.count = 0
        self._then = then
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptions:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        self.count += 1
        self._then(self.count)
