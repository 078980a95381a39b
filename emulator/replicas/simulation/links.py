"""Time of an all-reduce over links with a latency and a bandwidth (the alpha-beta model)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from pef_schema.errors import SambaError


class BadLink(SambaError):
    """A link or a cluster cannot be as it was described.

    Args:
        where: The setting.
        found: Its value.
        wanted: What it may be.
    """

    def __init__(self, *, where: str, found: object, wanted: str) -> None:
        self.where, self.found, self.wanted = where, found, wanted
        super().__init__(f"{where}: found {found}, wanted {wanted}. Give another value.")


class AllReduce(enum.Enum):
    """How an all-reduce is made of messages."""

    RING = "ring"
    """Reduce-scatter and all-gather around a ring: 2 (N-1) rounds of 1/N of the bytes."""
    TREE = "tree"
    """Recursive halving and doubling: 2 log2(N) rounds; other counts fold first."""
    HIERARCHICAL = "hierarchical"
    """Reduce-scatter inside each host, rings between hosts, all-gather inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link between two replicas.

    Args:
        latency: Seconds that a message takes, whatever its size (alpha).
        bandwidth: Bytes per second (1/beta).

    Raises:
        BadLink: If a time or a rate cannot be.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise BadLink(where="latency", found=self.latency, wanted="seconds, 0 or more")
        if not self.bandwidth > 0:
            raise BadLink(where="bandwidth", found=self.bandwidth, wanted="bytes/s above 0")

    def seconds(self, nbytes: float) -> float:
        """Time of one message.

        Args:
            nbytes: Its bytes.

        Example:
            >>> Link(latency=1e-3, bandwidth=1e6).seconds(1000)
            0.002
        """
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts with replicas on them.

    Args:
        between: The link between two hosts. Its bandwidth is a host's: replicas that use it at the
            same time share it.
        inside: The link between two replicas of a host.
        per_host: Replicas of a host; ranks fill one host after the other.

    Raises:
        BadLink: If there is no replica on a host.
    """

    between: Link
    inside: Link
    per_host: int = 1

    def __post_init__(self) -> None:
        if self.per_host < 1:
            raise BadLink(where="replicas per host", found=self.per_host, wanted="1 or more")

    def hosts(self, replicas: int) -> int:
        """How many hosts so many replicas take."""
        return -(-replicas // self.per_host)


def all_reduce_seconds(algorithm: AllReduce, cluster: Cluster, replicas: int, nbytes: int) -> float:
    """Time of one all-reduce that has the links for itself.

    Args:
        algorithm: How it is made of messages.
        cluster: The links.
        replicas: How many take part.
        nbytes: Bytes of the buffer of one replica.

    Returns:
        Seconds from the first message to the last; 0 for one replica.

    Raises:
        BadLink: If there is no replica.

    Example:
        >>> link = Link(latency=0.0, bandwidth=1e6)
        >>> all_reduce_seconds(AllReduce.RING, Cluster(between=link, inside=link), 4, 1_000_000)
        1.5
    """
    if replicas < 1:
        raise BadLink(where="replicas", found=replicas, wanted="1 or more")
    if replicas == 1:
        return 0.0
    if algorithm is AllReduce.RING:
        # All send at the same time, so that the slowest link sets the pace of each round.
        slowest = _slowest(cluster, replicas, nbytes / replicas)
        return 2 * (replicas - 1) * slowest
    if algorithm is AllReduce.TREE:
        return _tree(cluster, replicas, nbytes)
    return _hierarchical(cluster, replicas, nbytes)


def _slowest(cluster: Cluster, replicas: int, nbytes: float) -> float:
    hosts = cluster.hosts(replicas)
    used = [cluster.inside] if cluster.per_host > 1 else []
    used += [cluster.between] if hosts > 1 else []
    return max(link.seconds(nbytes) for link in used)


def _tree(cluster: Cluster, replicas: int, nbytes: int) -> float:
    rounds = replicas.bit_length() - 1
    power = 1 << rounds
    seconds = 0.0
    if power < replicas:  # the others hand their buffers over first, and get the result at the end
        seconds += 2 * _pairwise(cluster, replicas, power, nbytes)
    for k in range(rounds):  # the largest halves go to the nearest replicas
        seconds += 2 * _pairwise(cluster, replicas, 1 << k, nbytes / (2 << k))
    return seconds


def _pairwise(cluster: Cluster, replicas: int, distance: int, nbytes: float) -> float:
    """A round in which replicas exchange with those at a distance, the slowest pair's time."""
    if cluster.hosts(replicas) == 1:
        return cluster.inside.seconds(nbytes)
    if distance % cluster.per_host == 0 or distance > cluster.per_host:
        crossing = min(cluster.per_host, replicas)
    elif cluster.per_host % (2 * distance) == 0:
        return cluster.inside.seconds(nbytes)  # blocks of pairs end where hosts end
    else:
        crossing = min(distance, cluster.per_host)
    between = cluster.between
    across = between.latency + crossing * nbytes / between.bandwidth
    return max(across, cluster.inside.seconds(nbytes)) if cluster.per_host > 1 else across


def _hierarchical(cluster: Cluster, replicas: int, nbytes: int) -> float:
    hosts, within = cluster.hosts(replicas), min(cluster.per_host, replicas)
    seconds = 0.0
    if within > 1:
        seconds += 2 * (within - 1) * cluster.inside.seconds(nbytes / within)
    if hosts > 1:
        # Each replica has a ring of its own over its part; together they fill the host's link.
        seconds += 2 * (hosts - 1) * cluster.between.seconds(nbytes / hosts)
    return seconds
