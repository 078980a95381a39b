from samba.optim.qadam import (
    QAdamOptimizer as QAdamOptimizer,
)
