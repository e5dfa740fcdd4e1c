"""lm-evaluation-harness: our tasks as its tasks, and its back-ends as what writes completions.

This is the one module that imports the harness. Its own loop over requests cannot take up sampled completions where a
killed run left off, so ours (``run``) asks the back-end for one batch after another; the tasks work in both.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook
from lm_eval.api.registry import get_model
from lm_eval.api.task import ConfigurableTask

from tokencredit.answers import reading_tags
from tokencredit.errors import UsageError
from tokencredit.evaluation.decoding import Completion, Decoding
from tokencredit.evaluation.grading import grade, votes
from tokencredit.evaluation.metrics import Scored, majority_at
from tokencredit.evaluation.tasks import Problem

HOSTED = ("local-completions", "local-chat-completions", "openai-completions", "openai-chat-completions")
"""Back-ends that send text to a server, which alone knows the model."""
SEEDED = ("vllm", *HOSTED)
"""Back-ends that take a seed with each request."""


def build_task(
    name: str, problems: Sequence[Problem], template: str, decoding: Decoding, *, thinking: bool = False
) -> ConfigurableTask:
    """A task of the harness: the prompts, and our verdicts as its metrics ``pass@1``, ``maj@n``, ``no-answer``.

    Args:
        name: of the task.
        problems: see `tokencredit.evaluation.tasks.load`.
        template: the prompt, with the problem in place of ``{problem}``.
        decoding: how completions are written; `samples` completions a problem are judged together.
        thinking: whether prompts end in an open think block.
    """
    by_id = {problem.id: problem for problem in problems}

    def process_results(doc: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
        verdicts = [grade(text, by_id[doc["id"]], thinking=thinking) for text in results[0]]
        classes = votes([verdict.answer for verdict in verdicts])
        scored = [Scored(v.verdict == "right", c) for v, c in zip(verdicts, classes, strict=True)]
        return {
            "pass@1": sum(s.right for s in scored) / len(scored),
            f"maj@{len(scored)}": majority_at(scored, len(scored)),
            "no-answer": sum(s.vote is None for s in scored) / len(scored),
        }

    rows = [{"id": p.id, "problem": p.text, "gold": p.golds[0]} for p in problems]
    metrics = {"pass@1": True, f"maj@{decoding.samples}": True, "no-answer": False}
    return ConfigurableTask(
        config={
            "task": name,
            "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
            "test_split": "test",
            "doc_to_text": lambda doc: template.replace("{problem}", doc["problem"]),
            "doc_to_target": lambda doc: doc["gold"],
            "process_results": process_results,
            "generation_kwargs": decoding.settings(),
            "repeats": decoding.samples,
            "filter_list": [{"name": "all", "filter": [{"function": "take_first_k", "k": decoding.samples}]}],
            "metric_list": [
                {"metric": metric, "aggregation": "mean", "higher_is_better": better}
                for metric, better in metrics.items()
            ],
            "num_fewshot": 0,
        }
    )


def prompts(task: ConfigurableTask, backend: Backend, chat: bool) -> list[Any]:
    """The prompt of each problem, as the back-end takes it: in its chat template, as messages, or plain.

    Raises:
        UsageError: the back-end has no chat template.
    """
    lm = backend.lm
    try:
        task.build_all_requests(
            apply_chat_template=chat, chat_template=lm.apply_chat_template if chat else None
        )
    except NotImplementedError as error:
        raise UsageError(
            f"the back-end {backend.name} has no chat template; evaluate with --no-chat"
        ) from error
    found = [instance.args[0] for instance in task.instances]
    if not isinstance(found[0], str | tuple):  # neither text nor the harness's own form of messages
        raise UsageError(
            "--backend_args tokenizer_backend=remote does not go with chat messages; leave it out"
        )
    return found


class Backend:
    """A model of the harness that also tells how each completion ended.

    Attributes:
        name: what the harness calls the back-end.
        lm: the harness's model.
        seeded: whether it takes a seed with each request.
    """

    def __init__(self, name: str, lm: LM) -> None:
        self.name, self.lm, self.seeded = name, lm, name in SEEDED
        self._endings = _Endings()
        lm.set_cache_hook(self._endings)
        for method, reader in _READERS.items():
            if hasattr(lm, method):
                setattr(lm, method, self._endings.reading(getattr(lm, method), reader, lm))

    def generate(self, asked: Sequence[Any], decoding: Decoding, seed: int) -> list[Completion]:
        """One completion for each prompt, in order; the same prompts and seed give the same (a server's own
        randomness aside). The global random state is left as it was.

        Raises:
            UsageError: the back-end failed; the message has its reason.
        """
        import torch

        settings = decoding.settings()
        if decoding.temperature > 0 and self.seeded:
            settings["seed"] = seed
        if self.name == "hf" and decoding.temperature > 0:
            settings["top_k"] = 0
        requests = [Instance("generate_until", {}, (prompt, dict(settings)), 0) for prompt in asked]
        self._endings.clear()
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                texts = self.lm.generate_until(requests, disable_tqdm=True)
        except Exception as error:  # whatever a model, a server or the way to it raises
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(f"the back-end {self.name} failed: {reason}") from error
        if len(texts) != len(asked):
            raise UsageError(
                f"the back-end {self.name} gave {len(texts)} completions for {len(asked)} prompts"
            )
        return [
            Completion(text, *self._endings.take(prompt)) for prompt, text in zip(asked, texts, strict=True)
        ]

    @property
    def has_chat_template(self) -> bool:
        """Whether the back-end's tokenizer comes with one; a back-end without a tokenizer here has none."""
        try:
            return bool(self.lm.tokenizer.chat_template)
        except Exception:  # no tokenizer, or one that cannot be loaded when it is first asked for
            return False

    def room(self, asked: Sequence[Any]) -> int | None:
        """How many tokens a completion may have after the longest prompt; None where that is not known here."""
        if self.name not in ("hf", "vllm"):
            return None
        return int(self.lm.max_length) - max(len(self.lm.tok_encode(prompt)) for prompt in asked)


