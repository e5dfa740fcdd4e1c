"""Our tasks in the harness, and its back-ends."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast

from fake_server import serving
from tokencredit.errors import UsageError
from tokencredit.evaluation.decoding import Decoding
from tokencredit.evaluation.tasks import Problem
from tokencredit.tasks import get_task

pytest.importorskip("lm_eval", reason="needs the extra eval")

from lm_eval import simple_evaluate
from lm_eval.api.model import LM

from tokencredit.evaluation.harness import build_task, local_backend, named_backend, prompts

PROBLEMS = [Problem("a", "what is 3+4?", ("7",)), Problem("b", "{{ 1/0 }} long {x}", ("8", "1"))]
TEMPLATE = "{problem}\nAnswer:"
GREEDY, SAMPLED = Decoding(), Decoding(samples=4, temperature=1.0, seed=5)


class Scripted(LM):
    """Says what it is told, in the order of the requests."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self.texts = texts

    def generate_until(self, requests, disable_tqdm=False):
        assert [request.args[1]["until"] for request in requests] == [[]] * len(requests)
        return self.texts[: len(requests)]

    def loglikelihood(self, requests):
        raise NotImplementedError

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


def test_the_harness_itself_runs_our_tasks():
    """Problem a: 7, 7, 6, none; problem b: 1, 2, 2, 8. pass@1 (1/2 + 1/2)/2; maj@4 (1 + 0)/2; no-answer 1/8."""
    said = (
        [f"\\boxed{{{answer}}}" for answer in "776"] + ["hm"] + [f"\\boxed{{{answer}}}" for answer in "1228"]
    )
    task = build_task("ours", PROBLEMS, TEMPLATE, SAMPLED)
    found = simple_evaluate(Scripted(said), tasks=[task], bootstrap_iters=0)["results"]["ours"]
    assert found["pass@1,all"] == 0.5
    assert found["maj@4,all"] == 0.5
    assert found["no-answer,all"] == 0.125


def test_prompts_are_the_template_with_the_problem():
    """Braces in a problem are its own; nothing is rendered."""
    task = build_task("ours", PROBLEMS, TEMPLATE, GREEDY)
    backend = named_backend("dummy", "m", 1, {})
    assert prompts(task, backend, chat=False) == [TEMPLATE.replace("{problem}", p.text) for p in PROBLEMS]


@pytest.fixture
def server():
    with serving() as fake:
        yield fake


@pytest.fixture(scope="module")
def local():
    """The packaged policy, with decoding settings of its own that must not count."""
    task = get_task("query")
    model, tokenizer = task.load_policy()
    ends = model.generation_config.eos_token_id
    model.generation_config = GenerationConfig(
        eos_token_id=ends, repetition_penalty=5.0, max_new_tokens=2, top_k=1
    )
    rows = task.problems(6, seed=1)
    return local_backend(model, tokenizer, 4), tokenizer, [row["prompt"] for row in rows]


def test_greedy_is_the_models_own_generation(local):
    backend, tokenizer, asked = local
    written = backend.generate(asked, GREEDY_SHORT, 0)
    for prompt, completion in zip(asked, written, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        output = backend.lm.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False
        )
        own = output[0, ids.shape[1] :]
        assert completion.text == tokenizer.decode(own, skip_special_tokens=True)
        assert (completion.finish, completion.tokens) == ("stop", len(own))
        assert own[-1] == tokenizer.eos_token_id


GREEDY_SHORT = Decoding(max_new_tokens=60)


