"""`tokencredit compare` over run folders that nothing was trained for; and, slowly, over real ones with a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import SMALL, announce_answers, edit_json

sys.path.insert(0, str(Path(__file__).parents[1] / "compare"))
from fake_runs import SECONDS, write_lines

from tokencredit.cli import held_out, train
from tokencredit.compare import launch
from tokencredit.compare.runs import RunKey

SHORT = ("compare", "--task", "query", "--credit", "uniform,oar-g", "--seeds", 2, "--steps", 4, "--out", "c")


def flag(command: Sequence[str], name: str) -> str:
    return command[command.index(f"--{name}") + 1]


class Processes:
    """Stands in for processes: writes what they would leave, and keeps their command lines."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.failing: set[str] = set()
        self.launcher: Any = None

    def work_through(self, jobs, launcher, at_once, tell):
        self.launcher, failures = launcher, {}
        for job in jobs:
            command = job.next_command()
            while command is not None and job.name not in self.failing:
                self.commands.append(command)
                self.perform(command)
                command = job.next_command()
            if command is not None:
                failures[job.name] = "out of memory (exit code 1)"
        return failures

    def perform(self, command: list[str]) -> None:
        if "tokencredit.tasks.warm_start" in command:
            Path(flag(command, "out")).mkdir(parents=True)
            Path(flag(command, "out"), "warm_start.json").touch()
        elif "tokencredit.cli.held_out" in command:
            steps = [int(part.split("=")[0]) for part in command if part[:1].isdigit() and "=" in part]
            lines = [{"step": s, "way": w, "accuracy": 0.5} for s in steps for w in ("sampled", "greedy")]
            write_lines(Path(flag(command, "out")), lines)
        else:
            self.train(command)

    @staticmethod
    def train(command: list[str]) -> None:
        folder, arm, seed = Path(flag(command, "output_dir")), flag(command, "credit"), flag(command, "seed")
        reward = 0.3 + 0.01 * int(seed) + (0.1 if arm == "oar-g" else 0.0)
        steps = range(1, int(flag(command, "max_steps")) + 1)
        write_lines(
            folder / "metrics.jsonl", [{"step": s, "reward": reward, "step_time": 1.0} for s in steps]
        )
        summary = {"seconds_per_step": SECONDS}
        info = {"credit": arm, "task": None, "interrupted": False, "summary": summary}
        (folder / "run.json").write_text(json.dumps(info))

    def of(self, module: str) -> list[list[str]]:
        return [command for command in self.commands if module in command]


@pytest.fixture
def processes(monkeypatch) -> Processes:
    stand_in = Processes()
    monkeypatch.setattr(launch, "work_through", stand_in.work_through)
    return stand_in


def content(out: str = "c") -> dict[str, Any]:
    return json.loads(Path(out, "compare.json").read_text())


def test_every_run_has_its_own_folder_and_command(cli, processes):
    outcome = cli(*SHORT, "--warm-starts", 2, "--points", 2, "--learning_rate", 1e-3)
    assert outcome.code == 0
    commands = processes.of("train")
    assert len(commands) == 8
    for command in commands:
        assert command[1:4] == ["-m", "tokencredit", "train"]
        assert [
            flag(command, name) for name in ("learning_rate", "max_steps", "save_steps", "eval_problems")
        ] == [
            "0.001",
            "4",
            "2",
            "0",
        ]
    by_folder = {flag(command, "output_dir"): command for command in commands}
    second = by_folder["c/oar-g/warm1-seed2"]
    assert (flag(second, "credit"), flag(second, "seed")) == ("oar-g", "2")
    assert flag(second, "model_name_or_path") == "c/warm-starts/query-seed1"
    assert "--model_name_or_path" not in by_folder["c/uniform/warm0-seed1"]
    assert Path("c/oar-g/warm1-seed2/command.txt").read_text().startswith("tokencredit train --task query")
    (made,) = processes.of("tokencredit.tasks.warm_start")
    assert (flag(made, "seed"), flag(made, "out")) == ("1", "c/warm-starts/query-seed1")
    measured = processes.of("tokencredit.cli.held_out")
    assert len(measured) == 2 + 8 and {flag(command, "problems") for command in measured} == {"2560"}


