"""A script as Bagua's examples are: it knows no name of this project, and needs CUDA."""

# pyright: reportMissingImports=false
# What runs this script makes bagua importable.

from __future__ import annotations

import argparse

import bagua.torch_api as bagua
import torch
import torch.nn.functional as F
from bagua.torch_api.algorithms import (
    async_model_average,
    bytegrad,
    decentralized,
    gradient_allreduce,
    q_adam,
)
from torch.optim.lr_scheduler import StepLR

ALGORITHMS = {
    "gradient_allreduce": gradient_allreduce.GradientAllReduceAlgorithm,
    "bytegrad": bytegrad.ByteGradAlgorithm,
    "decentralized": decentralized.DecentralizedAlgorithm,
    "low_precision_decentralized": decentralized.LowPrecisionDecentralizedAlgorithm,
    "async": lambda: async_model_average.AsyncModelAverageAlgorithm(sync_interval_ms=1),
}


def algorithm_and_optimizer(name, model):
    if name == "qadam":
        optimizer = q_adam.QAdamOptimizer(model.parameters(), lr=0.05, warmup_steps=2)
        return q_adam.QAdamAlgorithm(optimizer), optimizer
    return ALGORITHMS[name](), torch.optim.Adadelta(model.parameters(), lr=0.5)


def train(name, fuse):
    torch.manual_seed(bagua.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    model = model.cuda()
    algorithm, optimizer = algorithm_and_optimizer(name, model)
    model = model.with_bagua([optimizer], algorithm, do_flatten=not fuse)
    if fuse:
        optimizer = bagua.contrib.fuse_optimizer(optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(2):
        if name == "async":
            model.bagua_algorithm.resume(model)
        for _ in range(2):
            data, target = torch.randn(6, 4).cuda(), torch.randint(3, (6,)).cuda()
            optimizer.zero_grad()
            F.cross_entropy(model(data), target).backward()
            if fuse:
                optimizer.fuse_step()
            else:
                optimizer.step()
        if name == "async":
            model.bagua_algorithm.abort(model)
        scheduler.step()
    assert model.bagua_algorithm is algorithm and model.bagua_optimizers == [optimizer]
    assert model.bagua_buckets and model.bagua_train_step_counter == 4
    total = sum(p.sum() for p in model.parameters())
    print("trained", name, fuse, float(total.detach()).hex())


def communicate():
    rank, size = bagua.get_rank(), bagua.get_world_size()
    comm = bagua.communication._get_default_group().get_global_communicator()
    assert (comm.rank(), comm.nranks()) == (rank, size) == (rank, 2)
    mine = torch.arange(4.0) + 10 * rank
    both = [torch.arange(4.0), torch.arange(4.0) + 10]
    total = both[0] + both[1]

    def same(found, wanted):
        assert found.tolist() == wanted.tolist(), (found, wanted)

    got = torch.zeros(4)
    if rank == 0:
        bagua.send(mine, 1, comm=comm)
    else:
        bagua.recv(got, 0, comm=comm)
        same(got, both[0])
    got = mine.clone()
    bagua.broadcast(got, 1)
    same(got, both[1])
    for op, wanted in [
        (bagua.ReduceOp.SUM, total),
        (bagua.ReduceOp.AVG, total / 2),
        (bagua.ReduceOp.PRODUCT, both[0] * both[1]),
        (bagua.ReduceOp.MIN, both[0]),
        (bagua.ReduceOp.MAX, both[1]),
    ]:
        bagua.allreduce(mine, got, op=op, comm=comm)
        same(got, wanted)
        place = mine.clone()
        bagua.allreduce_inplace(place, op)
        same(place, wanted)
        place = mine.clone()
        bagua.reduce_inplace(place, 1, op)
        same(place, wanted if rank == 1 else mine)
        part = torch.zeros(2)
        bagua.reduce_scatter(mine, part, op)
        same(part, wanted.view(2, 2)[rank])
        place = mine.clone()
        bagua.reduce_scatter_inplace(place, op)
        same(place[:2], wanted.view(2, 2)[rank])
    counts = torch.tensor([3 + 2 * rank])
    bagua.allreduce_inplace(counts, bagua.ReduceOp.AVG)
    same(counts, torch.tensor([4]))
    bits = torch.tensor([1 + 2 * rank])
    bagua.allreduce_inplace(bits, bagua.ReduceOp.BXOR)
    same(bits, torch.tensor([2]))

    got = torch.full((4,), -1.0)
    bagua.reduce(mine, got, dst=0)
    same(got, total if rank == 0 else torch.full((4,), -1.0))
    all_of_both = torch.cat(both)
    got = torch.zeros(8)
    bagua.allgather(mine, got)
    same(got, all_of_both)
    got = torch.zeros(8)
    got.view(2, 4)[rank] = mine
    bagua.allgather_inplace(got)
    same(got, all_of_both)
    got = torch.zeros(8)
    bagua.gather(mine, got, dst=1)
    same(got, all_of_both if rank == 1 else torch.zeros(8))
    place = torch.cat([torch.zeros(4), mine]) if rank == 1 else mine.clone()
    bagua.gather_inplace(place, 4, dst=1)
    same(place, all_of_both if rank == 1 else mine)
    got = torch.zeros(4)
    bagua.scatter(all_of_both, got, src=0)
    same(got, mine)
    place = all_of_both.clone() if rank == 0 else torch.zeros(4)
    bagua.scatter_inplace(place, 4, src=0)
    same(place, all_of_both if rank == 0 else mine)
    swapped = torch.cat([part.view(2, 2)[rank] for part in both])
    bagua.alltoall(mine, got)
    same(got, swapped)
    place = mine.clone()
    bagua.alltoall_inplace(place)
    same(place, swapped)
    # Rank 0 sends 1 and 2 elements, rank 1 sends 2 and 1, all from the first on.
    out = torch.full((5,), -1.0)
    counts = [1, 2] if rank == 0 else [2, 1]
    bagua.alltoall_v(mine, counts, [0, 0], out, counts, [0, 3])
    wanted = [[0, -1, -1, 10, 11], [0, 1, -1, 10, -1]][rank]
    same(out, torch.tensor(wanted, dtype=torch.float32))
    place = mine.clone()
    bagua.alltoall_v_inplace(place, [1, 1], [0, 3])
    wanted = [[0, 1, 2, 10], [3, 11, 12, 13]][rank]
    same(place, torch.tensor(wanted, dtype=torch.float32))

    lone = bagua.communication.new_group([1]).get_global_communicator()
    got = mine.clone()
    bagua.allreduce_inplace(got, comm=lone)
    same(got, mine)
    assert bagua.communication.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    bagua.barrier()
    print("communicated")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithms", nargs="+")
    args = parser.parse_args()
    place = bagua.get_rank(), bagua.get_local_rank(), bagua.get_world_size()
    if not torch.cuda.is_available():
        raise RuntimeError("needs CUDA")
    torch.cuda.set_device(bagua.get_local_rank())
    bagua.init_process_group()
    assert place == (bagua.get_rank(), bagua.get_local_rank(), bagua.get_world_size())
    assert bagua.get_local_size() == 2
    print("before", *place)
    communicate()
    for name in args.algorithms:
        train(name, fuse=False)
    train("gradient_allreduce", fuse=True)


if __name__ == "__main__":
    main()