def test_think_tags_that_are_special_tokens_stay():
    """Here the policy's own word before an answer is one; the end of the text goes as ever."""
    model, tokenizer = get_task("query").load_policy()
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary["</think>"] = vocabulary.pop("ans")
    backend_tokenizer = Tokenizer.from_str(json.dumps(content))
    tagged = PreTrainedTokenizerFast(
        tokenizer_object=backend_tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    tagged.add_special_tokens({"additional_special_tokens": ["</think>"]})
    asked = [row["prompt"] for row in get_task("query").problems(2, seed=1)]
    for each in local_backend(model, tagged, 4).generate(asked, GREEDY_SHORT, 0):
        assert each.text.count("</think>") == 1 and each.finish == "stop" and "<eos>" not in each.text


def test_each_row_gets_its_own_ending(local):
    """The back-end sorts its requests; what it wrote hot has lengths that differ, and some of it is cut off."""
    backend, tokenizer, asked = local
    mixed = [asked[0], asked[1], asked[0], *asked[2:]]
    written = backend.generate(mixed, Decoding(temperature=1.5, max_new_tokens=40), 1)
    for each in written:
        length = len(tokenizer(each.text, add_special_tokens=False)["input_ids"])
        assert (each.finish, each.tokens) in (("stop", length + 1), ("length", 40))
        assert each.finish == "stop" or length == 40
    assert {each.finish for each in written} == {"stop", "length"}
    assert len({each.tokens for each in written}) > 2


def test_sampling_follows_the_seed_alone(local):
    backend, _, asked = local
    torch.manual_seed(1)
    first = backend.generate(asked, SAMPLED_SHORT, 7)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "the global random state was used"
    assert backend.generate(asked, SAMPLED_SHORT, 7) == first
    assert backend.generate(asked, SAMPLED_SHORT, 8) != first


SAMPLED_SHORT = Decoding(temperature=1.0, max_new_tokens=60)


def test_room_is_what_the_longest_prompt_leaves(local):
    backend, tokenizer, asked = local
    longest = max(len(tokenizer(prompt)["input_ids"]) for prompt in asked)
    assert backend.room(asked) == backend.lm.model.config.max_position_embeddings - longest


@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("kind", ["local-completions", "local-chat-completions"])
def test_servers(server, kind, concurrent):
    path = "chat/completions" if "chat" in kind else "completions"
    settings = {"base_url": f"{server.url}/{path}", "num_concurrent": concurrent}
    backend = named_backend(kind, "their-model", 8, settings)
    problems = [*PROBLEMS, Problem("c", "null?", ("1",))]
    asked = prompts(build_task("ours", problems, TEMPLATE, GREEDY), backend, chat="chat" in kind)
    written = backend.generate(asked, GREEDY, 3)
    assert [(each.text, each.finish, each.tokens) for each in written] == [
        ("\\boxed{7}", "stop", 5),
        ("and so on", "length", 5),
        ("", "stop", 5),
    ]
    for payload in server.asked:
        assert payload["model"] == "their-model" and payload["temperature"] == 0
        assert payload["max_tokens"] == GREEDY.max_new_tokens and payload["stop"] == []
    if "chat" in kind:
        roles = {message["role"] for payload in server.asked for message in payload["messages"]}
        assert roles == {"user"}


def test_servers_get_the_seed(server):
    backend = named_backend("local-completions", "m", 8, {"base_url": f"{server.url}/completions"})
    (first,) = backend.generate(["what?"], SAMPLED, 11)
    (second,) = backend.generate(["what?"], SAMPLED, 12)
    assert (first.text, second.text) == ("\\boxed{11}", "\\boxed{12}")
    assert server.asked[0]["top_p"] == 1.0 and "top_k" not in server.asked[0]


def test_a_failing_server_is_a_line(server):
    server.broken = True
    settings = {"base_url": f"{server.url}/completions", "max_retries": 1}
    backend = named_backend("local-completions", "m", 8, settings)
    with pytest.raises(UsageError, match="the back-end local-completions failed: 500"):
        backend.generate(["what?"], GREEDY, 0)


def test_back_ends_that_are_not_there():
    with pytest.raises(UsageError, match="no back-end 'nosuch' here; use hf, vllm"):
        named_backend("nosuch", "m", 1, {})
    with pytest.raises(UsageError, match="needs --backend-args base_url="):
        named_backend("local-completions", "m", 1, {})
    with pytest.raises(UsageError, match="cannot set up the back-end local-completions"):
        named_backend("local-completions", "m", 1, {"base_url": "http://x", "max_length": "much"})


def test_unknown_endings(local):
    backend = named_backend("dummy", "m", 1, {})
    (written,) = backend.generate(["what?"], GREEDY, 0)
    assert (written.finish, written.tokens) == (None, None)
    assert backend.room(["what?"]) is None and not backend.has_chat_template