def test_what_it_says(cli, processes):
    outcome = cli(*SHORT)
    found = content()
    assert (found["command"], found["arms"]) == ("compare", ["uniform", "oar-g"])
    assert found["measures"]["final_sampled"]["differences"]["oar-g"]["pairs"] == 2
    assert found["measures"]["average_reward"]["differences"]["oar-g"]["mean"] == pytest.approx(0.1)
    assert found["noise"] < 0.01
    assert found["plan"]["settings"]["task"] == "query"
    for line in found["verdict"] + found["reservations"]:
        assert line in outcome.out
    assert "oar-g against uniform, 2 pairs" in outcome.out
    assert "no difference shown" in Path("c/compare.html").read_text()


def test_a_second_call_repeats_nothing_and_grows(cli, processes):
    assert cli(*SHORT).code == 0
    processes.commands.clear()
    assert cli(*SHORT).code == 0
    assert processes.commands == []
    assert cli(*SHORT, "--seeds", 3, "--credit", "uniform,random").code == 0
    folders = {flag(command, "output_dir") for command in processes.of("train")}
    assert folders == {f"c/random/warm0-seed{seed}" for seed in (1, 2, 3)} | {"c/uniform/warm0-seed3"}
    assert any("Seeds were added" in line for line in content()["reservations"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--steps", 5), "c was begun with max_steps 4, not 5; set it as it was, or give another --out"),
        (("--problems", 3000), "was begun with problems 2560, not 3000"),
        (("--task", "serial"), "was begun with task query, not serial"),
        (("--credit_q", 0.5), "was begun with credit_q 0.25, not 0.5"),
        (("--warm_starts", "elsewhere"), "was begun with query as warm start 0, not elsewhere"),
    ],
)
def test_a_second_call_with_other_settings(cli, processes, flags, message):
    assert cli(*SHORT).code == 0
    before = Path("c/plan.json").read_text()
    outcome = cli(*SHORT, *flags)
    assert outcome.code == 2
    assert message in outcome.error
    assert Path("c/plan.json").read_text() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--credit", "uniform"), "needs at least two strategies, each once, not 'uniform'"),
        (("--credit", "uniform,uniform"), "each once"),
        (("--credit", "uniform,magic"), "magic"),
        (("--seeds", 0), "--seeds must be at least 1, not 0"),
        (("--steps", 0), "--steps must be at least 1, not 0"),
        (("--warm_starts", 0), "--warm_starts must be a number of at least 1"),
        (("--warm_starts", "a,"), "--warm_starts must be"),
        (("--seed", 3), "compare sets --seed of each run itself: --seeds counts them"),
        (("--output-dir", "x"), "compare sets --output_dir of each run itself: --out names the folder"),
        (("--max_steps=3",), "compare sets --max_steps of each run itself: use --steps"),
        (("--no_such_flag", 3), "unknown setting --no_such_flag"),
        (("--num_generations", 3), "not a multiple of num_generations 3"),
        (("--held_out", "x.jsonl"), "a task has held-out problems of its own"),
        (("--warm_starts", "a,b", "--model_name_or_path", "m"), "not both"),
        (("--warm_starts", 2, "--model_name_or_path", "m"), "name their folders instead"),
        (("--warm_starts", "query,./nowhere"), "./nowhere"),
        (("--launcher", "slurm"), "invalid choice: 'slurm'"),
    ],
)
def test_what_cannot_be(cli, processes, flags, message):
    outcome = cli(*SHORT, *flags)
    assert outcome.code == 2
    assert message in outcome.error
    assert not Path("c").exists()


