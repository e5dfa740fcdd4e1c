"""Path credit the plain way: a whole forward for each replaced token, loops and dictionaries, no shared code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import plain
import plain_sparse
from tokencredit import Rollouts


@torch.no_grad()
def similar(model: nn.Module, logits: Tensor, own: int) -> int:
    """Of the five most probable other tokens the one whose embedding is nearest in angle."""
    table = model.get_input_embeddings().weight.double()
    order = [token for token in logits.argsort(descending=True).tolist() if token != own][:5]
    angles = [torch.cosine_similarity(table[own], table[token], dim=0).item() for token in order]
    return order[angles.index(max(angles))]


def kl(clean: Tensor, changed: Tensor) -> float:
    p, q = torch.log_softmax(clean, -1), torch.log_softmax(changed, -1)
    return max(0.0, float((p.exp() * (p - q)).sum()))


def strongest(
    moved: dict[int, dict[int, float]], answer: list[int], kappa: float, focus: float
) -> dict[int, float]:
    """c of each source, from moved[source][target] in nats, by recursion from source to answer."""
    links: dict[tuple[int, int], float] = {}
    for source, row in moved.items():
        total = sum(row.values())
        for target, nats in row.items():
            if nats > 0:
                links[source, target] = nats * (nats / total) ** focus

    def most(target: int) -> float:
        return max(nats for (_, end), nats in links.items() if end == target)

    def credit(place: int) -> float:
        if place in answer:
            return 1.0
        ways = [
            nats / (most(end) + kappa) * credit(end) for (start, end), nats in links.items() if start == place
        ]
        return max(ways, default=0.0)

    return {source: credit(source) for source in moved}


@torch.no_grad()
def path(
    model: nn.Module,
    rollouts: Rollouts,
    kappa: float = 0.1,
    focus: float = 2.0,
    pad: int | None = None,
    m: int = 0,
) -> Tensor:
    importance = torch.zeros(rollouts.shape, dtype=torch.float64)
    for row in range(rollouts.shape[0]):
        ids, start, where, _ = plain.row_parts(rollouts, row)
        tokens = rollouts.reasoning_mask[row].nonzero().squeeze(1).tolist()
        if not where or not tokens:
            continue
        ids = ids[: where[-1] + 1]
        places, answer = [start + token for token in tokens], [position + 1 for position in where]
        clean = plain.full_logits(model, input_ids=torch.tensor([ids]))
        changed = {}
        for place in places:
            changed[place] = list(ids)
            changed[place][place] = similar(model, clean[place - 1], ids[place]) if pad is None else pad
        if m:
            moved = asked(model, ids, changed, clean, answer, m, kappa, focus)
        else:
            moved = {}
            for place in places:
                logits = plain.full_logits(model, input_ids=torch.tensor([changed[place]]))
                later = [target for target in [*places, *answer] if target > place]
                moved[place] = {target: kl(clean[target - 1], logits[target - 1]) for target in later}
        for place, credit in strongest(moved, answer, kappa, focus).items():
            importance[row, place - start] = credit
    return importance


def asked(
    model: nn.Module,
    ids: list[int],
    changed: dict[int, list[int]],
    clean: Tensor,
    answer: list[int],
    m: int,
    kappa: float,
    focus: float,
) -> dict[int, dict[int, float]]:
    """moved[source][target] of those that are asked for, from the answer backwards."""
    attends = plain_sparse.influence(model, ids)
    sources = sorted(changed)
    moved: dict[int, dict[int, float]] = {}
    credit = dict.fromkeys(answer, 1.0)
    done: set[int] = set()
    while True:
        wanted: dict[int, set[int]] = {}
        for target in sorted(place for place, value in credit.items() if value > 0.05 and place not in done):
            done.add(target)
            before = [source for source in sources if source < target]
            for source in sorted(before, key=lambda t: -attends[target - 1, t].item())[:m]:
                if target not in moved.get(source, {}):
                    wanted.setdefault(source, set()).add(target)
        if not wanted:
            return moved
        for source, targets in wanted.items():
            if source not in moved:
                beyond = [place for place in [*sources, *answer] if place > source + 1]
                targets |= set(sorted(beyond, key=lambda s: -attends[s - 1, source].item())[:1])
            logits = plain_sparse.changed_logits(
                model, ids, changed[source], {source, *(target - 1 for target in targets)}
            )
            targets |= {source + 1} & {*sources, *answer}
            found = {target: kl(clean[target - 1], logits[target - 1]) for target in targets}
            moved[source] = {**found, **moved.get(source, {})}
        credit = {**strongest(moved, answer, kappa, focus), **dict.fromkeys(answer, 1.0)}
