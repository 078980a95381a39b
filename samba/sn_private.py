"""Parallel patterns under the path that later scripts import them from."""

from samba.functional.stir import (
    SNType,
    sn_fma,
    sn_gather,
    sn_imm,
    sn_iteridx,
    sn_multinomial,
    sn_reduce,
    sn_scatter,
    sn_select,
    sn_zipmapreduce,
)

__all__ = [
    "SNType",
    "sn_fma",
    "sn_gather",
    "sn_imm",
    "sn_iteridx",
    "sn_multinomial",
    "sn_reduce",
    "sn_scatter",
    "sn_select",
    "sn_zipmapreduce",
]
