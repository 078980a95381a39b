"""ElasticSampler: samples dealt to replicas, from a place that their number does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from samba.errors import ArgumentError, described, literal
from samba.support.given import whole_of
from samba.utils.misc import get_rank, get_world_size, job_of_replicas

__all__ = ["ElasticSampler"]

_STATE = ("epoch", "position", "length", "shuffle", "seed")


class ElasticSampler(Sampler[int]):
    """Deals the samples of a data set to replicas, and goes on with the rest after a restart.

    It is a ``torch.utils.data.DistributedSampler`` whose place in the epoch is counted in samples
    of the whole job: after a restart with fewer or more replicas, what is left of the epoch is
    dealt again, and no sample is dealt twice or left out. Samples are dealt in batches, as a
    PEF takes them: in each step rank 0 gets the next ``batch_size`` samples, then rank 1, and so
    on. Only what was trained counts, whatever a loader has fetched ahead: call :meth:`advance`
    after each ``samba.session.run``.

    Args:
        dataset: The data set, or anything else with a length.
        batch_size: Samples of one replica in a step, as the ``DataLoader`` is given.
        num_replicas: How many replicas there are; those of this job if None.
        rank: Number of this one; that of this process if None.
        shuffle: Whether each epoch has an order of its own, drawn from ``seed`` and its number.
        seed: The same on all replicas.
        drop_last: Whether samples at the end of an epoch that fill no step are left out.
        even_batches: Whether all replicas get as many batches. Without ``drop_last``, the end of an
            epoch is then filled up with its first samples, as torch does. With False no sample is
            dealt twice, and replicas may get one batch more or less: train within
            ``samba.session.join()``. A batch that is not full is then the last of its replica; with
            ``drop_last`` it is left out.

    Attributes:
        epoch: The epoch.
        position: Samples of it that the job has trained.

    Raises:
        ArgumentError: If an argument cannot be.

    Example:
        >>> sampler = ElasticSampler(range(8), 2, num_replicas=2, rank=0, shuffle=False)
        >>> list(sampler)
        [0, 1, 4, 5]
        >>> sampler.advance()  # both ranks have trained a batch
        >>> alone = ElasticSampler(range(8), 2, num_replicas=1, rank=0, shuffle=False)
        >>> alone.load_state_dict(sampler.state_dict())
        >>> list(alone)
        [4, 5, 6, 7]
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        even_batches: bool = True,
    ) -> None:
        count = get_world_size() if num_replicas is None else num_replicas
        number = get_rank() if rank is None else rank
        self.batch_size = whole_of(batch_size, "ElasticSampler(batch_size)", least=1)
        self.num_replicas = whole_of(count, "ElasticSampler(num_replicas)", least=1)
        self.rank = whole_of(number, "ElasticSampler(rank)", least=0)
        self.seed = whole_of(seed, "ElasticSampler(seed)", least=0)
        self.shuffle, self.length = bool(shuffle), len(dataset)
        self.drop_last, self.even_batches = bool(drop_last), bool(even_batches)
        if self.rank >= self.num_replicas:
            raise ArgumentError(
                where="ElasticSampler(rank)",
                found=f"rank {self.rank} of {self.num_replicas}",
                wanted="a rank below the number of replicas",
            )
        self._of_job = num_replicas is None and rank is None
        self.epoch = self.position = 0

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the one under way goes on where it is.

        Replicas of a job, whose sampler was given neither ``num_replicas`` nor ``rank``, all call
        this, and compare where they are.

        Args:
            epoch: Its number.

        Raises:
            ArgumentError: If it is none.
            DataParallelError: If other replicas are somewhere else.
        """
        epoch = whole_of(epoch, "ElasticSampler.set_epoch(epoch)", least=0)
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0
        job = job_of_replicas("utils.ElasticSampler") if self._of_job else None
        if job is not None:
            job.agree(
                "ElasticSampler.set_epoch",
                {name: str(value) for name, value in self.state_dict().items()},
                advice="All ranks must sample the same data and begin an epoch together.",
            )

    def advance(self, steps: int = 1) -> None:
        """Note that all replicas have trained a batch each; the last one begins the next epoch.

        Args:
            steps: So many batches each.
        """
        self.position += steps * self._step
        if not self._mine(self.length - self.position):
            self.epoch, self.position = self.epoch + 1, 0

    @property
    def _step(self) -> int:
        return self.batch_size * self.num_replicas

    def _mine(self, left: int) -> int:
        """How many of the samples that are left this replica gets."""
        steps, rest = divmod(max(left, 0), self._step)
        size = self.batch_size
        if self.even_batches:
            return size * (steps + (rest > 0 and not self.drop_last))
        more = min(max(rest - self.rank * size, 0), size)
        return size * steps + (0 if self.drop_last and more < size else more)

    def __len__(self) -> int:
        """Samples that this replica gets in what is left of the epoch."""
        return self._mine(self.length - self.position)

    def __iter__(self) -> Iterator[int]:
        """Deals what is left of the epoch."""
        order = self._order()
        left = order[self.position :]
        step, size = self._step, self.batch_size
        if self.even_batches and not self.drop_last and len(left) % step:
            missing = step - len(left) % step
            left += (order * (missing // len(order) + 1))[:missing]
        count = self._mine(self.length - self.position)
        mine = (
            index
            for start in range(self.rank * size, len(left), step)
            for index in left[start : start + size]
        )
        return (index for index, _ in zip(mine, range(count), strict=False))

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Where the job is in its data: for a checkpoint, the same on all replicas."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a job was, with any number of replicas.

        Args:
            state: What :meth:`state_dict` has given.

        Raises:
            ArgumentError: If it is none, or of another data set, order or seed.
        """
        where = "ElasticSampler.load_state_dict(state)"
        good = isinstance(state, Mapping) and all(name in state for name in _STATE)
        if not good or any(
            type(state[name]) is not int or state[name] < 0 for name in ("epoch", "position")
        ):
            raise ArgumentError(
                where=where, found=described(state), wanted=f"a dict of {', '.join(_STATE)}"
            )
        for name in ("length", "shuffle", "seed"):
            if state[name] != getattr(self, name):
                raise ArgumentError(
                    where=where,
                    found=f"{name} {literal(state[name])}",
                    wanted=f"{name} {getattr(self, name)!r}, as of this data set",
                    hint="A position is valid only for the same data in the same order.",
                )
        self.epoch, self.position = state["epoch"], state["position"]
        if not self._mine(self.length - self.position):
            self.epoch, self.position = self.epoch + 1, 0