def test_ray_that_is_not_there(cli, processes, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = cli(*SHORT, "--launcher", "ray")
    assert outcome.code == 2
    assert "pip install 'tokencredit[ray]'" in outcome.error
    assert not Path("c").exists()


def test_failed_runs(cli, processes):
    processes.failing = {"oar-g/warm0-seed2"}
    outcome = cli(*SHORT)
    assert outcome.code == 2
    assert (
        "1 run(s) failed; oar-g/warm0-seed2: out of memory (exit code 1); c/oar-g/warm0-seed2"
        in outcome.error
    )
    assert content()["measures"]["final_sampled"]["differences"]["oar-g"]["pairs"] == 1
    assert "no difference shown (too few pairs)" in outcome.out
    processes.failing = {"warm0"}
    assert "the warm start warm0 failed: out of memory" in cli(*SHORT, "--out", "d").error


def test_an_interruption(cli, monkeypatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "work_through", stop)
    outcome = cli(*SHORT)
    assert outcome.code == 130
    assert "the same command goes on from there" in outcome.err


def test_data_sets_without_held_out_problems(cli, processes, rows, model):
    data = ("--dataset", rows, "--model_name_or_path", model, *SMALL)
    outcome = cli("compare", *data, "--steps", 3, "--seeds", 2, "--out", "c")
    assert outcome.code == 0
    assert processes.of("tokencredit.cli.held_out") == []
    assert set(content()["measures"]) == {"average_reward", "final_reward"}
    assert {flag(command, "model_name_or_path") for command in processes.of("train")} == {str(model)}
    assert "give --steps" in cli("compare", *data, "--out", "d").error


def test_data_sets_with_held_out_problems(cli, processes, rows, model):
    data = ("--dataset", rows, "--warm-starts", f"{model},{model}", "--held_out", rows, *SMALL)
    assert cli("compare", *data, "--steps", 3, "--seeds", 1, "--out", "c").code == 0
    command = processes.of("tokencredit.cli.held_out")[0]
    assert flag(command, "data") == str(rows) and flag(command, "base") == str(model)
    assert command[command.index("--") + 1 :][:2] == ["--dataset", str(rows)]
    assert "final_greedy" in content()["measures"]
    refused = cli("compare", *data, "--held_out", "none.jsonl", "--steps", 3, "--out", "d")
    assert refused.code == 2 and "none.jsonl" in refused.error
    assert not Path("d").exists()


def test_settings_from_a_file(cli, processes):
    Path("run.yaml").write_text("task: query\nmax_steps: 3\ncredit: oar-p\nseed: 7\n")
    assert cli("compare", "--config", "run.yaml", "--seeds", 1, "--out", "c").code == 0
    commands = processes.of("train")
    assert {flag(command, "credit") for command in commands} == {"uniform", "oar-g"}
    assert {flag(command, "max_steps") for command in commands} == {"3"}
    assert {flag(command, "config") for command in commands} == {"run.yaml"}


@pytest.mark.parametrize("setting", ["save_total_limit: 1", "save_only_model: true", "overwrite: true"])
def test_settings_from_a_file_that_cannot_be(cli, processes, setting):
    Path("run.yaml").write_text(f"task: query\n{setting}\n")
    outcome = cli("compare", "--config", "run.yaml", "--out", "c")
    assert outcome.code == 2
    assert f"compare sets --{setting.split(':')[0]} of each run itself" in outcome.error


def test_threads_of_several_processes(cli, processes, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cli(*SHORT, "--jobs", 2)
    assert processes.launcher.environment["OMP_NUM_THREADS"] == "1"
    assert len(processes.launcher.inherited) == 1


def measure(*arguments: Any) -> list[dict[str, Any]]:
    assert held_out.main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in Path("h.jsonl").read_text().splitlines()]


def test_measuring_a_task(model):
    flags = ("--task", "query", "--problems", 32, "--out", "h.jsonl", "--use_cpu", f"3={model}")
    lines = measure(*flags)
    assert [(line["step"], line["way"], line["problems"]) for line in lines] == [
        (3, "sampled", 32),
        (3, "greedy", 32),
    ]
    assert measure(*flags) == lines  # what is there is not repeated
    assert 0 < lines[0]["accuracy"] < 1


def test_measuring_a_data_set_agrees_with_the_task(rows, model):
    """The task's own problems, asked and judged as a data set's: the greedy answers are the same."""
    announce_answers(model)
    train_flags = ("--dataset", rows, "--model_name_or_path", model, "--prompt_template", "{problem}")
    policy = ("--", *train_flags, "--max_completion_length", 40)
    lines = measure("--data", rows, "--problems", 20, "--out", "h.jsonl", "--use_cpu", f"0={model}", *policy)
    assert [line["problems"] for line in lines] == [24, 8]  # eight problems: thrice each, and once
    from tokencredit.tasks import get_task

    task = get_task("query")
    policy_model, tokenizer = task.load_policy()
    right = 0.0
    for row in task.problems(8, seed=0):
        ids = tokenizer(row["prompt"], return_tensors="pt")
        written = policy_model.generate(**ids, do_sample=False, max_new_tokens=40, pad_token_id=0)
        text = tokenizer.decode(written[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        right += task.reward([text], [row["answer"]])[0]
    assert lines[1]["accuracy"] == right / 8


def test_adapters_are_merged_into_their_base(model, tmp_path):
    """As checkpoints of LoRA training are, whatever their adapter_config.json calls the base."""
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    from tokencredit.tasks import get_task

    base, tokenizer = get_task("query").load_policy()
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(base, settings).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    edit_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="somewhere/else")
    loaded, _ = held_out.load_policy(str(tmp_path / "adapter"), str(model))
    ids = tokenizer("S1 7 + 5 ; ? S1", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, adapted(ids).logits)
        plain = get_task("query").load_policy()[0](ids).logits
    assert not torch.allclose(loaded(ids).logits, plain)


def test_measuring_what_is_not_there(capsys):
    flags = ["--task", "query", "--problems", "8", "--out", "h.jsonl", "--use_cpu", "3=./none"]
    assert held_out.main(flags) == 2
    assert "no model folder './none'" in capsys.readouterr().err


def test_prompts_of_chat_have_one_first_token(model):
    """A tokenizer that puts <s> before a text, and a template that does so too."""

    class Tokenizer:
        bos_token = "<s>"

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1]}

        def apply_chat_template(self, messages, **_: Any) -> str:
            return f"<s>user: {messages[0]['content']}"

    assert held_out._as_text([{"role": "user", "content": "2 + 2"}], Tokenizer(), {}) == "user: 2 + 2"
    assert held_out._as_text("<s>kept", Tokenizer(), {}) == "<s>kept"


