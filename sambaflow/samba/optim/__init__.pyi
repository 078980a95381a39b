from samba.optim import (
    Adam as Adam,
    AdamW as AdamW,
    SGD as SGD,
    SparseAdamW as SparseAdamW,
)
