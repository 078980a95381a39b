"""Reductions over dimensions. Functions of torch under SambaFlow's paths."""

from torch import (
    all as all,
    amax as amax,
    amin as amin,
    any as any,
    argmax as argmax,
    argmin as argmin,
    logsumexp as logsumexp,
    max as max,
    mean as mean,
    median as median,
    min as min,
    norm as norm,
    prod as prod,
    std as std,
    sum as sum,
    var as var,
)
