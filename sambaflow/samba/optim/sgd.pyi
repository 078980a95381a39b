from samba.optim.sgd import (
    SGD as SGD,
)
