"""Training steps: the contenders compute the same, and workers do what they are asked."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import models, peers
from bench.errors import LossesDiffer, WorkerFailed
from bench.measurement import Results
from bench.ordinary import MASKED, ORDINARY, SMALL_ORDINARY
from bench.process import Contestant, Worker, steps
from bench.suites import cache_variables
from bench.suites.start import COMPILE, FIRST, SECOND, stages
from bench.suites.steps import check_losses, first_losses_of, steps_of
from bench.unseen import SMALL_UNSEEN, UNSEEN
from tests.bench.shortest import settings

FEW = {"logreg-1", "lenet", "lstm", "dlrm"}
"""Cases whose contenders the fast tests compare; the rest is slow to compile."""


def is_fast(name: str, contender: str) -> bool:
    """Whether the fast tests compare a contender: of the hand-written ones, that of LSTM alone."""
    return name in FEW if contender == "ours" else name == "lstm"


DROPOUTS = ("dropout", "p", "rate")
"""Attributes that say what share is dropped."""


def without_dropout(case: models.Case) -> models.Case:
    """A case whose model drops nothing."""

    def build() -> torch.nn.Module:
        model = case.build()
        for module in model.modules():
            for name in DROPOUTS:
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
        return model

    return replace(case, build=build)


def first_losses(contender: str, case: models.Case, count: int = 6) -> list[float]:
    convert, step = peers.prepare(contender, case)
    return [step(convert(batch)) for batch in case.batches()[:count]]


@pytest.mark.parametrize(
    ("name", "contender"),
    [
        pytest.param(name, contender, marks=() if is_fast(name, contender) else pytest.mark.slow)
        for name in models.SMALL
        for contender in ("jax", "ours")
        if contender == "ours" or name not in {**SMALL_UNSEEN, **SMALL_ORDINARY}  # not by hand
    ],
)
def test_contenders_compute_what_torch_does(name, contender):
    """Six steps: the later losses are right only if backward pass and optimizer are."""
    case = models.SMALL[name]
    if case.loss_rtol == MASKED:
        case = without_dropout(case)
    # Bfloat16 keeps 8 bits, and its sums may be rounded at other places.
    rel = 2e-3 if name == "mlp_bf16" else 2e-6
    expected = first_losses(peers.REFERENCE, case)
    assert first_losses(contender, case) == pytest.approx(expected, rel=rel)


MASKED_CASES = [name for name, case in SMALL_ORDINARY.items() if case.loss_rtol == MASKED]


@pytest.mark.slow
def test_masks_move_losses_less_than_is_allowed():
    """Of torch with other seeds; with none dropped the losses are the same each time."""
    assert len(MASKED_CASES) == 5
    for name in MASKED_CASES:
        case = ORDINARY[name]
        batch = tuple(map(torch.from_numpy, case.batches()[0]))
        model, plain = case.model(), without_dropout(case).model()
        with torch.no_grad():
            losses = [model(*batch)[0].item() for _ in range(4)]
            kept = [plain(*batch)[0].item() for _ in range(2)]
        assert kept[0] == kept[1] and len(set(losses)) == 4, name
        assert max(losses) < min(losses) * (1 + MASKED), name


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED_CASES)
def test_masked_cases_train(name):
    """As they are: each contender draws masks of its own."""
    case = models.SMALL[name]
    losses = {who: first_losses(who, case) for who in (peers.REFERENCE, "ours")}
    check_losses(name, losses, case.loss_rtol)


def test_losses_move():
    """The comparison above would pass for a contender that does not train otherwise."""
    for name, case in models.SMALL.items():
        if case.loss_rtol == MASKED:
            case = without_dropout(case)
        convert, step = peers.prepare(peers.REFERENCE, case)
        batch = convert(case.batches()[0])
        losses = [step(batch) for _ in range(3)]
        assert losses[0] > losses[2] * (1 + 1e-5), name


@pytest.mark.slow
def test_resnet_by_hand_keeps_torch_statistics():
    import jax

    from bench.peers.by_hand import resnet18

    case = models.SMALL["resnet18"]
    model = case.model()
    p = {k: v.detach().numpy() for k, v in model.named_parameters()}
    b = {k: v.numpy().copy() for k, v in model.named_buffers()}
    image, label = case.batches()[0]
    with jax.disable_jit():
        _, new = resnet18(p, b, image, label)
    model(torch.from_numpy(image), torch.from_numpy(label))
    wanted = dict(model.named_buffers())
    assert new.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(new[key], value.numpy(), rtol=2e-5, atol=1e-6, err_msg=key)


def test_every_case_is_the_same_twice():
    for case in models.SMALL.values():
        one, two = case.model().state_dict(), case.model().state_dict()
        assert all((one[k] == two[k]).all() for k in one)
        for a, b in zip(case.batches()[0], case.batches()[0], strict=True):
            assert (a == b).all()


def test_case_names():
    assert list(models.CASES) == [
        *("logreg-1", "logreg-64", "res_ffn", "lenet-1", "lenet-32", "lenet-256", "resnet18"),
        *("gpt", "gpt2", "lstm", "mlp_bf16", "chain_o0"),
    ]
    assert list(UNSEEN) == [
        *("mixer", "encoder", "unet", "dlrm", "gru"),
        *("vit", "mobilenet", "generator", "wavenet", "moe"),
    ]
    assert list(ORDINARY) == [
        *("post_norm_dropout", "post_norm", "gpt2_dropout", "bert", "vit_drop_path"),
        *("mlp_dropout", "steps-50", "steps-200", "steps-1000"),
    ]
    assert list(models.TIMED) == [*models.CASES, *UNSEEN, *ORDINARY]
    families = {case.family for case in models.TIMED.values()}
    assert families == {case.family for case in models.SMALL.values()}


def test_differing_losses_are_refused():
    check_losses("lenet", {"eager": [1.0, 2.0], "jax": [1.0, 2.001]}, 1e-3)
    with pytest.raises(LossesDiffer, match="lenet differ: eager") as caught:
        check_losses("lenet", {"eager": [1.0, 2.0], "jax": [1.0, 2.003]}, 1e-3)
    assert caught.value.losses["jax"] == [1.0, 2.003]


def test_losses_may_be_as_far_apart_as_torchs_own_ways_take_them():
    eager, compiled = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.004]
    check_losses("x", {"eager": eager, "compile": compiled, "jax": [1.0, 2.0, 3.0, 3.99]}, 1e-3)
    for far in ([1.0, 2.0, 3.0, 4.0125], [1.0, 2.0, 3.004, 4.0], [1.0, 2.003, 3.0, 4.0]):
        with pytest.raises(LossesDiffer):
            check_losses("x", {"eager": eager, "compile": compiled, "jax": far}, 1e-3)
    # What a first update does shows in the second loss: nothing excuses that.
    torchs = {"eager": eager, "compile": [1.0, 2.0019, 3.0, 4.0]}
    with pytest.raises(LossesDiffer):
        check_losses("x", {**torchs, "jax": [1.0, 2.003, 3.0, 4.0]}, 1e-3)


def test_requests_are_answered_in_turn():
    contestant = Contestant(models.SMALL["logreg-1"], "eager")
    took = stages(contestant, FIRST, "")
    assert [*took] == ["import", "model", "first step", "wall"]
    assert took["model"] > 0 and took["first step"] > 0
    answer = steps(contestant, 6)
    assert len(answer["losses"]) == 4 and answer["seconds"] > 0
    fresh = steps(Contestant(models.SMALL["logreg-1"], "eager"), 7)
    # The first request of all took the first batch.
    again = first_losses("eager", models.SMALL["logreg-1"], 5)
    assert fresh["losses"] == again[:4] and answer["losses"] == again[1:]


def test_the_stages_of_this_projects_starts(tmp_path):
    case = models.SMALL["logreg-1"]
    wanted = {
        COMPILE: ["import", "model", "compile", "wall"],
        FIRST: ["import", "model", "trace", "first step", "wall"],
        SECOND: ["import", "model", "trace", "first step", "wall"],
    }
    for command, names in wanted.items():
        took = stages(Contestant(case, "ours"), command, str(tmp_path))
        assert [*took] == names


@pytest.mark.slow
def test_a_worker_that_fails_says_why():
    worker = Worker(case="lenet", contender="nobody", threads=1, small=True)
    said = "nobody failed on lenet: KeyError: 'nobody'"
    with closing(worker), pytest.raises(WorkerFailed, match=said):
        worker.steps(1)


@pytest.mark.slow
def test_a_peer_that_fails_is_reported_and_left_out(tmp_path):
    results = Results()
    wanted = {"cases": ("logreg-1",), "contenders": ("nobody", "eager+alloc")}
    steps_of("steps")(settings(tmp_path, round_seconds=0.01, **wanted), results)
    assert [f.contender for f in results.failures] == ["nobody"]
    [found] = results.measurements
    assert found.contender == "eager+alloc" and len(found.values) == 2 and min(found.values) > 0


class Preparing:
    """Stands in for a worker: notes when it prepares."""

    def __init__(self, name, done):
        self.name, self.done = name, done

    def steps(self, count):
        if self.name == "compile":
            raise WorkerFailed(case="x", contender="compile", reason="no C++ compiler")
        self.done.append(self.name)
        return 0.0, [1.0] * count


def test_contenders_prepare_in_an_order(tmp_path):
    """A peer with our allocator settings comes after the peer whose compiled code it can use."""
    done = []
    names = ["ours", "eager", "compile", "compile+alloc", "eager+alloc"]
    workers = {name: Preparing(name, done) for name in names}
    results = Results()
    losses = first_losses_of("steps", "x", settings(tmp_path, threads=2), results, workers)
    assert list(losses) == ["ours", "eager", "compile+alloc", "eager+alloc"]
    assert done.index("eager") < done.index("eager+alloc")
    assert [(f.contender, f.reason) for f in results.failures] == [("compile", "no C++ compiler")]
    with pytest.raises(WorkerFailed):
        ours = {"ours": Preparing("compile", done)}
        first_losses_of("steps", "x", settings(tmp_path), results, ours)


def test_caches_go_where_they_are_told(tmp_path):
    variables = cache_variables(tmp_path / "x")
    assert (tmp_path / "x").is_dir()
    folders = [value for name, value in variables.items() if not name.endswith("_SECS")]
    assert len(folders) > 3
    assert all(value.startswith(str(tmp_path)) for value in folders)
