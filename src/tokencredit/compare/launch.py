"""Processes for the jobs of a comparison, several at a time, here or on a Ray cluster.

A job is asked for its next command until it has none, also after a signal has killed its process, once. One that fails
is left for the next call, and the others go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokencredit.errors import UsageError
from tokencredit.signals import Interruptions

MOST_STARTS = 4
"""Of one job in one call: to train and to measure, with room for one that was killed."""
REFUSED = 2
"""The exit code of what the user has to mend; the jobs still waiting would be refused as well, and are not begun."""
POLL_SECONDS = 0.1
GRACE_SECONDS = 30.0
"""After a second interruption processes have this long to end."""

Tell = Callable[[str], None]


class Job(Protocol):
    """Something to be done by one process after another."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path:
        """The file that takes the processes' output."""

    def next_command(self) -> list[str] | None:
        """The next process's command line; None where nothing is left to do."""


class Launcher(Protocol):
    """Where processes run; handles are its own."""

    def keep_open(self, descriptor: int) -> None:
        """Lets processes of this machine inherit a file descriptor."""

    def start(self, command: Sequence[str], log: Path) -> Any: ...

    def exit_code(self, handle: Any) -> int | None:
        """None while the process runs; negative if a signal killed it."""

    def stop(self, handle: Any) -> None:
        """Asks a process to stop at the next chance; asked again, at once."""

    def kill(self, handle: Any) -> None: ...


class Local:
    """Processes of this machine, out of reach of the terminal's own interruption.

    Args:
        environment: added to that of this process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = {**os.environ, **environment}
        self.inherited: tuple[int, ...] = ()

    def keep_open(self, descriptor: int) -> None:
        self.inherited = (descriptor,)

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with open(log, "ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                pass_fds=self.inherited,
                process_group=0,
            )

    def exit_code(self, handle: subprocess.Popen[bytes]) -> int | None:
        return handle.poll()

    def stop(self, handle: subprocess.Popen[bytes]) -> None:
        handle.terminate()

    def kill(self, handle: subprocess.Popen[bytes]) -> None:
        handle.kill()


class OnRay:
    """Processes on the nodes of a Ray cluster (of RAY_ADDRESS, else of this machine), which must share the folder.

    Args:
        environment: added to that of the nodes' workers.
        resources: of one process, as `ray.remote` takes them, such as num_cpus and num_gpus.

    Raises:
        UsageError: Ray is not installed or has no cluster for us.
    """

    def __init__(self, environment: Mapping[str, str], **resources: Any) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                "--launcher ray needs the package ray: pip install 'tokencredit[ray]'"
            ) from error
        self.ray, self.environment, self.folder = ray, dict(environment), str(Path.cwd())
        try:
            ray.init(ignore_reinit_error=True, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(f"cannot reach a Ray cluster: {error}") from error
        self.work = ray.remote(**resources)(perform)

    def keep_open(self, descriptor: int) -> None:
        """Nothing: the cluster's workers end their processes with the call."""

    def start(self, command: Sequence[str], log: Path) -> Any:
        return self.work.remote(list(command), str(log.absolute()), self.environment, self.folder)

    def exit_code(self, handle: Any) -> int | None:
        done, _ = self.ray.wait([handle], timeout=0)
        if not done:
            return None
        try:
            return int(self.ray.get(handle))
        except self.ray.exceptions.RayError:  # the node or its worker is gone, or we cancelled it
            return -int(signal.SIGKILL)

    def stop(self, handle: Any) -> None:
        self.ray.cancel(handle)

    def kill(self, handle: Any) -> None:
        self.ray.cancel(handle, force=True)


def perform(command: Sequence[str], log: str, environment: Mapping[str, str], folder: str) -> int:
    """Runs a command to its end and returns its exit code; an interruption is passed on to it as SIGTERM."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=folder,
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


@dataclass
class _Active:
    """A job at work: its process, how many it has had, and how many of them a signal killed."""

    job: Job
    handle: Any = None
    starts: int = 0
    kills: int = 0
    began: float = field(default_factory=time.monotonic)

    def start_next(self, launcher: Launcher) -> bool:
        """Whether there was something left to start."""
        command = self.job.next_command()
        if command is not None:
            self.handle = launcher.start(command, self.job.log)
            self.starts += 1
        return command is not None

    def failure(self, code: int) -> str | None:
        """Why the job is not to be asked again after its process has ended so, None where it is."""
        self.kills += code < 0
        if code > 0 or self.kills > 1:
            how = f"exit code {code}" if code > 0 else f"killed by signal {-code} again"
            return f"{last_line(self.job.log) or 'it printed nothing'} ({how})"
        return f"not finished after {self.starts} processes" if self.starts >= MOST_STARTS else None


def work_through(jobs: Sequence[Job], launcher: Launcher, at_once: int, tell: Tell) -> dict[str, str]:
    """Does all jobs, at most `at_once` at a time, in their order.

    Returns:
        For each job that failed, by its name, what its log says last.

    Raises:
        KeyboardInterrupt: on SIGINT or SIGTERM, after every process has stopped.
    """
    waiting, active = list(reversed(jobs)), list[_Active]()
    failures: dict[str, str] = {}
    # Not let in anywhere, such as between a process and its handle.
    with Interruptions() as interruptions:
        while (waiting or active) and not interruptions.count:
            while waiting and len(active) < at_once:
                item = _Active(waiting.pop())
                if item.start_next(launcher):
                    active.append(item)
            time.sleep(POLL_SECONDS)
            for item in list(active):
                code = launcher.exit_code(item.handle)
                if code is None or interruptions.count:
                    continue
                reason = item.failure(code)
                if reason is None and code != 0:
                    tell(f"{item.job.name}: killed by signal {-code}; it goes on from what it has saved")
                if reason is None and item.start_next(launcher):
                    continue
                active.remove(item)
                if reason is not None:
                    failures[item.job.name] = reason
                if code == REFUSED:
                    waiting.clear()
                said = "done" if reason is None else f"failed: {reason}"
                done = len(jobs) - len(waiting) - len(active)
                tell(
                    f"[{done} of {len(jobs)}] {item.job.name}: {said} ({time.monotonic() - item.began:.0f} s)"
                )
        if interruptions.count:
            _stop_all([item.handle for item in active], launcher, interruptions, tell)
            raise KeyboardInterrupt
    return failures


def last_line(path: Path) -> str:
    """The last line of a log that has something on it; progress bars rewrite theirs."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 10_000))
        text = file.read().decode("utf-8", "replace").replace("\r", "\n")
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _stop_all(handles: Sequence[Any], launcher: Launcher, interruptions: Interruptions, tell: Tell) -> None:
    """Waits until all processes have stopped; a second interruption asks them again, a third kills them."""
    running = [handle for handle in handles if launcher.exit_code(handle) is None]
    if running:
        tell(f"stopping {len(running)} process(es) after their step; once more to stop at once")
    asked, deadline = 0, float("inf")
    while running:
        if asked < interruptions.count:
            asked += 1
            deadline = time.monotonic() + GRACE_SECONDS if asked > 1 else deadline
            for handle in running:
                (launcher.stop if asked < 3 else launcher.kill)(handle)
        elif time.monotonic() > deadline:
            interruptions.count += 1
        time.sleep(POLL_SECONDS)
        running = [handle for handle in running if launcher.exit_code(handle) is None]
