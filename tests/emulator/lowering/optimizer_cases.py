"""Optimizers of the device with settings of every kind, for all tests of their update rules."""

from __future__ import annotations

from typing import Any

import torch

from samba.distributed.bagua import QAdamOptimizer

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
RMSprop, Adagrad, Adadelta = torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta
Adamax, NAdam, RAdam = torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam
Case = tuple[type[torch.optim.Optimizer], dict[str, Any]]
CASES: dict[str, Case] = {
    "sgd": (SGD, {"lr": 0.1}),
    "sgd decay": (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    "sgd momentum": (SGD, {"lr": 0.01, "momentum": 0.9}),
    "sgd all": (
        SGD,
        {"lr": 0.01, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True},
    ),
    "sgd nesterov": (
        SGD,
        {"lr": 0.01, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    ),
    "adam": (Adam, {"lr": 0.02}),
    "adam all": (
        Adam,
        {"lr": 0.02, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-2, "maximize": True},
    ),
    "adam amsgrad": (Adam, {"lr": 0.02, "amsgrad": True}),
    "adam decoupled": (Adam, {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": (AdamW, {"lr": 0.02, "weight_decay": 0.1}),
    "adamw all": (
        AdamW,
        {"lr": 0.02, "amsgrad": True, "maximize": True, "betas": (0.8, 0.9), "eps": 1e-2},
    ),
    "qadam warming up": (QAdamOptimizer, {"lr": 0.02, "warmup_steps": 101}),
    "qadam all": (
        QAdamOptimizer,
        {
            "lr": 0.02,
            "warmup_steps": 4,
            "weight_decay": 0.1,
            "betas": (0.8, 0.9),
            "eps": 1e-2,
        },
    ),
    "rmsprop": (RMSprop, {"lr": 0.01}),
    "rmsprop momentum": (
        RMSprop,
        {"lr": 0.01, "alpha": 0.9, "eps": 0.01, "momentum": 0.7, "weight_decay": 0.1},
    ),
    "rmsprop centered": (RMSprop, {"lr": 0.01, "alpha": 0.3, "eps": 0.1, "centered": True}),
    "rmsprop all": (
        RMSprop,
        {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.2, "centered": True, "maximize": True},
    ),
    "adagrad": (Adagrad, {"lr": 0.1}),
    "adagrad decay": (Adagrad, {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.1, "eps": 0.1}),
    "adagrad all": (
        Adagrad,
        {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.7, "maximize": True},
    ),
    "adadelta": (Adadelta, {}),
    "adadelta all": (
        Adadelta,
        {"lr": 0.5, "rho": 0.8, "eps": 0.01, "weight_decay": 0.1, "maximize": True},
    ),
    "adamax": (Adamax, {"lr": 0.02}),
    "adamax all": (
        Adamax,
        {"lr": 0.02, "betas": (0.4, 0.9), "eps": 0.1, "weight_decay": 0.1, "maximize": True},
    ),
    "nadam": (NAdam, {"lr": 0.02}),
    "nadam all": (
        NAdam,
        {
            "lr": 0.02,
            "betas": (0.8, 0.9),
            "eps": 0.1,
            "weight_decay": 0.1,
            "momentum_decay": 0.05,
            "maximize": True,
        },
    ),
    "nadam decoupled": (
        NAdam,
        {"lr": 0.02, "weight_decay": 0.3, "decoupled_weight_decay": True, "betas": (0.4, 0.99)},
    ),
    "radam": (RAdam, {"lr": 0.02}),
    "radam all": (
        RAdam,
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 0.1, "weight_decay": 0.1, "maximize": True},
    ),
    "radam decoupled": (
        RAdam,
        {"lr": 0.02, "weight_decay": 0.3, "decoupled_weight_decay": True},
    ),
    "radam never rectified": (RAdam, {"lr": 0.02, "betas": (0.9, 0.5)}),
    "rmsprop foreach": (RMSprop, {"lr": 0.01, "momentum": 0.5, "foreach": True}),
    "nadam foreach": (NAdam, {"lr": 0.02, "foreach": True}),
    "adagrad fused": (Adagrad, {"lr": 0.1, "fused": True}),
}
"""By a name. Each option of each class is in one of them, and each kind of optimizer."""
