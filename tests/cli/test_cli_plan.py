"""`tokencredit plan`, and the ready configurations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from cli_helpers import announce_answers
from transformers import Qwen2Config, Qwen2ForCausalLM

from tokencredit.cli import plan as command
from tokencredit.cli.arguments import parse_arguments
from tokencredit.configs import CONFIGS, find_config
from tokencredit.tasks import get_task

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
QWEN_7B = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """A folder with the config of Qwen2.5-7B and no weights."""
    Qwen2Config(**QWEN_7B).save_pretrained(tmp_path / "qwen")
    return tmp_path / "qwen"


def test_a_model_that_fits(cli, qwen):
    outcome = cli(
        "plan", "--model", qwen, "--memory", 80, "--gpus", 8, "--sharding", "zero2", "--credit", "oar-g"
    )
    assert outcome.code == 0
    for word in (
        "7.62 B parameters",
        "generation",
        "attribution",
        "training",
        "oar-p, exact",
        "Everything fits.",
    ):
        assert word in outcome.out


def test_what_does_not_fit_and_what_to_change(cli, qwen):
    """28 GB of float32 weights, 56 of moments: the advice, given back as flags, fits."""
    base = ("plan", "--model", qwen / "config.json", "--memory", 80, "--gpus", 8)
    outcome = cli(*base, "--json", "plan.json")
    assert outcome.code == 0
    assert "Does not fit: training takes" in outcome.out and "Change to --" in outcome.out
    numbers = json.loads(Path("plan.json").read_text())
    assert not numbers["fits"] and numbers["fits_with_changes"]
    assert 0 < numbers["attribution_share"] < 1
    assert numbers["held"]["weights"] == 4 * numbers["shape"]["parameters"]
    flags = [text for name, value in numbers["changes"].items() for text in (f"--{name}", str(value))]
    again = cli(*base, *flags)
    assert "Everything fits." in again.out


def test_flags_of_train_and_their_rules(cli, qwen):
    """The batch of a generation, half precision by default, and none on a CPU."""

    def settings(*flags) -> dict:
        outcome = cli("plan", "--model", qwen, "--memory", 80, "--gpus", 4, *flags, "--json", "plan.json")
        assert outcome.code == 0, outcome.err
        return json.loads(Path("plan.json").read_text())["settings"]

    assert settings()["bf16"] is True
    assert settings("--use-cpu")["bf16"] is False
    assert settings("--generation_batch_size", 128)["steps_per_generation"] == 4
    assert settings("--dtype", "bfloat16", "--credit_m", 3)["credit_m"] == 3
    default = settings("--credit", "oar-p")
    assert (default["credit_m"], default["credit_counterfactual"]) == (8, "pad")
    lora = settings("--use_peft", "--lora_r", 4, "--lora_target_modules", "q_proj", "v_proj")
    assert lora["lora_target_modules"] == ["q_proj", "v_proj"]


def test_rates_of_the_machine_in_place_of_guesses(cli, qwen):
    """Twice the rate of decoding, half the time of generation but for its prompts."""
    seconds = []
    for rate in (1000, 2000):
        flags = ("--memory", 800, "--prefill_rate", 1e9, "--decode_rate", rate, "--json", "plan.json")
        assert cli("plan", "--model", qwen, *flags).code == 0
        seconds.append(json.loads(Path("plan.json").read_text())["parts"]["generation"]["seconds"])
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=1e-3)


def test_built_in_tasks(cli):
    outcome = cli("plan", "--task", "query", "--memory", 8, "--use_cpu", "--json", "plan.json")
    assert outcome.code == 0
    numbers = json.loads(Path("plan.json").read_text())
    assert numbers["settings"]["per_device_train_batch_size"] == 128
    assert numbers["settings"]["gradient_checkpointing"] is False
    assert numbers["shape"]["parameters"] == sum(
        parameter.numel() for parameter in get_task("query").load_policy()[0].parameters()
    )


def test_a_strategy_whose_cost_is_not_known_is_not_called_free(cli, qwen):
    outcome = cli("plan", "--model", qwen, "--memory", 80, "--credit", "sibling")
    assert outcome.code == 2
    assert "plan does not know what credit=sibling costs" in outcome.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--memory", "80"], "no model"),
        (["--model", "M"], "--memory"),
        (["--model", "M", "--memory", "80", "--gpu", "8"], "unknown setting --gpu"),
        (["--model", "M", "--memory", "0"], "--memory must be a number above 0"),
        (["--model", "M", "--memory", "80", "--sharding", "fsdp3"], "--sharding must be one of ddp, fsdp"),
        (["--model", "M", "--memory", "80", "--credited", "1.5"], "--credited must lie in"),
        (
            ["--model", "M", "--memory", "80", "--answer_tokens", "9999"],
            "leave nothing of --max_completion_length",
        ),
        (["--model", "M", "--memory", "80", "--num_generations", "5"], "not a multiple of num_generations 5"),
        (["--model", "M", "--memory", "80", "--load_in_4bit"], "no quantised weights"),
        (["--model", "M", "--memory", "80", "--gpus", "0"], "--gpus must be at least 1"),
        (["--model", "./nowhere", "--memory", "80"], "no model folder"),
        (["--model", "M", "--memory", "80", "--config", "qwen3"], "ready ones are qwen2.5-7b-oar-g"),
    ],
)
def test_what_can_be_mended(cli, qwen, flags, says):
    outcome = cli("plan", *[str(qwen) if flag == "M" else flag for flag in flags])
    assert outcome.code == 2
    assert says in outcome.error


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"num_hidden_layers": 20_000}, "num_hidden_layers 20000; a plan takes at most 10000"),
        ({"num_hidden_layers": 0}, "no num_hidden_layers"),
        ({"vocab_size": -5}, "no vocab_size"),
        ({"hidden_size": 65}, "hidden_size 65, which is no multiple of its num_attention_heads 4"),
        (
            {"num_key_value_heads": 3},
            "num_attention_heads 4, which is no multiple of its num_key_value_heads 3",
        ),
    ],
)
def test_sizes_that_no_model_has(cli, tmp_path, changed, says):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"model_type": "qwen2", **sizes, **changed}))
    outcome = cli("plan", "--model", path, "--memory", "80")
    assert outcome.code == 2
    assert says in outcome.error


def test_the_documentation_names_every_flag():
    section = DOCS.read_text().split("\n## plan\n")[1].split("\n## ")[0].splitlines()
    for action in command.build_parser()._actions:
        names = [f"`{name}`" for name in action.option_strings if "-" not in name[2:]]
        if action.dest != "help":
            assert f"- {', '.join(names)}: {action.help}" in section


# --- ready configurations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_what_the_paper_says(name):
    """Models, strategies and gate of arXiv 2601.07408, whatever else a file sets."""
    arguments = parse_arguments(["--config", name])
    training = arguments.training
    assert arguments.model.model_name_or_path == (
        "Qwen/Qwen2.5-Math-7B" if "math" in name else "Qwen/Qwen2.5-7B"
    )
    assert (training.credit_q, training.credit_floor, training.credit_beta) == (0.25, 0.1, 1.0)
    assert (training.credit_threshold, training.credit_mass) == ("quantile", True)
    if name.endswith("oar-g"):
        assert (training.credit, training.credit_outcome) == ("oar-g", "answer_mean")
        assert (training.credit_gradient, training.credit_noise_std, training.credit_draws) == (
            "noise",
            1e-3,
            1,
        )
    else:
        assert (training.credit, training.credit_outcome) == ("oar-p", "last")
        assert (training.credit_counterfactual, training.credit_m) == ("pad", 0)


def test_names_and_files(tmp_path):
    assert [f"qwen2.5-{model}7b-oar-{form}" for model in ("", "math-") for form in ("g", "p")] == CONFIGS
    assert yaml.safe_load(find_config(CONFIGS[0]).read_text())["credit"] == "oar-g"
    # A file of one's own wins over ours of the same name.
    Path(CONFIGS[0]).write_text("task: query\n")
    assert parse_arguments(["--config", CONFIGS[0]]).run.task == "query"


@pytest.mark.parametrize("name", CONFIGS)
def test_they_fit_the_machine_that_they_name(cli, qwen, name):
    machine = ("--gpus", 8, "--sharding", "zero2", "--memory", 80)
    outcome = cli("plan", "--config", name, "--model", qwen, *machine)
    assert outcome.code == 0
    assert "Everything fits." in outcome.out


@pytest.fixture
def small_qwen(tmp_path: Path) -> Path:
    """A tiny random Qwen2 laid out as the large one, with a tokenizer that writes answers."""
    folder = Path(shutil.copytree(get_task("query").policy_path(), tmp_path / "small"))
    announce_answers(folder)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    sizes = {"hidden_size": 56, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 7}
    config = Qwen2Config(
        **{**QWEN_7B, **sizes, "num_key_value_heads": 1, "vocab_size": len(vocabulary)},
        pad_token_id=vocabulary["<pad>"],
        eos_token_id=vocabulary["<eos>"],
        bos_token_id=None,
    )
    (folder / "config.json").unlink()
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_of_each_scaled_down(cli, small_qwen, rows, name):
    """Everything as the file says but for model, data, sizes and vLLM."""
    sizes = {
        "model_name_or_path": small_qwen,
        "dataset_name": rows,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 1,
        "use_vllm": "false",
        "reward_funcs": "lengths.of",
        "prompt_template": "{problem}",
        "output_dir": "run",
    }
    Path("lengths.py").write_text(
        "def of(completion_ids, **_):\n    return [float(sum(ids)) for ids in completion_ids]\n"
    )
    flags = [text for key, value in sizes.items() for text in (f"--{key}", value)]
    outcome = cli("train", "--config", name, *flags)
    assert outcome.code == 0, outcome.err
    (line,) = [json.loads(text) for text in Path("run/metrics.jsonl").read_text().splitlines()][-1:]
    assert line["loss"] == line["loss"]  # a number
    assert json.loads(Path("run/run.json").read_text())["credit"] == name[-5:]
