"""Which part of a completion is its answer, and is it right?

One rule set serves the rewards, the token spans and evaluation: `extract` finds the answer's characters, `verify`
judges exactly these. Text alone decides where it can (exact); what needs algebra goes to math-verify in worker
processes with a time and a memory limit, which are killed and replaced when they exceed them, so that no
completion can hang or bloat a training run. Nothing here imports torch or transformers.
"""

from __future__ import annotations

from tokencredit.answers.extraction import Answer, extract, opens_thinking
from tokencredit.answers.rewards import (
    accuracy_reward,
    accuracy_reward_for,
    format_reward,
    format_reward_for,
    reading_tags,
    template_opens_thinking,
)
from tokencredit.answers.verdicts import Verdict, check_gold, verify, verify_all

__all__ = [
    "Answer",
    "Verdict",
    "accuracy_reward",
    "accuracy_reward_for",
    "check_gold",
    "extract",
    "format_reward",
    "format_reward_for",
    "opens_thinking",
    "reading_tags",
    "template_opens_thinking",
    "verify",
    "verify_all",
]
