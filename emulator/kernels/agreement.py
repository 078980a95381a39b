"""Replicas take the same kernels: each could choose others, by its own processor."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from emulator.kernels.proof import Call, onednn_is_good
from emulator.kernels.rules import PLAIN, choose_in_this_process, present_rule, rule_text

__all__ = ["kernels_here", "take_the_same_kernels"]

_LOG = logging.getLogger(__name__)


def kernels_here() -> str:
    """What this process chooses kernels by, in a word: equal words, equal choices.

    Returns:
        The rule's name with a digest of its points, and what oneDNN is used for.
    """
    rule = present_rule()
    digest = hashlib.sha256(rule_text(rule, {}).encode()).hexdigest()[:8]
    calls = ((Call.PRODUCT, "float32"), (Call.PRODUCT, "bfloat16"), (Call.CONVOLUTION, "float32"))
    good = [f"{dtype} {call.value}" for call, dtype in calls if onednn_is_good(call, dtype)]
    return f"{rule.name} {digest}, oneDNN for {' and '.join(good) or 'nothing'}"


def take_the_same_kernels(said: Sequence[str]) -> bool:
    """Take the plain kernels from now on where the processes of a job would choose differently.

    Args:
        said: :func:`kernels_here` of each process.

    Returns:
        Whether they chose alike; if not, that is a line in the log.

    Example:
        >>> take_the_same_kernels([kernels_here()] * 2)
        True
    """
    if len(set(said)) == 1:
        return True
    rows = "; ".join(f"rank {rank}: {what}" for rank, what in enumerate(said))
    _LOG.warning("replicas would take different kernels (%s): all take the plain ones", rows)
    choose_in_this_process(PLAIN)
    return False
