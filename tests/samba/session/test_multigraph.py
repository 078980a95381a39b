"""Several graphs in one PEF: compiled together, run in turn over shared memory."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import emulator.__main__ as cli
import samba
import samba.utils as utils
from emulator.errors import DeviceError
from pef_schema import read_pef
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from samba.lazy_param import lazy_param
from tests.api.covers import covers
from tests.samba.graphs import (
    CACHES,
    PROMPT,
    ROOM,
    Two,
    compiled,
    decoder,
    empty_caches,
    pair,
    set_up,
    two,
)
from tests.samba.session.loading import reload_graphs
from tests.samba.worlds import INFERENCE, close

TOKENS = torch.tensor([[4, 9, 1, 7, 2, 5]])


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    set_up()
    path = compiled(tmp_path_factory.mktemp("graphs"))
    samba.session.reset()
    return path


@covers(
    "samba.session.add_graph",
    ".compile_multigraph",
    ".init_multigraph_runtime",
    ".run(graph_name)",
    "samba.utils.trace_multigraph",
    ".trace_multigraph(graph, inputs, trace_prefix)",
)
def test_decoding_over_shared_caches_is_torch_step_by_step(pef):
    host, caches = decoder(), empty_caches()
    decoding = set_up()
    samba.session.init_multigraph_runtime(pef)
    graph, start = "prompt", 0
    logits = samba.SambaTensor(shape=(1,))
    while start < ROOM:
        tokens = TOKENS[:, start : start + (PROMPT if graph == "prompt" else 1)]
        with torch.no_grad():
            want, *caches = host(tokens, torch.arange(start, start + tokens.shape[1]), *caches)
        assert decoding.run(graph, tokens, start) == ()
        (logits,) = samba.session.get_tensors_by_name(["logits"])
        close(logits.data, want, f"logits at {start}")
        close(decoding.outputs[graph][0].sn_data, want)
        for name, cache in zip(CACHES, caches, strict=True):
            (ours,) = samba.session.get_tensors_by_name([name])
            close(ours.data, cache, f"{name} at {start}")
        start += tokens.shape[1]
        graph = "token"
    with torch.no_grad():
        whole = host(TOKENS, torch.arange(ROOM), *empty_caches())[0]
    close(logits.data, whole, "against one pass over all tokens")


def test_outputs_of_a_graph_are_fetched_by_run(pef):
    decoding = set_up()
    samba.session.init_multigraph_runtime(pef)
    outputs = decoding.outputs["prompt"]
    results = decoding.run("prompt", TOKENS[:, :PROMPT], 0, output_tensors=outputs)
    with torch.no_grad():
        want = decoder()(TOKENS[:, :PROMPT], torch.arange(PROMPT), *empty_caches())
    for ours, theirs in zip(results, want, strict=True):
        close(samba.to_torch(ours), theirs)


def test_the_pef_holds_both_graphs_and_their_memory_once(pef):
    program = read_pef(pef)
    assert [graph.name for graph in program.graphs] == ["prompt", "token"]
    assert program.inference
    names = [region.name for region in program.regions]
    weights = [n for n in names if n.startswith("decoder__")]
    assert len(weights) == len(dict(decoder().named_parameters()))
    assert [n for n in names if n.startswith("cache")] == CACHES
    calls = [call.call_id for schedule in program.schedules for call in schedule.calls]
    assert calls == list(range(len(calls)))
    log = Path(f"{pef}.log").read_text()
    prompt, token = (
        " ".join(part.split()) for part in re.split(r"\ngraph (?=prompt|token)", log)[1:3]
    )
    assert prompt.startswith("prompt: ") and " schedule 0:prompt__fwd_0" in prompt
    assert token.startswith("token: ") and " schedule 1:token__fwd_0" in token
    names = re.findall(r"(\w+) \w+\[[\d,]*\]", token[: token.index(" outputs ")])
    assert names == ["token_tokens", "token_places", "cache_k", "cache_v"]
    assert re.search(r"outputs token__decoder__head__linear__outputs__0 \S+ in logits", token)


def test_lazy_weights_are_made_when_they_are_transferred(tmp_path):
    def add() -> tuple[nn.Module, tuple[samba.SambaTensor, ...]]:
        with lazy_param():
            torch.manual_seed(2)
            model = samba.from_torch_model_(Two())
        x, y = pair()
        out, _ = utils.trace_multigraph(model, (x, y))
        samba.session.add_graph(FwdGraph((x, y), out, name="a"))
        assert not model.first.weight.has_data
        return model, (x, y, out)

    model, (x, y, out) = reload_graphs(add, tmp_path)
    (got,) = samba.session.run((x, y), out, graph_name="a")
    hidden = (x.torch() @ model.first.weight.sn_data.T + model.first.bias.sn_data).relu()
    want = (hidden @ model.second.weight.sn_data.T + model.second.bias.sn_data) * y.torch()
    close(samba.to_torch(got), want)
    assert want.abs().sum() > 0.1


def test_o0_gives_the_same_numbers(tmp_path):
    set_up()
    path = compiled(tmp_path, optim_level="o0")
    samba.session.reset()
    decoding = set_up()
    samba.session.init_multigraph_runtime(path)
    host, caches = decoder(), empty_caches()
    for graph, start, stop in (("prompt", 0, 3), ("token", 3, 4), ("token", 4, 5)):
        decoding.run(graph, TOKENS[:, start:stop], start)
        with torch.no_grad():
            want, *caches = host(TOKENS[:, start:stop], torch.arange(start, stop), *caches)
    close(samba.session.get_tensors_by_name(["logits"])[0].data, want)


def test_the_command_line_runs_a_graph_by_name(pef, tmp_path, capsys):
    decoding, caches = set_up(), empty_caches()
    arrays = {n: p.detach().numpy() for n, p in decoding.model.named_parameters()}
    arrays = {f"decoder__{n.replace('.', '__')}": a for n, a in arrays.items()}
    arrays |= {n: c.numpy() for n, c in zip(CACHES, caches, strict=True)}
    arrays |= {"token_tokens": np.array([[4]]), "token_places": np.array([0])}
    np.savez(tmp_path / "in.npz", **arrays)
    command = ["run", pef, str(tmp_path / "in.npz"), "--graph"]
    assert cli.main([*command, "token", "--output", str(tmp_path / "out.npz")]) == 0
    logits = np.load(tmp_path / "out.npz")["token__decoder__head__linear__outputs__0"]
    with torch.no_grad():
        want = decoder()(torch.tensor([[4]]), torch.tensor([0]), *caches)[0]
    close(torch.from_numpy(logits), want)
    assert cli.main([*command, "none"]) == 2
    assert "there are prompt, token" in capsys.readouterr().err
    assert cli.main(["inspect", pef]) == 0
    assert "inputs of graph token:\n  token_tokens  [1, 1] int64" in capsys.readouterr().out


@covers("samba.session.init_multigraph_runtime(transfer_device)")
def test_nothing_is_transferred_before_it_is_asked_for(pef):
    decoding = set_up()
    samba.session.init_multigraph_runtime(pef, transfer_device=False)
    with pytest.raises(DeviceError, match="cache_k, cache_v hold no data"):
        decoding.run("prompt", TOKENS[:, :PROMPT], 0)
    samba.session.to_device()
    decoding.run("prompt", TOKENS[:, :PROMPT], 0)


def test_weights_move_both_ways(pef):
    decoding = set_up()
    samba.session.init_multigraph_runtime(pef)
    decoding.run("prompt", TOKENS[:, :PROMPT], 0)
    before = samba.session.get_tensors_by_name(["logits"])[0].data.clone()
    with torch.no_grad():
        decoding.model.head.weight.mul_(2)
    samba.session.to_rdu(decoding.model)
    decoding.run("prompt", TOKENS[:, :PROMPT], 0)
    close(samba.session.get_tensors_by_name(["logits"])[0].data, 2 * before)
    with torch.no_grad():
        decoding.model.head.weight.zero_()
    samba.session.to_cpu(decoding.model)
    close(decoding.model.head.weight.data, 2 * decoder().head.weight.detach())
    with pytest.raises(ArgumentError, match="found ReLU, which was not traced"):
        samba.session.to_cpu(nn.ReLU())


@pytest.mark.parametrize("inner", [False, True])
def test_graphs_that_share_out_a_model_are_the_whole(tmp_path, inner):
    def add() -> tuple[Two, samba.SambaTensor, samba.SambaTensor]:
        model = two()
        x, y = pair()
        out, hidden = utils.trace_multigraph(samba.from_torch_model_(model), {"x": x, "y": y})
        if inner:  # not among the results of forward
            hidden = samba.session.get_samba_tensor_by_name("two__first__linear__outputs__0")
        samba.session.add_graph(FwdGraph({"x": x}, hidden, name="bottom"))
        samba.session.add_graph(FwdGraph((hidden, y), (out,), name="top"))
        return model, out, hidden

    model, out, hidden = reload_graphs(add, tmp_path)
    host = two()
    x, y = pair()
    with torch.no_grad():
        want, _ = host(x.torch(), y.torch())
    (got,) = samba.session.run({"x": x}, hidden, graph_name="bottom")
    bottom = host.first(x.torch()).detach()
    close(samba.to_torch(got), bottom if inner else bottom.relu())
    (got,) = samba.session.run(y, (out,), graph_name="top")
    close(samba.to_torch(got), want)
    samba.session.to_cpu(model)
    close(model.count, host.count, "state of the lower part")
    close(model.later, host.later, "state of the upper part")


def test_a_graph_may_span_two_modules(tmp_path):
    first, second = two().first, two().second

    def add() -> tuple[samba.SambaTensor, ...]:
        x, _ = pair()
        for module, name in ((first, "below"), (second, "above")):
            samba.from_torch_model_(module, name)
        (hidden,) = utils.trace_multigraph(first, x, trace_prefix="below")
        (out,) = utils.trace_multigraph(second, hidden, trace_prefix="above")
        samba.session.add_graph(FwdGraph(x, out, name="both"))
        samba.session.add_graph(FwdGraph(hidden, out, name="last"))
        return x, hidden, out

    x, hidden, out = reload_graphs(add, tmp_path)
    (got,) = samba.session.run(x, out, graph_name="both")
    want = second(first(x.torch())).detach()
    close(samba.to_torch(got), want)
    given = samba.from_torch_tensor(torch.ones(2, 5), name=hidden.sn_name)
    (got,) = samba.session.run(given, out, graph_name="last")
    close(samba.to_torch(got), second(torch.ones(2, 5)).detach())


class Cached(nn.Module):
    """Takes and gives its cache in nested containers."""

    def forward(
        self, x: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        total = x
        new = []
        for a, b in past:
            new.append((a + x, b * x))
            total = total + new[-1][0] + new[-1][1]
        return total, new


def test_caches_may_be_nested(tmp_path):
    def add() -> tuple[samba.SambaTensor, ...]:
        x, _ = pair()
        past = [(samba.ones(2, 4), samba.ones(2, 4)) for _ in range(2)]
        inputs = {"x": x, "past": past}
        outputs = utils.trace_multigraph(Cached(), inputs)
        for output, (i, j) in zip(outputs[1:], [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
            output.sn_region_name = f"past_{i}_{j}"
        samba.session.add_graph(FwdGraph(inputs, outputs, name="step"))
        return outputs

    outputs = reload_graphs(add, tmp_path)
    x, _ = pair()
    want, past = Cached()(x.torch(), [(torch.ones(2, 4), torch.ones(2, 4)) for _ in range(2)])
    (got,) = samba.session.run({"x": x}, outputs[0], graph_name="step")
    close(samba.to_torch(got), want)
    want, past = Cached()(x.torch(), past)
    (got,) = samba.session.run(x, outputs[0], graph_name="step")
    close(samba.to_torch(got), want)
    again = [(torch.zeros(2, 4), torch.ones(2, 4)), (torch.zeros(2, 4), torch.zeros(2, 4))]
    want, _ = Cached()(x.torch(), again)
    for inputs in ({"x": x, "past": again}, (x, again)):
        (got,) = samba.session.run(inputs, outputs[0], graph_name="step")
        close(samba.to_torch(got), want)


@covers("samba.session.add_graph(overwrite)")
def test_a_graph_of_the_same_name_takes_the_place_only_on_request(tmp_path):
    x, y = pair()
    out, hidden = utils.trace_multigraph(samba.from_torch_model_(two()), (x, y))
    samba.session.add_graph(FwdGraph((x, y), out, name="a"))
    samba.session.add_graph(FwdGraph(x, hidden, name="b"))
    with pytest.raises(ArgumentError, match="a second graph named 'a'"):
        samba.session.add_graph(FwdGraph(x, hidden, name="a"))
    samba.session.add_graph(FwdGraph((x, y), (hidden, out), name="a"), overwrite=True)
    program = read_pef(compiled(tmp_path))
    assert [g.name for g in program.graphs] == ["b", "a"]
    assert [len(g.outputs) for g in program.graphs] == [1, 2]


@covers("samba.utils.trace_multigraph(mapping)")
def test_mapping_of_the_traces(tmp_path):
    for number, mapping in enumerate(("spatial", "", "section")):
        x, y = pair()
        prefix = f"p{number}"
        out, _ = utils.trace_multigraph(two(), (x, y), mapping=mapping, trace_prefix=prefix)
        samba.session.add_graph(FwdGraph((x, y), out, name="a"), overwrite=True)
        if mapping == "":
            program = read_pef(compiled(tmp_path, optim_level="o0"))
            assert (program.mapping, len(program.sections)) == ("spatial", 1)
    with pytest.raises(ArgumentError, match="section and spatial"):
        compiled(tmp_path)
    with pytest.raises(ArgumentError, match="'diagonal'"):
        utils.trace_multigraph(two(), pair(), mapping="diagonal")


def test_nothing_to_compile_or_to_load(pef):
    for call in (
        lambda: samba.session.compile_multigraph(),
        lambda: samba.session.init_multigraph_runtime(pef),
    ):
        with pytest.raises(ArgumentError, match="no graphs"):
            call()
    with pytest.raises(ArgumentError, match="no path"):
        samba.session.init_multigraph_runtime("")


def test_run_refuses_the_name_of_no_graph(pef, pefs):
    decoding = set_up()
    samba.session.init_multigraph_runtime(pef)
    with pytest.raises(ArgumentError, match="'prompt' or 'token'"):
        decoding.run("none_such", TOKENS[:, :1], 0)
    samba.session.reset()
    scene = pefs.loaded(INFERENCE)
    (by_name,) = scene.run(graph_name="mlp", output_tensors=scene.model.output_tensors[:1])
    close(by_name, scene.host(**scene.tensors)[0].detach())
    with pytest.raises(ArgumentError, match="'mlp'"):
        scene.run(graph_name="prompt")


@covers("samba.session.run", ".init_multigraph_runtime")
def test_without_a_graph_name_the_whole_schedule_runs(tmp_path):
    """By default, a run follows the schedule of the PEF: its graphs in their order."""
    torch.manual_seed(5)
    host = Two().eval()
    model = samba.from_torch_model_(copy.deepcopy(host))
    x, y = pair()
    out, hidden = utils.trace_multigraph(model, (x, y))
    samba.session.add_graph(FwdGraph((x,), hidden, name="bottom"))
    samba.session.add_graph(FwdGraph((hidden, y), out, name="top"))
    pef = compiled(tmp_path)
    samba.session.init_multigraph_runtime(pef)
    results: tuple[samba.SambaTensor, ...] | list[torch.Tensor] = []
    for _ in range(3):
        new = {"x": torch.randn(x.shape), "y": torch.randn(y.shape)}
        given = tuple(samba.from_torch_tensor(t, name=n) for n, t in new.items())
        results = samba.session.run(given, (out, hidden))
        for ours, theirs in zip(results, host(**new), strict=True):
            close(samba.to_torch(ours), theirs.detach())
    assert samba.session.counters.runs == 3
    (alone,) = samba.session.run((x,), hidden, graph_name="bottom")
    assert not torch.equal(alone, results[1])
    with pytest.raises(ArgumentError, match="inputs named x, y"):
        samba.session.run({hidden.sn_name: hidden.sn_data}, out)  # it is computed
    calls = samba.session.run((x,), hidden, run_until_call_id=0)
    close(calls[0], alone)
    assert list(samba.session.output_dict) == [hidden.sn_name, out.sn_name]


def test_computed_indices_of_all_graphs_are_checked_in_a_whole_run(pef):
    set_up()
    samba.session.init_multigraph_runtime(pef)
    places = {f"{name}_places": torch.arange(n) for name, n in (("prompt", PROMPT), ("token", 1))}
    bad = {"prompt_tokens": torch.zeros(1, PROMPT).long(), "token_tokens": torch.full((1, 1), 99)}
    with pytest.raises(IndexError, match="token_tokens"):
        samba.session.run(places | bad)
    samba.session.run(places | bad | {"token_tokens": torch.zeros(1, 1).long()})
    assert samba.session.counters.runs == 1
