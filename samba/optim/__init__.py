"""Optimizers: torch's update rules on the host, the same rules in the OPT section on the device."""

from samba.optim.adam import Adam, AdamW, SparseAdamW
from samba.optim.adaptive import Adadelta, Adagrad, RMSprop
from samba.optim.moments import Adamax, NAdam, RAdam
from samba.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "SparseAdamW",
]
