"""On how many chips a program runs: ``--n-chips`` and ``--tensor-parallel`` of whatever runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.mesh.chips import Chips, open_chips
from emulator.mesh.layout import Split
from samba.distributed.mesh import processes_of_chips
from samba.errors import ArgumentError, described
from samba.support.deviations import Deviations

__all__ = ["wanted_chips"]

deviations = Deviations()


def wanted_chips(config: Mapping[str, Any], *, pef: str = "") -> Chips | None:
    """The chips that a configuration asks for.

    Under a launcher that has started several processes, which are no replicas, these are chips of
    all of them.

    Args:
        config: A ``config_dict``, or the command line that was parsed last.
        pef: Path of the PEF that they are for; several processes compare what is in it.

    Returns:
        The chips; None for one.

    Raises:
        ArgumentError: If the number of chips or what is divided among them is none that exists.
        NotEnoughChips: If this process does not see so many.
        DataParallelError: If other processes do not come, or want something else.

    Example:
        >>> wanted_chips({"n_chips": 1, "tensor_parallel": "none"}) is None
        True
    """
    count, split = _count(config.get("n_chips")), _split(config.get("tensor_parallel"))
    if count > 1 and split is Split.NONE:
        deviations.tell(
            "one-chip",
            f"--n-chips {count} without --tensor-parallel batch or weight: the program runs on one "
            "device",
        )
    if count == 1 and split is not Split.NONE:
        deviations.tell(
            "one-chip",
            f"--tensor-parallel {split} without --n-chips 2 or more: the program runs on one "
            "device",
        )
    if count == 1 or split is Split.NONE:
        return None
    processes = processes_of_chips(count, split, parallel=bool(config.get("data_parallel")))
    if processes is not None and pef:
        processes.agree_on(pef)
    return open_chips(count, split, processes)


def _count(given: Any) -> int:
    if given is None:
        return 1
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ArgumentError(
            where="--n-chips, or config_dict['n_chips']",
            found=described(given),
            wanted="a whole number, 1 or more",
        )
    return given


def _split(given: Any) -> Split:
    if given is None:
        return Split.NONE
    if not isinstance(given, str) or given not in [*Split]:
        raise ArgumentError(
            where="--tensor-parallel, or config_dict['tensor_parallel']",
            found=described(given),
            wanted=" or ".join(Split),
        )
    return Split(given)
