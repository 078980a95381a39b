"""The facts of ops are to be had without their lowerings, and are those of the ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emulator.op_facts.names import ALIAS, CASTS, NEXT_SEED
from emulator.op_facts.signatures import KINDS, signature_of, signatures
from emulator.op_facts.table import op_facts
from emulator.ops.registry import load_ops
from tools import op_signatures, regen_op_facts


def test_generated_facts_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    stale = regen_op_facts.main(["--check"])
    assert not stale, capsys.readouterr().err  # it says which command to run


def test_stale_facts_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "_generated.py"
    ops = dict(load_ops())
    ops["aten.add.Tensor"] = replace(ops["aten.add.Tensor"], cheap=False)
    old.write_text(regen_op_facts.generate(ops), encoding="utf-8")
    monkeypatch.setattr(regen_op_facts, "GENERATED", old)
    monkeypatch.setattr(regen_op_facts, "ROOT", tmp_path)
    assert regen_op_facts.main(["--check"]) == 1
    assert "run python tools/regen_op_facts.py" in capsys.readouterr().err
    assert regen_op_facts.main([]) == 0
    assert regen_op_facts.main(["--check"]) == 0


def test_the_table_holds_the_facts_of_every_op() -> None:
    assert dict(op_facts()) == regen_op_facts.facts_of(load_ops())


def test_inserted_ops_have_lowerings() -> None:
    assert {ALIAS, NEXT_SEED, *CASTS} <= op_facts().keys()


def test_every_op_has_a_signature() -> None:
    assert signatures().keys() == op_facts().keys()
    for name in signatures():
        found = signature_of(name)
        assert found is not None
        assert {p.kind for p in found.parameters} <= KINDS.keys(), name
        assert found.results, name
        assert {"seed", "stream"} <= {p.name for p in found.parameters} or not op_facts()[
            name
        ].random


def test_signatures_say_what_torch_does() -> None:
    found = signature_of("aten.sum.dim_IntList")
    assert found is not None
    x, dims, keep, dtype = found.parameters
    assert (x.kind, x.default, x.listed) == ("t", False, False)
    assert (dims.kind, dims.listed, dims.length, dims.optional) == ("i", True, 1, True)
    assert (keep.kind, keep.default, keep.keyword) == ("b", True, False)
    assert (dtype.kind, dtype.optional, dtype.keyword) == ("d", True, True)


def test_stale_signatures_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "_signatures.py"
    ops = dict(load_ops())
    del ops["aten.add.Tensor"]
    old.write_text(op_signatures.generate_signatures(ops), encoding="utf-8")
    monkeypatch.setattr(regen_op_facts, "SIGNATURES", old)
    assert regen_op_facts.main(["--check"]) == 1
    assert "_signatures.py does not match emulator/ops" in capsys.readouterr().err


def test_order_does_not_depend_on_how_ops_are_registered() -> None:
    ops = load_ops()
    assert regen_op_facts.generate(ops) == regen_op_facts.generate(dict(reversed(ops.items())))