@pytest.mark.slow
def test_real_runs_one_of_which_is_killed(cli):
    """Two arms, two seeds, two steps; the second run is killed after its first step, and the call with it."""
    flags = [*map(str, SHORT), "--problems", "64", "--points", "2", *map(str, SMALL)]
    flags[flags.index("--steps") + 1] = "2"
    process = subprocess.Popen([sys.executable, "-m", "tokencredit", *flags], start_new_session=True)
    saved = Path("c/oar-g/warm0-seed1/checkpoint-1/trainer_state.json")
    deadline = time.monotonic() + 300
    while not saved.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    finished = Path("c/uniform/warm0-seed1/run.json")
    written = finished.stat().st_mtime_ns
    assert not Path("c/oar-g/warm0-seed1/held_out.jsonl").exists()
    assert cli(*flags).code == 0
    assert finished.stat().st_mtime_ns == written
    for arm in ("uniform", "oar-g"):
        for seed in (1, 2):
            lines = Path(f"c/{arm}/warm0-seed{seed}/metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == [1, 2]
    found = content()
    assert found["runs"] == {"uniform": 2, "oar-g": 2}
    assert [row[0] for row in found["curves"]["held_out_sampled"]["oar-g"]] == [0, 1, 2]
    # The run that went on is the run that would have been.
    assert train.run([*_train_flags("oar-g", 1), "--output_dir", "whole"]) == 0
    for name in ("reward", "loss", "grad_norm"):
        whole, cut = (
            [json.loads(line)[name] for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
            for folder in ("whole", "c/oar-g/warm0-seed1")
        )
        assert cut == whole


def _train_flags(arm: str, seed: int) -> list[str]:
    words = Path("c", RunKey(arm, 0, seed).name, "command.txt").read_text().split()[2:]
    return words[: words.index("--output_dir")]
