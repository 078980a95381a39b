"""Graphs of one PEF: text generation over a cache, and what graphs share and are bound to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from samba.graph import FwdGraph
from tests.samba.worlds import close

WORDS, WIDTH, ROOM, PROMPTS, LAYERS = 20, 16, 8, (3,), 1

Tensors = tuple[torch.Tensor, ...]


class Shared:
    """Tensors that all modules of a process take from here, made by who asks first."""

    def __init__(self) -> None:
        self.made: dict[str, Tensors] = {}

    def get(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


shared = Shared()


class Rotary(nn.Module):
    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(ROOM), 1 / 10 ** (torch.arange(0, WIDTH, 2) / WIDTH))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> Tensors:
        return self.cosines.to(x.dtype) * 1.0, self.sines.to(x.dtype) * 1.0


def turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = x.split(WIDTH // 2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any, turn: Any, last: Any, past: Any) -> Any:
        q, k, v = turned(self.query(x), *turn), turned(self.key(x), *turn), self.value(x)
        if past is None:
            empty = torch.zeros(x.shape[0], ROOM - x.shape[1], WIDTH)
            keys, values = torch.cat([k, empty], 1), torch.cat([v, empty], 1)
            places = torch.arange(x.shape[1])[None, :, None]
        else:
            at = torch.arange(ROOM)[None, :, None] == last[:, :, None]
            keys, values = torch.where(at, k, past[0]), torch.where(at, v, past[1])
            places = last[:, :, None]
        seen = torch.arange(ROOM)[None, None, :] <= places
        out = nn.functional.scaled_dot_product_attention(q, keys, values, seen)
        return x + out, (keys, values)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.rotary = Rotary()

    def forward(
        self,
        input_ids: torch.Tensor,
        last_token_index: torch.Tensor,
        past_key_values: Any = None,
        use_cache: bool = True,
    ) -> Any:
        x = self.embed(input_ids)
        length = x.shape[1]
        table = shared.get("table", lambda: self.rotary(x))
        places = torch.arange(length)[None] if past_key_values is None else last_token_index
        turn = tuple(t[places] for t in table)
        caches = []
        for number, layer in enumerate(self.layers):
            past = None if past_key_values is None else past_key_values[number]
            x, cache = layer(x, turn, last_token_index, past)
            caches.append(cache)
        if length > 1:
            rows = last_token_index[:, :, None].expand(-1, 1, WIDTH).to(torch.int64)
            x = x.gather(1, rows)
        return self.head(x), tuple(caches) if use_cache else ()


def traced(model: nn.Module) -> dict[str, Any]:
    """Traces for prompts and for single tokens, over one cache."""
    last = samba.from_torch_tensor(torch.zeros(1, 1, dtype=torch.int32), name="last_token_index")
    given: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for length in PROMPTS:
        ids = torch.zeros(1, length, dtype=torch.int32)
        given[f"prompt_{length}"] = {
            "input_ids": samba.from_torch_tensor(ids, name=f"input_ids_{length}"),
            "last_token_index": last,
            "use_cache": True,
        }
    for name, inputs in given.items():
        made[name] = utils.trace_multigraph(model, inputs, trace_prefix=name)
    given["token"] = {
        "input_ids": samba.from_torch_tensor(
            torch.zeros(1, 1, dtype=torch.int32), name="input_ids_token"
        ),
        "past_key_values": [tuple(pair) for pair in pairs(made[f"prompt_{PROMPTS[0]}"])],
        "last_token_index": last,
        "use_cache": True,
    }
    made["token"] = utils.trace_multigraph(model, given["token"], trace_prefix="token")
    for outputs in made.values():
        wanted = pairs(outputs)
        for ours, theirs in zip(wanted, given["token"]["past_key_values"], strict=True):
            for tensor, other in zip(ours, theirs, strict=True):
                tensor.sn_region_name = other.sn_region_name
        outputs[0].sn_region_name = "logits"
    for name, inputs in given.items():
        samba.session.add_graph(FwdGraph(inputs, made[name], name=name))
    return made


def pairs(outputs: Any) -> list[Any]:
    flat = list(outputs[1:])
    if len(flat) == 1:
        return list(flat[0])
    if isinstance(flat[0], (tuple, list)):
        return flat
    return [flat[i : i + 2] for i in range(0, len(flat), 2)]


def decoder() -> Decoder:
    torch.manual_seed(3)
    return Decoder().eval()


def test_a_cache_of_tensors_outside_of_the_model_serves_all_graphs(tmp_path: Path) -> None:
    shared.made.clear()
    model = samba.from_torch_model_(decoder())
    traced(model)
    pef = samba.session.compile_multigraph(
        name="generate", config_dict={"output_folder": str(tmp_path)}, inference=True
    )
    samba.session.reset()
    shared.made.clear()
    model = samba.from_torch_model_(decoder())
    traced(model)
    samba.session.init_multigraph_runtime(pef)
    shared.made.clear()
    text, host, past = torch.tensor([[4, 9, 1]]), decoder(), None
    name, new = "prompt_3", text
    while text.shape[1] < ROOM:
        last = torch.tensor([[text.shape[1] - 1]], dtype=torch.int32)
        ids = "input_ids_3" if past is None else "input_ids_token"
        samba.session.run(
            (
                samba.from_torch_tensor(new.int(), name=ids),
                samba.from_torch_tensor(last, name="last_token_index"),
            ),
            graph_name=name,
        )
        logits = samba.session.get_tensors_by_name(["logits"])[0].data
        with torch.no_grad():
            wanted, past = host(new.int(), last, past)
        close(logits, wanted, f"logits at {text.shape[1]}")
        new = samba.to_torch(logits).argmax(-1)
        text, name = torch.cat([text, new], 1), "token"


def test_what_depends_on_inputs_is_no_constant_of_the_next_graph(tmp_path: Path) -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (first,) = shared.get("first", lambda: (x.sum(0),))
            return self.lin(x) + first

    shared.made.clear()
    model = samba.from_torch_model_(Kept())
    with pytest.raises(samba.SambaError, match=r"first|earlier trace"):
        for rows in (2, 3):
            x = samba.from_torch_tensor(torch.ones(rows, 4), name=f"x{rows}")
            utils.trace_multigraph(model, x, trace_prefix=f"rows{rows}")
    shared.made.clear()


# -- what graphs share, and what their PEF is bound to ---------------------------------


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.angles.cos()
        samba.session.add_aux_tensor(table, "table")
        return x * table


class TwoTables(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samba.session.add_aux_tensor(x + 1, "table")
        return super().forward(x)


def test_each_graph_makes_its_auxiliary_tensor_anew() -> None:
    model = samba.from_torch_model_(Table())
    for rows in (1, 2):
        x = samba.from_torch_tensor(torch.ones(rows, 4), name=f"x{rows}")
        utils.trace_multigraph(model, x, trace_prefix=f"rows{rows}")


def test_two_auxiliary_tensors_of_one_graph_do_not_share_a_name() -> None:
    x = samba.from_torch_tensor(torch.ones(2, 4), name="x")
    with pytest.raises(samba.SambaError, match="found 'table', wanted a name not yet taken"):
        utils.trace_multigraph(samba.from_torch_model_(TwoTables()), x)


class Position(nn.Module):
    def forward(self, last: torch.Tensor) -> torch.Tensor:
        return torch.minimum(last + 1, torch.full((1, 1), 2**40))  # int64, as torch has it


def test_an_output_in_the_region_of_an_input_has_its_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def traced() -> None:
        last = samba.from_torch_tensor(torch.zeros(1, 1, dtype=torch.int32), name="last")
        (new,) = utils.trace_multigraph(samba.from_torch_model_(Position()), last)
        new.sn_region_name = last.sn_region_name
        samba.session.add_graph(FwdGraph({"last": last}, (new,), name="next"))

    traced()
    pef = samba.session.compile_multigraph(
        name="position", config_dict={"output_folder": str(tmp_path)}, inference=True
    )
    assert "last (int64 in int32)" in caplog.text
    assert caplog.text.count("[deviation: cast-in-place]") == 1
    samba.session.reset()
    traced()
    assert pef is not None
    samba.session.init_multigraph_runtime(pef)
    given = torch.tensor([[5]], dtype=torch.int32)
    samba.session.run((samba.from_torch_tensor(given, name="last"),), graph_name="next")
    for wanted in (6, 7):
        found = samba.session.get_tensors_by_name(["last"])[0].data
        assert found.dtype == torch.int32 and samba.to_torch(found).tolist() == [[wanted]]
        samba.session.run((), graph_name="next")


class Words(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(5, 3, padding_idx=padding)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids)


def test_a_pef_for_inference_serves_another_padding_index(tmp_path: Path) -> None:
    ids = samba.from_torch_tensor(torch.tensor([[1, 4]]), name="ids")
    folder = {"output_folder": str(tmp_path)}
    model = samba.from_torch_model_(Words(None))
    pef = samba.session.compile(model, (ids,), name="words", inference=True, config_dict=folder)
    samba.session.reset()
    model = samba.from_torch_model_(Words(1))
    outputs = utils.trace_graph(model, (ids,), pef=pef)
    (found,) = samba.session.run(input_tensors=(ids,), output_tensors=outputs)
    close(found, Words(1)(torch.tensor([[1, 4]])), "words")
