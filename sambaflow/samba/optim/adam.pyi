from samba.optim.adam import (
    Adam as Adam,
    AdamW as AdamW,
    Adamax as Adamax,
    NAdam as NAdam,
    RAdam as RAdam,
    SparseAdamW as SparseAdamW,
)
