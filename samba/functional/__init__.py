"""Functions on tensors: torch's own, and those that SambaFlow adds (``addmm``, ``sn_gather``, …).

They run eagerly as plain torch and are traced inside ``forward``.
"""

from samba.functional import (
    activation,
    arithmetic,
    layers,
    logical,
    loss,
    reduce,
    stir,
    tensorarithmetic,
    tensorops,
)
from samba.functional import (
    binning as binning,
)
from samba.functional.activation import *  # noqa: F403  # each module says what it gives
from samba.functional.arithmetic import *  # noqa: F403
from samba.functional.binning import groupby
from samba.functional.layers import *  # noqa: F403
from samba.functional.logical import *  # noqa: F403
from samba.functional.loss import *  # noqa: F403
from samba.functional.reduce import *  # noqa: F403
from samba.functional.stir import *  # noqa: F403
from samba.functional.tensorarithmetic import *  # noqa: F403
from samba.functional.tensorops import *  # noqa: F403

__all__: list[str] = ["groupby"]
__all__ += activation.__all__
__all__ += arithmetic.__all__
__all__ += layers.__all__
__all__ += logical.__all__
__all__ += loss.__all__
__all__ += reduce.__all__
__all__ += stir.__all__
__all__ += tensorarithmetic.__all__
__all__ += tensorops.__all__
