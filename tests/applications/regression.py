"""Regression with several losses and learned weights, run section by section, gradients clipped."""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.GroupNorm(4, 16), nn.Linear(16, 2))
        self.huber = nn.HuberLoss(delta=0.7)
        self.smooth = nn.SmoothL1Loss(beta=0.3, reduction="none")
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        out = self.net(x)
        charbonnier = torch.sqrt((out - y) ** 2 + 1e-6).mean()
        losses = torch.stack([self.huber(out, y), self.smooth(out, y).mean(), charbonnier])
        return (torch.exp(-self.log_variance) * losses + self.log_variance).sum(), out


def main(argv: list[str]) -> None:
    args = parse_app_args(argv)
    utils.set_seed(8)
    model = Regression()
    gold = copy.deepcopy(model)
    samba.from_torch_model_(model)
    optimizer = samba.optim.AdamW(
        model.parameters(), lr=0.01, betas=(0.9, 0.999), max_grad_norm=0.3
    )
    size = args.batch_size
    x = samba.randn(size, 6, name="x", batch_dim=0, requires_grad=True)
    y = samba.randn(size, 2, name="y", batch_dim=0)
    if args.command == "compile":
        samba.session.compile(model, (x, y), optimizer, name="reg", config_dict=vars(args))
        return
    outputs = utils.trace_graph(model, (x, y), optimizer, pef=args.pef)
    judge = torch.optim.AdamW(gold.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(3):
        tx = torch.randn(size, 6, requires_grad=True)
        ty = torch.sin(tx[:, :2].detach())
        feed = [
            samba.from_torch_tensor(tx.detach().clone(), name="x"),
            samba.from_torch_tensor(ty, name="y"),
        ]
        loss, out = samba.session.run(feed, outputs, section_types=["FWD"])
        samba.session.run(section_types=["BCKWD"])
        wanted, gold_out = gold(tx, ty)
        judge.zero_grad()
        wanted.backward()
        utils.assert_close(loss, wanted, "loss", 1e-5)
        utils.assert_close(out, gold_out, "out", 1e-5)
        utils.assert_close(x.sn_grad, tx.grad, "x__grad", 1e-5)
        weight, reference = model.log_variance, gold.log_variance
        utils.assert_close(weight.sn_grad, reference.grad, "log_variance__grad", 1e-5)
        samba.session.run(section_types=["GRADNORM", "OPT"], hyperparam_dict={"lr": 0.01})
        torch.nn.utils.clip_grad_norm_(gold.parameters(), 0.3)
        judge.step()
    samba.session.to_cpu(model, [optimizer])
    for (name, ours), theirs in zip(model.named_parameters(), gold.parameters(), strict=True):
        utils.assert_close(ours, theirs, name, threshold=1e-4)
    print(f"sections {sorted(samba.session.get_section_types())} as torch has them")


if __name__ == "__main__":
    main(sys.argv[1:])
