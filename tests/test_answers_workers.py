"""Hostile answers, and the processes that compare: ended, replaced, asked from anywhere."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tokencredit.answers import check_gold, compare, verify, worker

HOSTILE = [
    "9^{9^{9^{9}}}",
    "9^9^9^9",
    "((9!)!)!",
    "99999999!",
    "\\log(" * 39 + "2" + ")" * 39,
    "7" * 5000 + "x",
    "{" * 5000 + "7" + "}" * 5000,
    "(" * 1500 + "1" + ")" * 1500,
    "\\frac{1}{" * 300 + "x" + "}" * 300,
    "x" * 1_000_000,
    "\\text{" * 500 + "}" * 500,
    "=" * 5000,
    "|" * 500 + "x" + "|" * 500,
    "x^" * 500 + "2",
    "\\frac{9}{2}^{9^{9}}",
    "\\binom{1000000000}{500000000}",
    "10^{-9999999999}",
    "1e999999999",
    "1e-999999999999999999999",
    "e^{e^{e^{e^{e^{e}}}}}",
]


@pytest.mark.parametrize("answer", HOSTILE)
def test_a_hostile_answer_is_refused_by_its_text(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """None of these reaches a worker."""
    check_gold("x^{2}+y")
    monkeypatch.setattr(worker, "reply_to", None)
    for gold in ("x^{2}+y", "7"):
        verdict = verify(f"\\boxed{{{answer}}}", gold)
        assert verdict.verdict == "wrong" and verdict.reason


SLOW = "\\int \\frac{\\sin(x^x)\\log(x)}{e^{x^3}+\\tan x+"  # to be closed, so that each differs


def test_an_answer_that_takes_too_long_costs_bounded_time_and_the_next_one_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "TIME_LIMIT", 0.3)
    answer = f"\\boxed{{{SLOW}1}}dx}}"
    verdict = verify(answer, "x^{2}+y")
    assert verdict.verdict == "wrong" and "not comparable within 0.3 s" in verdict.reason
    asked = worker.reply_to.cache_info().misses
    assert verify(answer, "x^{2}+y") == verdict  # remembered: a group of equal answers costs one limit
    assert worker.reply_to.cache_info().misses == asked
    assert verify("\\boxed{x^2-4}", "(x-2)(x+2)").verdict == "right"


def children() -> list[psutil.Process]:
    process = worker.POOL.process
    return psutil.Process(process.pid).children() if process else []


def test_fifty_bad_answers_leave_as_many_processes_and_as_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "TIME_LIMIT", 0.05)
    verify("\\boxed{y+1}", "1+y")
    process = worker.POOL.process
    before = sum(child.memory_info().rss for child in children())
    with ThreadPoolExecutor(4) as pool:
        bad = list(
            pool.map(lambda i: verify(f"\\boxed{{{SLOW}{i}}}dx}}", "x^{2}+y").verdict, range(100, 150))
        )
    assert bad == ["wrong"] * 50
    monkeypatch.undo()
    assert verify("\\boxed{y+98}", "98+y").verdict == "right"
    assert worker.POOL.process is process and len(children()) == worker.WORKERS
    assert sum(child.memory_info().rss for child in children()) < before + worker.WORKERS * (150 << 20)


def altered_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str) -> worker._Pool:
    """Workers that run another text."""
    source = Path(compare.__file__).read_text()
    assert source.count(old) == 1
    (tmp_path / "compare.py").write_text(source.replace(old, new))
    monkeypatch.setattr(worker, "_SCRIPT", tmp_path / "compare.py")
    return worker._Pool()


def wait_until(happened: Callable[[], Any]) -> None:
    for _ in range(3000):
        if happened():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within a minute")


def gone(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def children_of(pool: worker._Pool) -> set[psutil.Process]:
    return set(psutil.Process(pool.process.pid).children()) if pool.process else set()


def test_a_worker_that_grew_is_replaced_after_its_reply(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = altered_pool(monkeypatch, tmp_path, "GROWTH_LIMIT = 100 << 10", "GROWTH_LIMIT = -1")
    try:
        for i in range(2 * worker.WORKERS):
            before = children_of(pool)
            assert pool.ask([f"x+{i}", f"{i}+x"]) == "same"
            wait_until(lambda before=before: children_of(pool) - before)
    finally:
        pool.stop()


def test_workers_killed_while_they_wait_are_replaced_and_no_verdict_is_lost() -> None:
    """Rights and wrongs in turn: a reply to another question would show."""
    verify("\\boxed{y+1}", "1+y")
    for _ in range(3):
        killed = children()
        for child in killed:
            child.kill()
        for i in range(2 * worker.WORKERS):
            worker.reply_to.cache_clear()
            verdict = verify(f"\\boxed{{y+{i}}}", f"{i + i % 2}+y")
            assert verdict.verdict == ("wrong" if i % 2 else "right"), verdict
        assert not set(killed) & set(children()) and len(children()) == worker.WORKERS


def test_a_worker_killed_while_it_computes_is_replaced_and_its_question_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    hang = (
        f"open({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "                while 'h' in str(request) and len(open(%r).readlines()) <= DEATHS: pass\n"
        "                reply = compare(request)"
    ) % str(begun)
    for deaths, expected in ((1, "same"), (2, "not comparable within")):
        pool = altered_pool(
            monkeypatch, tmp_path, "reply = compare(request)", hang.replace("DEATHS", str(deaths))
        )
        monkeypatch.setattr(worker, "TIME_LIMIT", 1000.0)
        begun.unlink(missing_ok=True)
        try:
            with ThreadPoolExecutor(1) as thread:
                reply = thread.submit(pool.ask, ["h+1", "1+h"])
                for death in range(deaths):
                    wait_until(lambda n=death: begun.exists() and len(begun.read_text().splitlines()) > n)
                    os.kill(int(begun.read_text().splitlines()[death]), signal.SIGKILL)
                assert reply.result(timeout=120).startswith(expected)
            keeper = pool.process
            assert [pool.ask(["x+1", text]) for text in ("1+x", "x", "1+x")] == ["same", "different", "same"]
            assert pool.process is keeper  # the others were left alone
        finally:
            pool.stop()


def test_nothing_is_left_of_a_pool_that_was_stopped() -> None:
    pool, process = worker._Pool(), psutil.Process()
    files, running = process.num_fds(), set(process.children(recursive=True))
    for _ in range(2):
        assert pool.ask(["x+1", "1+x"]) == "same"
        pool.stop()
        assert process.num_fds() == files and set(process.children(recursive=True)) == running


def test_a_killed_keeper_is_replaced() -> None:
    verify("\\boxed{y+1}", "1+y")
    process, orphans = worker.POOL.process, children()
    assert process is not None
    process.kill()
    process.wait()
    assert verify("\\boxed{y+99}", "99+y").verdict == "right"
    assert psutil.wait_procs(orphans, timeout=60)[1] == []


@pytest.mark.parametrize("busy", [False, True])
def test_workers_do_not_outlive_a_parent_that_is_killed(busy: bool) -> None:
    """A busy one computes for as long as its limit allows; then nobody is there to read the reply, or to wait for."""
    code = (
        "import threading, time; from tokencredit.answers import verify, worker; verify('\\\\boxed{t+1}', '1+t')\n"
        f"hard = lambda: verify(r'\\boxed{{{SLOW}1}}dx}}', 'x^{{2}}+y')\n"
        f"worker.TIME_LIMIT = 3.0\nif {busy}: threading.Thread(target=hard, daemon=True).start()\n"
        "print(worker.POOL.process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        keeper = psutil.Process(int(parent.stdout.readline()))
        workers = keeper.children()
        if busy:
            used = {child: child.cpu_times().user for child in workers}
            wait_until(lambda: any(child.cpu_times().user > used[child] + 0.1 for child in workers))
        parent.kill()
        parent.wait()
    wait_until(lambda: gone(keeper))
    assert all(gone(child) for child in workers)


def test_workers_that_do_not_move_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    worker.reply_to.cache_clear()
    verify("\\boxed{y+1}", "1+y")
    stuck = children()
    for child in stuck:
        child.suspend()
    monkeypatch.setattr(worker, "WALL_LIMIT", 2.0)
    assert verify("\\boxed{y+77}", "77+y").verdict == "right"
    assert psutil.wait_procs(stuck, timeout=10)[1] == []


PAIRS = [(f"\\boxed{{{i}+z}}", f"z+{i if i % 2 else i + 1}") for i in range(12)]
VERDICTS = ["right" if i % 2 else "wrong" for i in range(12)]


def judge(pair: tuple[str, str]) -> str:
    worker.reply_to.cache_clear()
    return verify(*pair).verdict


def test_the_same_verdicts_from_threads_and_tasks() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(judge, PAIRS)) == VERDICTS

    async def tasks() -> list[str]:
        return list(await asyncio.gather(*(asyncio.to_thread(judge, pair) for pair in PAIRS)))

    async def alone(pair: tuple[str, str]) -> str:
        return judge(pair)

    async def in_the_loop() -> list[str]:
        return list(await asyncio.gather(*(alone(pair) for pair in PAIRS)))

    assert asyncio.run(tasks()) == VERDICTS
    assert asyncio.run(in_the_loop()) == VERDICTS


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_the_same_verdicts_from_other_processes(method: str) -> None:
    """A daemonic pool process, which may have no multiprocessing children; the parent's worker lives on."""
    judge(PAIRS[0])
    process = worker.POOL.process
    assert process is not None
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(judge, PAIRS[:4]) == VERDICTS[:4]
    assert judge(PAIRS[1]) == "right"
    assert worker.POOL.process is process


def test_answers_need_no_torch_and_the_worker_ends_with_its_parent() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None;"
        "from tokencredit.answers import verify, worker; print(verify('\\\\boxed{t+1}', '1+t').verdict);"
        "print(worker.POOL.process.pid)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    verdict, pid = output.stdout.split()
    assert verdict == "right"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_the_file_that_the_workers_run_stands_alone() -> None:
    ours, theirs = socket.socketpair()
    code = (
        "import runpy, sys;"
        "sys.modules['torch'] = sys.modules['transformers'] = sys.modules['tokencredit'] = None;"
        f"sys.argv[1:] = ['', '{theirs.fileno()}'];"
        f"runpy.run_path({compare.__file__!r}, run_name='worker')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
    theirs.close()
    with ours, ours.makefile("rw") as lines:
        assert lines.readline() == "ready\n"
        for answer, reply in (("1+t", "same\n"), ("t", "different\n")):
            lines.write(json.dumps([["t+1", answer], 5]) + "\n")
            lines.flush()
            assert [lines.readline(), lines.readline()] == ["begun\n", reply]
    assert process.wait(timeout=60) == 0
