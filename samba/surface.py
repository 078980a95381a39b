"""What ``import samba`` offers: SambaFlow's names."""

# ruff: noqa: F401, F403  # what is imported is exported

from collections.abc import Sequence as _Sequence

from pef_schema.drawing import provide_drawing as _provide_drawing
from pef_schema.program import Program as _Program
from samba import (
    directives,
    env,
    errors,
    functional,
    graph,
    nn,
    optim,
    profiler,
    random,
    sambaloader,
    sambatensor,
    sn_private,
    utils,
)
from samba.errors import SambaError
from samba.functional import *
from samba.nn.conversion import (
    from_named_dict,
    from_torch,
    from_torch_,
    from_torch_model,
    from_torch_model_,
    patched_torch,
    to_torch_tensor,
)
from samba.nn.parameter import SambaParameter
from samba.random import *
from samba.sambatensor import SambaTensor, from_torch_tensor, to_torch
from samba.session import SambaSession
from samba.session.process import session
from samba.tensor.bagua_handle import TensorWorld as _TensorWorld, provide_world as _provide_world
from samba.utils.utils import trace_multigraph
from samba.version import __version__


def _bagua_world() -> _TensorWorld:
    from samba.distributed.bagua.world import current_world  # noqa: PLC0415  # few scripts use Bagua

    return current_world()


_provide_world(_bagua_world)


def _drawing(program: _Program, rows: _Sequence[tuple[str, str]]) -> str:
    from samba.reporting.page import summary  # noqa: PLC0415  # for notebooks only

    return summary(program, rows)


_provide_drawing(_drawing)


def is_internal() -> bool:
    """Tells whether this is a vendor-internal build: never."""
    return False


# Type checkers cannot read this, and take all that is imported.
__all__ = [name for name in dict(globals()) if name == "__version__" or not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
