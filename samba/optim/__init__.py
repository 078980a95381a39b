"""Optimizers: torch's update rules on the host, the same rules in the OPT section on the device."""

from samba.optim.adam import (
    Adam as Adam,
    Adamax as Adamax,
    AdamW as AdamW,
    NAdam as NAdam,
    RAdam as RAdam,
    SparseAdamW as SparseAdamW,
)
from samba.optim.sgd import (
    SGD as SGD,
    Adadelta as Adadelta,
    Adagrad as Adagrad,
    RMSprop as RMSprop,
)
