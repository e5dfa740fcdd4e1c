"""Jobs through real processes: order, failures, kills, interruptions; and through a Ray that is not one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tokencredit.compare import launch
from tokencredit.compare.launch import Local, OnRay, last_line, work_through
from tokencredit.errors import UsageError


@dataclass
class Script:
    """A job of shell scripts, one process each; each is done when its file is there."""

    name: str
    folder: Path
    scripts: list[str]
    started: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def next_command(self) -> list[str] | None:
        left = [
            script
            for index, script in enumerate(self.scripts)
            if not (self.folder / f"{self.name}-{index}").exists()
        ]
        if not left:
            return None
        index = self.scripts.index(left[0])
        self.started.append(left[0])
        return ["sh", "-c", f"cd {self.folder}; done={self.name}-{index}; {left[0]}"]


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.01)


def test_every_job_is_done_step_by_step(tmp_path):
    jobs = [Script(name, tmp_path, ["echo one; touch $done", "echo two; touch $done"]) for name in "abc"]
    said: list[str] = []
    assert work_through(jobs, Local({}), 2, said.append) == {}
    assert all(job.log.read_text() == "one\ntwo\n" for job in jobs)
    assert len(said) == 3 and said[-1].startswith("[3 of 3]")
    assert work_through(jobs, Local({}), 2, said.append) == {}
    assert all(len(job.started) == 2 for job in jobs)


def test_at_most_so_many_at_a_time(tmp_path):
    script = "touch on-$$; ls on-* | wc -l >> counts; sleep 0.05; rm on-$$; touch $done"
    work_through([Script(str(n), tmp_path, [script]) for n in range(5)], Local({}), 2, lambda _: None)
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 5 and max(counts) <= 2


def test_a_failure_is_told_and_the_others_go_on(tmp_path):
    bad = Script("bad", tmp_path, ["printf 'begun\\rno memory\\n\\n'; exit 3"])
    good = Script("good", tmp_path, ["touch $done"])
    failures = work_through([bad, good], Local({}), 1, lambda _: None)
    assert failures == {"bad": "no memory (exit code 3)"}
    assert len(bad.started) == 1 and good.next_command() is None


def test_what_is_refused_once_is_not_tried_with_all(tmp_path):
    jobs = [Script(name, tmp_path, ["echo no reward function; exit 2"]) for name in "abc"]
    assert work_through(jobs, Local({}), 1, lambda _: None) == {"a": "no reward function (exit code 2)"}
    assert jobs[1].started == []


def test_a_killed_process_is_started_once_more(tmp_path):
    once = Script("once", tmp_path, ["[ -e seen ] && touch $done && exit; touch seen; kill -9 $$"])
    always = Script("always", tmp_path, ["kill -9 $$"])
    said: list[str] = []
    failures = work_through([once, always], Local({}), 1, said.append)
    assert list(failures) == ["always"] and "killed by signal 9 again" in failures["always"]
    assert len(once.started) == len(always.started) == 2
    assert "once: killed by signal 9; it goes on" in said[0]
    later = Script(
        "later", tmp_path, ["touch $done", "[ -e too ] && touch $done && exit; touch too; kill -9 $$"]
    )
    assert work_through([later], Local({}), 1, said.append) == {}


def test_a_process_that_achieves_nothing_is_not_started_for_ever(tmp_path):
    idle = Script("idle", tmp_path, ["true"])
    failures = work_through([idle], Local({}), 1, lambda _: None)
    assert failures == {"idle": f"not finished after {launch.MOST_STARTS} processes"}


def interrupt_when(path: Path, number: signal.Signals, times: int) -> threading.Thread:
    """Sends signals to this process once the file is there."""

    def send() -> None:
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_the_processes_at_a_good_place(tmp_path, number):
    script = "trap 'echo saved; exit 130' TERM; touch on; while :; do sleep 0.02; done"
    job, waiting = Script("job", tmp_path, [script]), Script("waiting", tmp_path, ["touch $done"])
    former = signal.getsignal(signal.SIGTERM)
    thread = interrupt_when(tmp_path / "on", number, 1)
    with pytest.raises(KeyboardInterrupt):
        work_through([job, waiting], Local({}), 1, lambda _: None)
    thread.join()
    assert job.log.read_text() == "saved\n"
    assert waiting.started == []
    assert signal.getsignal(signal.SIGTERM) is former


def test_a_stubborn_process_is_killed_at_the_third(tmp_path):
    script = "trap '' TERM; echo $$ > on.part; mv on.part on; while :; do sleep 0.02; done"
    thread = interrupt_when(tmp_path / "on", signal.SIGINT, 3)
    with pytest.raises(KeyboardInterrupt):
        work_through([Script("job", tmp_path, [script])], Local({}), 1, lambda _: None)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "on").read_text()), 0)


def test_processes_are_out_of_the_terminals_reach_and_get_the_environment(tmp_path):
    script = "echo $GREETING; ps -o pgid= -p $$ 2>/dev/null || cut -d' ' -f5 /proc/$$/stat; touch $done"
    job = Script("job", tmp_path, [script])
    work_through([job], Local({"GREETING": "hello"}), 1, lambda _: None)
    greeting, group = job.log.read_text().split()
    assert greeting == "hello" and int(group) != os.getpgrp()


def test_last_line_of_progress_bars(tmp_path):
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"error: x\n10%\r20%\r \n")
    assert last_line(log) == "20%"


def fake_ray(lost: set[str]) -> types.ModuleType:
    """A `ray` that does its work at once; a command in `lost` loses its node the first time."""
    ray = types.ModuleType("ray")
    ray.exceptions = types.SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    ray.asked = []

    def remote(**resources):
        ray.asked.append(resources)

        def wrap(function):
            def submit(*arguments):
                if arguments[0][-1] in lost:
                    lost.remove(arguments[0][-1])
                    return None
                return function(*arguments)

            return types.SimpleNamespace(remote=submit)

        return wrap

    def get(result):
        if result is None:
            raise ray.exceptions.RayError
        return result

    ray.remote, ray.get, ray.init = remote, get, lambda **settings: None
    ray.wait = lambda refs, timeout: (refs, [])
    return ray


def test_ray_does_the_same(tmp_path, monkeypatch):
    job = Script("job", tmp_path, ["echo $GREETING; touch $done"])
    ray = fake_ray({job.next_command()[-1]})
    monkeypatch.setitem(sys.modules, "ray", ray)
    said: list[str] = []
    assert work_through([job], OnRay({"GREETING": "hi"}, num_cpus=2, num_gpus=1), 3, said.append) == {}
    assert ray.asked == [{"num_cpus": 2, "num_gpus": 1}]
    assert job.log.read_text() == "hi\n"
    assert "killed by signal 9" in said[0]


def test_ray_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'tokencredit\[ray\]'"):
        OnRay({})


def test_ray_passes_a_cancellation_on(tmp_path):
    """Ray cancels a task by KeyboardInterrupt in its process."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from tokencredit.compare.launch import perform\n"
        "def send():\n"
        "    while not os.path.exists('on'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=send).start()\n"
        "script = \"trap 'echo saved; exit 0' TERM; touch on; while :; do sleep 0.02; done\"\n"
        "try:\n"
        "    perform(['sh', '-c', script], 'log', {}, '.')\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60)
    assert done.returncode == 7
    assert (tmp_path / "log").read_text() == "saved\n"
