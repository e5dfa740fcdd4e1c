"""The tiny policy of the built-in tasks: its tokenizer, its model, and its accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from .arithmetic import ASK, DIGITS, END_OF_STEP, EQUALS, FILLERS, HELD_OUT, LABELS, MARKER, OPERATORS

if TYPE_CHECKING:
    from . import Task

PAD, UNKNOWN, EOS = "<pad>", "<unk>", "<eos>"
VOCABULARY = (PAD, UNKNOWN, EOS, *DIGITS, *OPERATORS, EQUALS, END_OF_STEP, ASK, MARKER, *LABELS, *FILLERS)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer: one token a word, nothing added at either end, decoded with single spaces."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=EOS,
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def build_model(seed: int) -> LlamaForCausalLM:
    """A fresh Llama of about 0.2M parameters, initialised from the seed; the global RNG is left as it was."""
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=VOCABULARY.index(EOS),
        pad_token_id=VOCABULARY.index(PAD),
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


@torch.no_grad()
def accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    n: int = 512,
    seed: int = 0,
    temperature: float = 1.0,
    batch_size: int = 256,
) -> float:
    """Share of ``n`` held-out problems that the model answers rightly, sampled through ``generate``.

    Args:
        model: a causal language model; its mode and the global RNG are left as they were.
        tokenizer: the model's tokenizer; it must have a pad token.
        task: the task whose held-out problems (``task.problems(n, HELD_OUT + seed)``) are asked.
        n: number of problems.
        seed: draws the problems and the samples; the same seed gives the same figure.
        temperature: of the sampling; 0 takes the likeliest token each time.
        batch_size: problems generated at once.
    """
    rows = task.problems(n, HELD_OUT + seed)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    training, right = model.training, 0.0
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in range(0, n, batch_size):
            batch = rows[start : start + batch_size]
            prompts = tokenizer(
                [row["prompt"] for row in batch], return_tensors="pt", padding=True, padding_side="left"
            )
            ids = cast(Any, model).generate(
                input_ids=prompts["input_ids"].to(model.device),
                attention_mask=prompts["attention_mask"].to(model.device),
                max_new_tokens=task.preset["max_completion_length"],
                pad_token_id=tokenizer.pad_token_id,
                **(sampling if temperature > 0 else {"do_sample": False}),
            )
            texts = tokenizer.batch_decode(ids[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
            right += sum(task.reward(texts, [row["answer"] for row in batch]))
    model.train(training)
    return right / n
