"""The processes that compare answers by algebra, seen from their parent: started, asked, killed, replaced.

A parser can hang or take all memory on a short answer, and neither can be stopped from inside; a process can.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from tokencredit.answers.compare import BEGUN, LIMITED, MEMORY_LIMIT, READY, TIME_LIMIT
from tokencredit.answers.formula import UnjudgedError, prepared

__all__ = ["POOL", "WORKERS", "ask", "parses", "reply_to", "spread"]

Row = TypeVar("Row")
Result = TypeVar("Result")

START_LIMIT = 120.0  # seconds for the libraries to load
WALL_LIMIT = 60.0  # seconds for a reply, on a machine however busy; a worker computes TIME_LIMIT at most
WORKERS = max(2, min(8, os.cpu_count() or 2))
_SCRIPT = Path(__file__).absolute().with_name("compare.py")
# Not `python FILE`: the worker must import nothing from the file's own folder or from the current one.
_BOOT = (
    "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_path(sys.argv[1], run_name='worker')"
)


class _Connection:
    """The parent's end of one worker."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.rest = b""

    def read(self, limit: float) -> str:
        """The next line; "" if none came within the limit."""
        self.end.settimeout(limit)
        while b"\n" not in self.rest:
            try:
                more = self.end.recv(4096)
            except OSError:
                return ""
            if not more:
                return ""
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    def ask(self, request: list[str], limit: float) -> str:
        """The reply; "" where the question took a worker beyond its limits. Raises OSError if nobody is there."""
        for _ in range(2):  # what killed the worker may have nothing to do with the question
            self.end.settimeout(WALL_LIMIT)
            self.end.sendall(json.dumps([request, limit]).encode() + b"\n")
            while (line := self.read(WALL_LIMIT)) != BEGUN:
                # Workers that died before have been replaced; their successor reads what was sent.
                if line not in (READY, LIMITED):
                    raise OSError("no reply")
            reply = self.read(WALL_LIMIT)
            if not reply:
                raise OSError("no reply")
            if reply != READY:
                return "" if reply == LIMITED else reply
        return ""

    def hang_up(self) -> None:
        """Ends the worker if it waits; one that computes ends within its limit."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)


class _Pool:
    """Worker processes that any thread may ask; started at the first question, again in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.free: queue.LifoQueue[_Connection] = queue.LifoQueue()
        self.connections: list[_Connection] = []

    def ask(self, request: list[str]) -> str:
        """The reply to a pair (or a lone gold): "same", "different", or the reason why there is none."""
        for _ in range(2):  # the pool may have been killed under a question that is not to blame
            free = self._started()
            connection = free.get()
            try:
                reply = connection.ask(request, TIME_LIMIT)
            except OSError:
                self._stop_if(free)
                free.put(connection)  # lets whoever waits find out as well
                continue
            except BaseException:  # an unread reply must not answer the next question
                self._stop_if(free)
                free.put(connection)
                raise
            free.put(connection)
            return reply or f"not comparable within {TIME_LIMIT:g} s and {MEMORY_LIMIT >> 30} GB"
        return f"not comparable within {WALL_LIMIT:g} s"

    def _started(self) -> queue.LifoQueue[_Connection]:
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self._stop()
                self._start()
            return self.free

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(WORKERS)]
        theirs = [pair[1].fileno() for pair in pairs]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(_SCRIPT), *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=theirs,
                start_new_session=True,  # Ctrl-C is the parent's alone, and all can be ended at once
            )
        finally:
            for _, end in pairs:
                end.close()
        self.connections = [_Connection(end) for end, _ in pairs]
        self.free = queue.LifoQueue()
        for connection in self.connections:
            if connection.read(START_LIMIT) != READY:
                self._stop()
                raise RuntimeError("the answer workers did not start: check that math-verify can be imported")
            self.free.put(connection)

    def _stop_if(self, free: queue.LifoQueue[_Connection]) -> None:
        """Stops the processes that this queue belongs to; another thread may have done so."""
        with self.lock:
            if self.free is free:
                self._stop()

    def _stop(self) -> None:
        for connection in self.connections:
            connection.hang_up()
        # Threads that are about to ask still have theirs; they close with the last who knows of them.
        self.connections, self.free = [], queue.LifoQueue()
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def stop(self) -> None:
        """Ends all processes; the next question starts new ones."""
        with self.lock:
            self._stop()

    def forget(self) -> None:
        """In a forked child: the workers stay the parent's, the child starts its own."""
        for connection in self.connections:
            connection.end.close()
        self.__init__()  # type: ignore[misc]


POOL = _Pool()
atexit.register(POOL.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.forget)


@lru_cache(maxsize=8192)
def reply_to(*request: str) -> str:
    """The workers' reply; a pair that once cost a worker its life is not tried again."""
    return POOL.ask(list(request))


def spread(function: Callable[[Row], Result], rows: Iterable[Row]) -> Iterator[Result]:
    """The function's results in the order of the rows, computed in as many threads as there are workers.

    When the caller stops (also by Ctrl-C), what has not begun is dropped.
    """
    threads = ThreadPoolExecutor(WORKERS)
    try:
        yield from threads.map(function, rows)
    finally:
        threads.shutdown(cancel_futures=True)


_parsed: dict[str, None] = {}  # prepared texts that a comparison has shown to parse, the latest ones


def parses(text: str) -> str | None:
    """None if a prepared gold parses, else the reason why not."""
    reply = "same" if text in _parsed else reply_to(text)
    return None if reply == "same" else reply


def ask(gold: str, answer: str, tolerance: str | None = None) -> bool:
    """Whether the workers find two cleaned texts equal; raises UnjudgedError with the reason where they cannot tell."""
    request = [prepared(gold, "gold"), prepared(answer, "answer")]
    if request[0] == request[1]:
        reply = reply_to(request[0])
    else:
        reply = reply_to(*request) if tolerance is None else reply_to(*request, tolerance)
    if reply not in ("same", "different"):
        raise UnjudgedError(reply)
    if len(_parsed) > 8192:
        _parsed.clear()
    _parsed[request[0]] = None
    return reply == "same"
