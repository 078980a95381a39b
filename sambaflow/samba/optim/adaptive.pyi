from samba.optim.adaptive import (
    Adadelta as Adadelta,
    Adagrad as Adagrad,
    RMSprop as RMSprop,
)
