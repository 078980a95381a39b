from samba.optim.adam import (
    Adam as Adam,
    AdamW as AdamW,
    SparseAdamW as SparseAdamW,
)
