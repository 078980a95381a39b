"""What the pages show of signatures is what functions take."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch

import samba
import samba.distributed.bagua as bagua
import samba.sambaloader
import samba.utils
from tests.api.names import DOCUMENTED, PAGES, names
from tests.api.read_pages import REFERENCE, SLIDES, examples, main, pages, reference, uses
from tests.api.signatures import SIGNATURES, Signature, read, written

FOLDER = Path(__file__).parents[3] / "shared" / "reference"
"""The pages, beside a checkout that has them; a plain clone has not."""

SHOWN = {
    signature.name: signature
    for signatures in DOCUMENTED.values()
    for signature in signatures
    if signature.shown is not None
}
BUILTINS = (type(torch.Tensor.dim), type(torch.Tensor.__getitem__), type(torch.add))
ROOTS = {"samba": samba, "bagua": bagua}


def found(name: str) -> object:
    """The object of a documented name."""
    root, _, path = name.partition(".")
    if path.startswith("BaguaTensor."):
        path = path.removeprefix("BaguaTensor.")
    place: object = ROOTS[root]
    for part in path.split("."):
        place = getattr(place, part)
    return place


@pytest.mark.parametrize("name", SHOWN)
def test_a_call_may_be_written_as_the_page_shows_it(name):
    """Names, order and defaults; a function may take more than that."""
    documented = SHOWN[name]
    function = found(name)
    assert callable(function)
    if isinstance(function, BUILTINS):
        return  # torch's own method, which has no signature that could be read
    given = list(inspect.signature(function).parameters.items())
    is_method = name.startswith("bagua.BaguaTensor.") or (given and given[0][0] == "self")
    parameters = dict(given[1:] if is_method else given)
    positional = [
        n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    any_place = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if name.endswith("__"):  # called by an operator, never by keyword
        assert len(positional) == len(documented.positional)
        return
    for place, argument in enumerate(documented.positional):
        if argument in parameters:
            # A keyword alone, where its place has an older name too: SambaLoader's first argument.
            second_name = parameters[argument].kind is inspect.Parameter.KEYWORD_ONLY
            at = positional[place] if place < len(positional) else ""
            assert any_place or at == argument or (second_name and at), f"{argument}: {place}"
        else:
            assert any_place and any_name, f"no argument {argument}"
    for argument in documented.more:
        assert argument in parameters or any_name, f"no argument {argument}"
    for argument, default in documented.defaults.items():
        if argument in parameters:
            ours, theirs = parameters[argument].default, ast.literal_eval(default)
            assert ours == theirs or not (ours or theirs), f"{argument}={ours!r}, not {theirs!r}"


def test_the_file_is_read_as_it_was_written():
    assert written(DOCUMENTED) == SIGNATURES.read_text(encoding="utf-8")
    assert read(written(DOCUMENTED)) == DOCUMENTED


def test_the_file_is_what_the_pages_say(tmp_path, capsys):
    """Where the pages lie beside the checkout; that the names are the file's holds anywhere."""
    assert names(read(SIGNATURES.read_text(encoding="utf-8"))) == PAGES
    if FOLDER.is_dir():
        assert pages(FOLDER) == DOCUMENTED
        assert main([str(FOLDER), "--check"]) == 0
    for file in (*(page.file for page in REFERENCE), SLIDES[1]):
        (tmp_path / file).write_text("")
    assert main([str(tmp_path), "--check"]) == 1
    assert "signatures.txt is not what the pages" in capsys.readouterr().err


PAGE = """
samba.session¶
- class SambaSession(pef_path: str = '')¶
Prose with a \N{EN DASH} dash, and a note:
- trace_graph reads the PEF
- Parameters:
pef_path \N{EN DASH} path
- static run(inputs: Tuple[A, ...] | None = None, *, hyper: Dict[str, int] = {}, **kwargs) None ¶
- Parameters:
inputs \N{EN DASH} what
.graph_name \N{EN DASH} In development. Defaults to
3
.hyper \N{EN DASH} what
*args \N{EN DASH} more
>>> x = samba.randn(2, name='x')
- property tracing: bool¶
Named samba.t and sambatensor.mem_type and model.output_tensors and model.parameters.
"""
DECK = """
Sample Code (App Code)
see samba.utils.common.common_app_driver(...) and drop rates (**p**)
.sn_name (string)
```
x = samba.rand(4, name='x')
y = utils.trace_graph(model, x, pef=p)
z = x.split(2, dim=1)
hyperparam_dict = {'lr': 1}
args.command == "run"
```
Sample Code (Tracing)
```
import torch.nn.functional as F
x = samba.rand(4)
F.relu(x)
x.split(2, dim=1)
loop(X,...)
```
run it with --batch-size
```
SambaLoader(torch_loader: List[T], names: List[str])
```
```
python <app>.py run -p <x.pef>
```
"""


def test_a_page_of_reference_is_read():
    session = REFERENCE[0]
    read_page = reference(session, PAGE)
    assert [signature.line() for signature in read_page] == [
        "samba.SambaSession(pef_path='')",
        "samba.session.run(inputs=None, *, hyper={}, **kwargs) + graph_name args",
        "samba.session.tracing",
    ]
    assert [signature.line() for signature in examples(PAGE, read_page)] == [
        "samba.randn + name",
        "samba.t",
        "samba.SambaTensor.mem_type",
        "model.output_tensors",
    ]


def test_slides_are_read():
    known = [Signature.parse("samba.utils.trace_graph", "model, inputs, pef=''")]
    assert [signature.line() for signature in uses(DECK, known)] == [
        "samba.utils.common.common_app_driver",
        "samba.SambaTensor.sn_name",
        "samba.session.run + hyperparam_dict[p] hyperparam_dict[lr]",
        "samba.rand + name",
        "samba.utils.trace_graph + model inputs pef",
        "samba.utils.argparser.parse_app_args + command batch_size",
        "torch.nn.functional.relu",
        "torch.Tensor.split + dim",
        "samba.sambaloader.SambaLoader(torch_loader, names)",
    ]
