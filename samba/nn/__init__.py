"""SambaFlow's modules: only parameters; layers are torch's."""

from samba.nn import parameter
from samba.nn.parameter import SambaParameter

__all__ = ["SambaParameter", "parameter"]
