"""How many tokens one pass may hold, and what to do when it was too many."""

from __future__ import annotations

import torch

from tokencredit.calling import Caller

CPU_BYTES = 1 << 25  # of one layer's activations: a core gets no faster beyond what its cache holds
CPU_TOKENS = (512, 4096)  # but weights are read once a pass, and a pass has its fixed cost
DEVICE_TOKENS = 16384
LEAST_TOKENS = 64


def found_budget(caller: Caller) -> int:
    """Tokens in one pass: what keeps the device busy, if half of its free memory holds it."""
    device = caller.device
    most = DEVICE_TOKENS
    if device.type == "cpu":
        fewest, most = CPU_TOKENS
        most = max(fewest, min(most, CPU_BYTES // _bytes_in_layer(caller)))
    free = _free_bytes(device)
    if free is None:
        return most
    return max(LEAST_TOKENS, min(most, int(free / 2 / bytes_per_token(caller))))


def bytes_per_token(caller: Caller) -> int:
    """What a token of a pass with gradient keeps, about."""
    return (getattr(caller.config, "num_hidden_layers", None) or 1) * _bytes_in_layer(caller)


def _bytes_in_layer(caller: Caller) -> int:
    """Of a token: eight hidden states and four of the feed-forward's width."""
    hidden = caller.embedding_width
    wide = getattr(caller.config, "intermediate_size", None) or 4 * hidden
    wide = max(wide) if isinstance(wide, (list, tuple)) else wide
    itemsize = 2 if caller.half_precision else caller.dtype.itemsize
    return itemsize * (8 * hidden + 4 * wide)


def _free_bytes(device: torch.device) -> int | None:
    """Bytes that a pass could take; None where the device doesn't tell."""
    if device.type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return None


def ran_out(error: BaseException) -> bool:
    """Whether the error says that memory ran out."""
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, Exception) and (
        isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)
    )
