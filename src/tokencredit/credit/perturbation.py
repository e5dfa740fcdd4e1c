"""OAR-P: how far the outcome moves when one token is replaced (arXiv 2601.07408, section 3, counterfactual)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.options import Options
from tokencredit.credit.outcome import divergence

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

_CANDIDATES = 5


def oar_p(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t = |D(clean, with token t replaced)| in nats, for every reasoning token t.

    The counterfactual is the pad token (published) or another, see `replacement`.
    With m > 0 only the m later reasoning tokens that attend most to token t are computed anew, and what follows the
    reasoning; the others keep their clean keys and values.
    """
    mode = options.outcome or "last"
    replacements = counterfactuals(policy, rollouts, options)

    def importance(batch: Batch) -> Tensor:
        found = torch.zeros(batch.reasoning.shape, dtype=policy.dtype, device=batch.reasoning.device)
        rows, tokens = batch.reasoning.nonzero(as_tuple=True)
        new_ids = replacements[batch.rows[rows], tokens]
        for part, clean, changed in policy.perturbed(batch, rows, tokens, new_ids, options.m):
            found[rows[part], tokens[part]] = divergence(clean, changed, mode).abs().to(found.dtype)
        return found

    return Credit(importance=policy.map(rollouts, mode, importance))


def counterfactuals(policy: Policy, rollouts: Rollouts, options: Options) -> Tensor:
    """(B, T) what each token would be replaced by, by default the pad token."""
    kind = options.counterfactual or "pad"
    if kind == "pad":
        pad = policy.pad_token_id if options.pad_token_id is None else options.pad_token_id
        return torch.full_like(rollouts.completion_ids, pad)
    return policy.per_token(rollouts, lambda logits, ids: replacement(policy, kind, logits, ids))


def replacement(policy: Policy, kind: str, logits: Tensor, ids: Tensor) -> Tensor:
    """What stands in for tokens that the policy could have written otherwise.

    Args:
        kind: `alternative`, the most probable other token; `similar`, of the five most probable others the one whose
            input embedding is nearest in angle: a digit for a digit, so that the text stays what it was in form.
        logits, ids: (n, V) the tokens' predictions, (n,) the tokens.

    Returns:
        (n,) ids.
    """
    others = logits.scatter(-1, ids[:, None], -torch.inf)
    if kind == "alternative":
        return others.argmax(-1)
    few = min(_CANDIDATES, others.shape[-1] - 1)
    return policy.most_similar(ids, others.topk(few, dim=-1).indices)
