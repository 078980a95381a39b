from samba.optim import (
    Adadelta as Adadelta,
    Adagrad as Adagrad,
    Adam as Adam,
    AdamW as AdamW,
    Adamax as Adamax,
    NAdam as NAdam,
    RAdam as RAdam,
    RMSprop as RMSprop,
    SGD as SGD,
    SparseAdamW as SparseAdamW,
)
