"""The process that compares answers by algebra, seen from its parent: started, asked, killed, replaced.

A parser can hang or take all memory on a short answer, and neither can be stopped from inside; a process can.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from tokencredit.answers.compare import MEMORY_LIMIT, TIME_LIMIT

__all__ = ["WORKER", "UnjudgedError", "ask", "cached_reply"]

START_LIMIT = 120.0  # seconds for the worker's imports
_SCRIPT = Path(__file__).absolute().with_name("compare.py")
# Not `python FILE`: the worker must import nothing from the file's own folder or from the current one.
_BOOT = (
    "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_path(sys.argv[1], run_name='worker')"
)


class _Worker:
    """One process that compares pairs; killed when a pair exceeds its time, replaced at the next pair."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: list[str]) -> str:
        """The worker's reply: "same", "different", or the reason why there is none."""
        with self.lock:
            try:
                if self.process is None or self.process.poll() is not None:
                    self._start()
                reply = self._exchange(json.dumps(request).encode() + b"\n", TIME_LIMIT)
            except OSError:
                reply = ""
            except BaseException:  # an unread reply must not answer the next request
                self.stop()
                raise
            if not reply:
                self.stop()
            return reply or f"not comparable within {TIME_LIMIT:g} s and {MEMORY_LIMIT >> 30} GB"

    def _start(self) -> None:
        self.stop()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._exchange(b"", START_LIMIT) != "ready":
            self.stop()
            raise RuntimeError("the answer worker did not start: check that math-verify can be imported")

    def _exchange(self, line: bytes, limit: float) -> str:
        """Sends a line and reads one; "" if the worker ended first or had to be killed."""
        assert self.process and self.process.stdin and self.process.stdout
        process, late = self.process, threading.Event()

        def expire() -> None:
            late.set()
            process.kill()

        guard = threading.Timer(limit, expire)
        guard.start()
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
            reply = self.process.stdout.readline().decode().strip()
        finally:
            guard.cancel()
            guard.join()
        return "" if late.is_set() else reply

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
        self.process = None

    def forget(self) -> None:
        """In a forked child: the worker stays the parent's, the child starts its own."""
        self.__init__()  # type: ignore[misc]


WORKER = _Worker()
atexit.register(WORKER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.forget)


class UnjudgedError(Exception):
    """A pair that could not be compared: the message says why."""


@lru_cache(maxsize=4096)
def cached_reply(gold: str, answer: str) -> str:
    """The worker's reply; a pair that once cost the worker its life is not tried again."""
    return WORKER.ask([gold, answer])


def ask(gold: str, answer: str) -> bool:
    """Whether the worker finds the pair equal; raises UnjudgedError with the reason where it cannot tell."""
    reply = cached_reply(gold, answer)
    if reply not in ("same", "different"):
        raise UnjudgedError(reply)
    return reply == "same"
