"""What graphs are made of: a decoder with a cache, and a model to cut in two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from samba.graph import FwdGraph
from tests.samba.shared_traces import share_trace

WIDTH, HEADS, ROOM, WORDS = 8, 2, 6, 11
PROMPT = 3


class Layer(nn.Module):
    """Attention over a cache that the new keys and values are written to, and a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(
        self, x: torch.Tensor, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        keys = keys.index_copy(2, places, qkv[1])
        values = values.index_copy(2, places, qkv[2])
        mask = torch.arange(ROOM)[None, :] <= places[:, None]
        seen = F.scaled_dot_product_attention(qkv[0], keys, values, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(x))), keys, values


class Decoder(nn.Module):
    """One layer; takes tokens, their places and the cache, gives logits and the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(ROOM, WIDTH)
        self.layer = Layer()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(
        self, tokens: torch.Tensor, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = self.words(tokens) + self.places(places)
        x, keys, values = self.layer(x, places, keys, values)
        return self.head(x[:, -1]), keys, values


CACHES = ["cache_k", "cache_v"]


def empty_caches() -> list[torch.Tensor]:
    return [torch.zeros(1, HEADS, ROOM, WIDTH // HEADS) for _ in CACHES]


def decoder() -> Decoder:
    torch.manual_seed(3)
    return share_trace(Decoder().eval())


@dataclass(kw_only=True)
class Decoding:
    """A decoder with its two graphs in the session."""

    model: Decoder
    outputs: dict[str, tuple[samba.SambaTensor, ...]]

    def run(self, graph: str, tokens: torch.Tensor, start: int, **keywords: Any) -> Any:
        """Run a graph on tokens from a place on; caches stay where they are."""
        length = tokens.shape[1]
        inputs = (
            samba.from_torch_tensor(tokens, name=f"{graph}_tokens"),
            samba.from_torch_tensor(torch.arange(start, start + length), name=f"{graph}_places"),
        )
        return samba.session.run(inputs, graph_name=graph, **keywords)


def set_up(model: Decoder | None = None) -> Decoding:
    """Trace the decoder twice and add its graphs: what an application does in every process."""
    model = samba.from_torch_model_(decoder() if model is None else model)
    caches = [
        samba.from_torch_tensor(c, name=n) for c, n in zip(empty_caches(), CACHES, strict=True)
    ]
    outputs = {}
    for graph, length in (("prompt", PROMPT), ("token", 1)):
        inputs = [
            samba.from_torch_tensor(
                torch.zeros(1, length, dtype=torch.int64), name=f"{graph}_tokens"
            ),
            samba.from_torch_tensor(torch.arange(length), name=f"{graph}_places"),
            *caches,
        ]
        traced = utils.trace_multigraph(model, inputs, trace_prefix=graph)
        traced[0].sn_region_name = "logits"
        for output, cache in zip(traced[1:], caches, strict=True):
            output.sn_region_name = cache.sn_region_name
        samba.session.add_graph(FwdGraph(inputs, traced, name=graph))
        outputs[graph] = traced
    return Decoding(model=model, outputs=outputs)


def compiled(folder: Path, name: str = "decoder", **keywords: Any) -> str:
    """Compile the graphs of the session."""
    config = {"output_folder": str(folder), "pef_name": name, **keywords}
    path = samba.session.compile_multigraph(name=name, config_dict=config)
    assert path is not None
    return path


class Two(nn.Module):
    """A model to cut in two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("later", torch.ones(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x).relu()
        self.count += hidden.sum()
        out = self.second(hidden) * y
        self.later.mul_(out.abs().max())
        return out, hidden


def two() -> Two:
    torch.manual_seed(1)
    return share_trace(Two())


def pair() -> tuple[samba.SambaTensor, samba.SambaTensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(
        samba.from_torch_tensor(torch.randn(2, n, generator=generator), name=name)
        for name, n in (("x", 4), ("y", 3))
    )
