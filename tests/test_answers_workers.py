"""Hostile answers, and the processes that compare: ended, replaced, asked from anywhere."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_a_worker_that_grew_is_replaced_after_its_reply(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Path(compare.__file__).read_text().replace("GROWTH_LIMIT = 100 << 10", "GROWTH_LIMIT = -1")
    assert "= -1" in source
    (tmp_path / "compare.py").write_text(source)
    monkeypatch.setattr(worker, "_SCRIPT", tmp_path / "compare.py")
    pool = worker._Pool()
    try:
        for i in range(2 * worker.WORKERS):
            pids = (
                {child.pid for child in psutil.Process(pool.process.pid).children()}
                if pool.process
                else set()
            )
            assert pool.ask([f"x+{i}", f"{i}+x"]) == "same"
            assert pids != {child.pid for child in psutil.Process(pool.process.pid).children()}
    finally:
        pool.stop()


def test_workers_that_died_are_replaced() -> None:
    verify("\\boxed{y+1}", "1+y")
    for child in children():
        child.kill()
    worker.reply_to.cache_clear()
    verdicts = [verify(f"\\boxed{{y+{i}}}", f"{i}+y") for i in range(2 * worker.WORKERS)]
    assert [v.verdict for v in verdicts if not v.reason.startswith("not comparable")][-1] == "right"
    process = worker.POOL.process
    assert process is not None
    process.kill()
    process.wait()
    assert verify("\\boxed{y+99}", "99+y").verdict == "right"


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
            assert lines.readline() == reply
    assert process.wait(timeout=60) == 0
