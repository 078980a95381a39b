from samba.functional.tensorarithmetic import (
    addmm as addmm,
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
