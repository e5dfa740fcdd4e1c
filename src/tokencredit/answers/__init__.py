"""Which part of a completion is its answer, and is it right?

One rule set serves the rewards and the token spans: `extract` finds the answer's characters, `verify` judges
exactly these. Text alone decides where it can (exact); what needs algebra goes to math-verify in a worker
process with a time and a memory limit, which is killed and replaced when it exceeds them, so that no
completion can hang or bloat a training run. Nothing here imports torch or transformers.
"""

from __future__ import annotations

from tokencredit.answers.extraction import Answer, extract, opens_thinking
from tokencredit.answers.verdicts import Verdict, accuracy_reward, check_gold, verify

__all__ = ["Answer", "Verdict", "accuracy_reward", "check_gold", "extract", "opens_thinking", "verify"]