Ending = tuple[str | None, int | None]


class _Endings(CacheHook):
    """Collects how completions ended.

    A back-end reorders its requests, but hands each prompt with its text to the cache hook in the order in which its
    generations came: that is where the two meet.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.clear()

    def clear(self) -> None:
        self._read: deque[Ending] = deque()
        self._known: dict[Any, deque[Ending]] = defaultdict(deque)

    def reading(self, method: Any, reader: Any, lm: LM) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            output = method(*args, **kwargs)
            output, endings = reader(output, lm, args, kwargs)
            self._read.extend(endings)
            return output

        return read

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        if self._read:
            self._known[req[0]].append(self._read.popleft())

    def take(self, prompt: Any) -> Ending:
        known = self._known.get(prompt)
        return known.popleft() if known else (None, None)


def _read_generated(output: Any, lm: LM, args: Any, kwargs: Any) -> tuple[Any, list[Ending]]:
    """Of `_model_generate`: rows of token ids after the padded prompts (hf), or vllm's results."""
    if not hasattr(output, "tolist"):
        results = [each.outputs[0] for each in output]
        return output, [(each.finish_reason, len(each.token_ids)) for each in results]
    start = (kwargs["context"] if "context" in kwargs else args[0]).shape[1]
    ends = lm.model.generation_config.eos_token_id
    stops = {lm.eot_token_id, *(ends if isinstance(ends, list) else [ends])}
    endings: list[Ending] = []
    for row in output[:, start:].tolist():
        length = next((i + 1 for i, token in enumerate(row) if token in stops), None)
        endings.append(("length", len(row)) if length is None else ("stop", length))
    return output, endings


def _read_parsed(output: Any, lm: LM, args: Any, kwargs: Any) -> tuple[Any, list[Ending]]:
    """Of `parse_generations`: the texts of a server's replies; a text of null is an empty one."""
    replies = kwargs["outputs"] if "outputs" in kwargs else args[0]
    endings: list[Ending] = []
    for reply in replies if isinstance(replies, list) else [replies]:
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        alone = (reply.get("usage") or {}).get("completion_tokens") if len(choices) == 1 else None
        endings += [(choice.get("finish_reason"), alone) for choice in choices]
    return ["" if text is None else text for text in output], endings


_READERS = {"_model_generate": _read_generated, "parse_generations": _read_parsed}


def local_backend(model: Any, tokenizer: Any, batch_size: int, **arguments: Any) -> Backend:
    """A transformers model in this process. Decoding settings that came with the model are put aside."""
    from lm_eval.models.huggingface import HFLM
    from transformers import GenerationConfig

    own = model.generation_config
    ends = tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
    try:
        lm = HFLM(model, tokenizer=tokenizer, batch_size=batch_size, **arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"cannot set up the back-end hf: {error}") from error
    with_tags, decode = reading_tags(tokenizer), lm.tok_decode
    if with_tags is not None:  # the harness would take think tags out with the other special tokens
        lm.tok_decode = lambda tokens, skip_special_tokens=True: (
            with_tags(tokens) if skip_special_tokens else decode(tokens, skip_special_tokens=False)
        )
    return Backend("hf", lm)


def named_backend(name: str, model: str, batch_size: int, arguments: Mapping[str, Any]) -> Backend:
    """Another back-end of the harness: vllm, an OpenAI-compatible server, or any that it knows by name.

    Raises:
        UsageError: no such back-end, a package of its is missing, a server without its address, or it does not start.
    """
    try:
        kind = get_model(name)
    except Exception as error:  # a back-end registers itself when its libraries can be imported
        needed = "; vllm needs the package vllm" if name == "vllm" else ""
        known = f"hf, vllm, {', '.join(HOSTED[:2])}"
        raise UsageError(f"the harness has no back-end {name!r} here{needed}; use {known}") from error
    given: dict[str, Any] = {"pretrained": model, "batch_size": "auto" if name == "vllm" else batch_size}
    if name in HOSTED:
        if name.startswith("local") and not arguments.get("base_url"):
            raise UsageError(f"the back-end {name} needs --backend-args base_url=http://HOST:PORT/v1/...")
        given = {"model": model, "batch_size": 1, "tokenizer_backend": "none", "tokenized_requests": False}
        given["max_length"] = 2**30  # the server knows how long a text may be; nothing is to be cut off here
    try:
        return Backend(name, kind.create_from_arg_obj({**given, **arguments}))
    except (Exception, SystemExit) as error:  # constructors load models and libraries, and raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"cannot set up the back-end {name}: {reason}") from error
