"""Generator and discriminator as two graphs of one PEF; the image stays on the device."""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.utils import trace_multigraph


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(8, 128)
        self.net = nn.Sequential(
            nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh()
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.net(self.start(z).view(-1, 8, 4, 4))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Flatten(), nn.Linear(128, 1)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(image)


def main(argv: list[str]) -> None:
    args = parse_app_args(argv)
    utils.set_seed(0)
    generator, discriminator = Generator().eval(), Discriminator().eval()
    gold = nn.Sequential(copy.deepcopy(generator), copy.deepcopy(discriminator))
    samba.from_torch_model_(generator)
    samba.from_torch_model_(discriminator)
    z = samba.randn(args.batch_size, 8, name="z", batch_dim=0)
    image = samba.randn(args.batch_size, 1, 8, 8, name="image", batch_dim=0)
    (fake,) = trace_multigraph(generator, z, trace_prefix="gen")
    judged = trace_multigraph(discriminator, [image], trace_prefix="dis")
    fake.sn_region_name = image.sn_region_name = "image_buffer"
    samba.session.add_graph(FwdGraph((z,), (fake,), "generate"))
    samba.session.add_graph(FwdGraph((image,), tuple(judged), "judge"))
    if args.command == "compile":
        samba.session.compile_multigraph(name="gan", config_dict=vars(args), inference=True)
        return
    samba.session.init_multigraph_runtime(args.pef)
    for _ in range(2):
        noise = torch.randn(args.batch_size, 8)
        feed = (samba.from_torch_tensor(noise, name="z"),)
        samba.session.run(input_tensors=feed, graph_name="generate")
        made = samba.session.get_tensors_by_name(["image_buffer"])[0].data
        (score,) = samba.session.run(output_tensors=judged, graph_name="judge")
        with torch.no_grad():
            utils.assert_close(made, gold[0](noise), "image", 1e-6)
            utils.assert_close(score, gold(noise), "score", 1e-6)
    print("both graphs as torch has them")


if __name__ == "__main__":
    main(sys.argv[1:])
