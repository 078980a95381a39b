"""The facts of ops are to be had without their lowerings, and are those of the ops."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from emulator.op_facts import flops, index_uses, product_flops, scratch
from emulator.op_facts.facts import OpFacts, StatedFacts
from emulator.op_facts.names import ALIAS, CASTS, NEXT_SEED
from emulator.op_facts.table import KINDS, op_facts, signature_of, signatures
from emulator.ops.registry import load_ops, op
from samba.compiler import value_ranges
from tools import regen_op_facts


def test_generated_facts_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    stale = regen_op_facts.main(["--check"])
    assert not stale, capsys.readouterr().err  # it says which command to run


def test_stale_facts_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = dict(load_ops())
    changed = {**ops, "aten.add.Tensor": replace(ops["aten.add.Tensor"], cheap=False)}
    missing = {name: spec for name, spec in ops.items() if name != "aten.add.Tensor"}
    old = tmp_path / "ops.json"
    monkeypatch.setattr(regen_op_facts, "RECORDS", old)
    for stale in (changed, missing):
        old.write_text(regen_op_facts.generate(stale), encoding="utf-8")
        assert regen_op_facts.main(["--check"]) == 1
        assert "ops.json does not match emulator/ops" in (said := capsys.readouterr().err)
        assert "run python tools/regen_op_facts.py" in said
    assert regen_op_facts.main([]) == 0
    assert regen_op_facts.main(["--check"]) == 0


def test_a_signature_that_changed_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = regen_op_facts.generate(load_ops())
    old = tmp_path / "ops.json"
    monkeypatch.setattr(regen_op_facts, "RECORDS", old)
    old.write_text(text.replace("alpha:n= > t", "alpha:i= > t", 1), encoding="utf-8")
    assert regen_op_facts.main(["--check"]) == 1


def test_the_table_holds_the_facts_of_every_op() -> None:
    assert dict(op_facts()) == regen_op_facts.facts_of(load_ops())


def test_every_rule_is_there_that_a_fact_names_and_no_other() -> None:
    facts = op_facts().values()
    assert {f.flops[0] for f in facts if f.flops} == flops._RULES.keys()
    assert {f.products for f in facts if f.products} == product_flops._FORMULAS.keys()
    assert {f.scratch for f in facts if f.scratch} == scratch._RULES.keys()
    assert {f.indices for f in facts if f.indices} == index_uses._FINDERS.keys()
    assert {f.ranges[0] for f in facts if f.ranges} == value_ranges._RULES.keys()


def test_what_follows_from_other_facts_need_not_be_said() -> None:
    facts = op_facts()
    view = facts["aten.view.default"]
    stated = OpFacts(view=True, elements="first")
    assert view == replace(stated, moves=True, reads=(), cheap=True, complex=True)
    assert not facts["aten.gather.default"].cheap  # it reads its indices
    assert not facts["aten.one_hot.default"].complex  # it says so
    assert facts["aten.argmax.default"].reads == ()  # it is not differentiable


def test_what_an_op_may_state_is_what_facts_hold() -> None:
    assert list(StatedFacts.__annotations__) == [field.name for field in fields(OpFacts)]


def test_a_fact_that_is_none_is_refused_where_it_is_stated() -> None:
    with pytest.raises(TypeError, match="chaep"):
        op("test.misspelled.default", chaep=True)(lambda x: x)
    assert "test.misspelled.default" not in load_ops()


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


def test_order_does_not_depend_on_how_ops_are_registered() -> None:
    ops = load_ops()
    assert regen_op_facts.generate(ops) == regen_op_facts.generate(dict(reversed(ops.items())))
