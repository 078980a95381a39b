"""All-reduces over alpha-beta links: closed formulas, bounds, and what must never be slower."""

from __future__ import annotations

import math
import random

import pytest

from emulator.replicas.simulation.links import (
    AllReduce,
    BadLink,
    Cluster,
    Link,
    all_reduce_seconds,
)

LINK = Link(latency=20e-6, bandwidth=1e9)
FAST = Link(latency=1e-6, bandwidth=50e9)
COUNTS = (2, 3, 4, 7, 8, 64, 100, 512, 4096)


def alone(link: Link) -> Cluster:
    return Cluster(between=link, inside=link)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("nbytes", [4, 1 << 20, 10 << 20])
def test_a_ring_is_its_closed_formula(n, nbytes):
    wanted = 2 * (n - 1) * (20e-6 + nbytes / (n * 1e9))
    found = all_reduce_seconds(AllReduce.RING, alone(LINK), n, nbytes)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("power", range(1, 13))
def test_a_tree_of_a_power_of_two_is_its_closed_formula(power):
    n, nbytes = 1 << power, 10 << 20
    wanted = 2 * power * 20e-6 + 2 * (1 - 1 / n) * nbytes / 1e9
    found = all_reduce_seconds(AllReduce.TREE, alone(LINK), n, nbytes)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_a_tree_of_another_count_folds_first():
    # 6 = 4 + 2: two hand their whole buffer over and get it back, four exchange halves.
    nbytes = 4_000_000
    wanted = 2 * (20e-6 + 4e-3) + 2 * (20e-6 + 2e-3) + 2 * (20e-6 + 1e-3)
    found = all_reduce_seconds(AllReduce.TREE, alone(LINK), 6, nbytes)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("n", "hosts"), [(16, 2), (64, 8), (4096, 512)])
def test_a_hierarchy_is_its_closed_formula(n, hosts):
    nbytes = 8 << 20
    inside = 2 * 7 * (1e-6 + nbytes / 8 / 50e9)
    between = 2 * (hosts - 1) * (20e-6 + nbytes / hosts / 1e9)
    cluster = Cluster(between=LINK, inside=FAST, per_host=8)
    found = all_reduce_seconds(AllReduce.HIERARCHICAL, cluster, n, nbytes)
    assert found == pytest.approx(inside + between, rel=1e-12)


def test_a_hierarchy_on_one_host_is_a_ring_inside():
    cluster = Cluster(between=LINK, inside=FAST, per_host=8)
    ring = all_reduce_seconds(AllReduce.RING, alone(FAST), 8, 1 << 20)
    assert all_reduce_seconds(AllReduce.HIERARCHICAL, cluster, 8, 1 << 20) == ring


def test_a_ring_goes_at_the_pace_of_its_slowest_link():
    cluster = Cluster(between=LINK, inside=FAST, per_host=4)
    within = all_reduce_seconds(AllReduce.RING, cluster, 4, 1 << 20)
    assert within == all_reduce_seconds(AllReduce.RING, alone(FAST), 4, 1 << 20)
    across = all_reduce_seconds(AllReduce.RING, cluster, 8, 1 << 20)
    assert across == all_reduce_seconds(AllReduce.RING, alone(LINK), 8, 1 << 20)


def test_replicas_of_a_host_share_its_link_in_a_tree():
    # 8 on 2 hosts of 4: distances 1 and 2 stay inside, at distance 4 all four cross at once.
    cluster = Cluster(between=LINK, inside=FAST, per_host=4)
    nbytes = 8_000_000
    inside = 2 * (1e-6 + 4e6 / 50e9) + 2 * (1e-6 + 2e6 / 50e9)
    wanted = inside + 2 * (20e-6 + 4 * 1e6 / 1e9)
    found = all_reduce_seconds(AllReduce.TREE, cluster, 8, nbytes)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("algorithm", AllReduce)
def test_one_replica_communicates_with_nobody(algorithm):
    assert all_reduce_seconds(algorithm, alone(LINK), 1, 1 << 30) == 0


@pytest.mark.parametrize("algorithm", AllReduce)
def test_better_links_and_fewer_bytes_are_never_slower(algorithm):
    rng = random.Random(17)
    for _ in range(500):
        inside = Link(latency=rng.uniform(0, 1e-4), bandwidth=10 ** rng.uniform(6, 11))
        between = Link(latency=rng.uniform(0, 1e-3), bandwidth=10 ** rng.uniform(6, 11))
        per_host, n, nbytes = rng.randint(1, 9), rng.randint(2, 5000), rng.randint(1, 1 << 26)

        def seconds(between=between, inside=inside, nbytes=nbytes, n=n, per_host=per_host):
            cluster = Cluster(between=between, inside=inside, per_host=per_host)
            return all_reduce_seconds(algorithm, cluster, n, nbytes)

        usual = seconds() * (1 + 1e-12)
        wider = Link(latency=between.latency, bandwidth=2 * between.bandwidth)
        nearer = Link(latency=between.latency / 2, bandwidth=between.bandwidth)
        wider_inside = Link(latency=inside.latency, bandwidth=2 * inside.bandwidth)
        assert seconds(between=wider) <= usual
        assert seconds(between=nearer) <= usual
        assert seconds(inside=wider_inside) <= usual
        assert seconds(nbytes=max(1, nbytes // 2)) <= usual


@pytest.mark.parametrize("algorithm", AllReduce)
@pytest.mark.parametrize("n", COUNTS)
def test_nobody_beats_the_bytes_that_must_be_sent(algorithm, n):
    # Every replica sends and receives at least 2 (n-1)/n of the buffer.
    least = 2 * (n - 1) / n * (1 << 20) / 1e9
    assert all_reduce_seconds(algorithm, alone(LINK), n, 1 << 20) >= least


@pytest.mark.parametrize(
    ("latency", "bandwidth", "where"),
    [(-1.0, 1e9, "latency"), (math.nan, 1e9, "latency"), (0.0, 0.0, "bandwidth")],
)
def test_links_that_cannot_be(latency, bandwidth, where):
    with pytest.raises(BadLink, match=where) as caught:
        Link(latency=latency, bandwidth=bandwidth)
    assert caught.value.where == where


def test_clusters_that_cannot_be():
    with pytest.raises(BadLink, match="replicas per host: found 0, wanted 1 or more"):
        Cluster(between=LINK, inside=LINK, per_host=0)
    with pytest.raises(BadLink, match="replicas: found 0, wanted 1 or more"):
        all_reduce_seconds(AllReduce.RING, alone(LINK), 0, 1)
