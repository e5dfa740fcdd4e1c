"""How completions are asked for, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decoding:
    """How completions are written.

    Attributes:
        samples: completions a problem.
        temperature: 0 takes the likeliest token each time.
        top_p: share of probability that is sampled from.
        max_new_tokens: at which a completion is cut off.
        seed: of all sampling.
    """

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 2048
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """As the harness takes them; its own stop texts are off, a completion ends with its end of turn."""
        chosen: dict[str, Any] = {"until": [], "max_gen_toks": self.max_new_tokens}
        if self.temperature == 0:
            return {**chosen, "do_sample": False, "temperature": 0.0}
        return {**chosen, "do_sample": True, "temperature": self.temperature, "top_p": self.top_p}


@dataclass(frozen=True)
class Completion:
    """What a back-end wrote: the text, why it ended ("stop", "length", None: unknown), and its tokens if known."""

    text: str
    finish: str | None
    tokens: int | None
