"""Importing this module checks torch's version, before a private name of torch can be missed."""

import torch

from emulator.versions import TORCH

TORCH.check(torch.__version__)
