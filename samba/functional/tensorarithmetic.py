"""Products of matrices and running sums. Functions of torch under SambaFlow's paths."""

from torch import (
    baddbmm as baddbmm,
    bmm as bmm,
    cumprod as cumprod,
    cumsum as cumsum,
    dot as dot,
    einsum as einsum,
    matmul as matmul,
    mm as mm,
    mv as mv,
)

from samba.functional._added import addmm as addmm
