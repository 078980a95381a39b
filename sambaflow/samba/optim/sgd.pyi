from samba.optim.sgd import (
    Adadelta as Adadelta,
    Adagrad as Adagrad,
    RMSprop as RMSprop,
    SGD as SGD,
)
