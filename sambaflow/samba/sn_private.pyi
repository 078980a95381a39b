from samba.sn_private import (
    SNType as SNType,
    sn_fma as sn_fma,
    sn_gather as sn_gather,
    sn_imm as sn_imm,
    sn_iteridx as sn_iteridx,
    sn_multinomial as sn_multinomial,
    sn_reduce as sn_reduce,
    sn_scatter as sn_scatter,
    sn_select as sn_select,
    sn_zipmapreduce as sn_zipmapreduce,
)
