"""Recommender with inputs by keyword, nested outputs and an optimizer for the embeddings alone."""

from __future__ import annotations

import argparse
import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F

import sambaflow.samba as samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

SIZES = (20, 30, 40)


class Recommender(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, width) for size in SIZES])
        self.bag = nn.EmbeddingBag(50, width, mode="sum")
        self.bottom = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, width))
        pairs = torch.tril_indices(5, 5, offset=-1)
        self.register_buffer("rows", pairs[0])
        self.register_buffer("columns", pairs[1])
        self.cross = nn.Parameter(torch.randn(width) / 10)
        self.top = nn.Sequential(nn.Linear(width + 10, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse, history, click=None, weight=None):
        x = self.bottom(dense)
        found = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, self.bag(history), *found], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        inter = products[:, self.rows, self.columns]
        x = x * (x @ self.cross).unsqueeze(1) + x
        chance = torch.sigmoid(self.top(torch.cat([x, inter], dim=1))).squeeze(1)
        out = {"chance": chance, "features": (x, {"inter": inter})}
        if click is not None:
            out = {"loss": F.binary_cross_entropy(chance, click, weight=weight), **out}
        return out


def batch(size: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(n, (size,), generator=generator) for n in SIZES]
    return {
        "dense": torch.randn(size, 13, generator=generator),
        "sparse": torch.stack(ids, 1).int(),
        "history": torch.randint(50, (size, 4), generator=generator),
        "click": torch.randint(2, (size,), generator=generator).float(),
        "weight": torch.rand(size, generator=generator),
    }


def parts(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    named = list(model.named_parameters())
    tables = [p for name, p in named if name.startswith(("tables", "bag"))]
    return tables, [p for name, p in named if not name.startswith(("tables", "bag"))]


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lr", type=float, default=0.1)


def main(argv: list[str]) -> None:
    args = parse_app_args(argv, common_parser_fn=add_args)
    utils.set_seed(3)
    model = Recommender()
    gold = copy.deepcopy(model)
    samba.from_torch_model_(model)
    tables, rest = parts(model)
    optimizers = [
        samba.optim.SGD(tables, lr=0.0),
        samba.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.999), argin_region_name="dense"),
    ]
    inputs = {
        name: samba.from_torch_tensor(tensor, name=name, batch_dim=0)
        for name, tensor in batch(args.batch_size, 0).items()
    }
    if args.command == "compile":
        samba.session.compile(
            model, inputs, optimizers, name="recommender", config_dict=vars(args), loss_indices=[0]
        )
        return
    outputs = utils.trace_graph(model, inputs, optimizers, pef=args.pef, loss_indices=[0])
    tables, rest = parts(gold)
    judges = [
        torch.optim.SGD(tables, lr=args.lr),
        torch.optim.AdamW(rest, lr=0.02, weight_decay=0.0),
    ]
    for step in range(4):
        torch_batch = batch(args.batch_size, step + 1)
        feed = {k: samba.from_torch_tensor(v, name=k) for k, v in torch_batch.items()}
        found = samba.session.run(feed, outputs, hyperparam_dict={"lr": args.lr, "dense__lr": 0.02})
        wanted = gold(**torch_batch)
        for judge in judges:
            judge.zero_grad()
        wanted["loss"].backward()
        for judge in judges:
            judge.step()
        x, more = wanted["features"]
        flat = (wanted["loss"], wanted["chance"], x, more["inter"])
        for ours, theirs in zip(found, flat, strict=True):
            utils.assert_close(ours, theirs, ours.sn_name, threshold=1e-4)
    samba.session.to_cpu(model, optimizers)
    for (name, ours), theirs in zip(model.named_parameters(), gold.parameters(), strict=True):
        utils.assert_close(ours, theirs, name, threshold=1e-4)
    print(f"{len(found)} outputs as torch has them")  # pyright: ignore[reportPossiblyUnboundVariable]  # there are steps


if __name__ == "__main__":
    main(sys.argv[1:])
