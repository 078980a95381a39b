"""A process that draws calls of the native kernels, for those that watch its memory.

    python -m tests.emulator.native.drawing KIND COUNT [KERNELS]

draws so many convolutions, products or layers, and computes them by kernels of another file if one
is named.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings


def main() -> None:
    """Draw what the command line asks for, and print how much was computed."""
    os.environ.pop("LD_PRELOAD", None)  # compilers that jax starts are not watched
    from emulator.kernels import conv_by_native, convolutions, products
    from emulator.native import library
    from tests.emulator.native import test_drawn, test_drawn_recurrences

    kind, count, *kernels = sys.argv[1:]
    if kernels:
        library._path_of_kernels = lambda: Path(kernels[0])
    test_drawn_recurrences.take_small_ones(setattr)
    convolutions._LEAST_FOR_NATIVE = 0
    conv_by_native._LARGE_DATA = 0
    products._LEAST_FOR_NATIVE = {"float32": 0, "bfloat16": 0}
    cases, check = {
        "convolutions": (
            test_drawn._convolutions(),
            lambda case: sum(test_drawn._check_convolution(case).values()),
        ),
        "products": (test_drawn._products(), test_drawn._check_product),
        "layers": (test_drawn_recurrences._layers(), test_drawn_recurrences.check_layer),
    }[kind]
    done: list[int] = []

    @given(case=cases)
    @settings(max_examples=int(count), deadline=None, database=None)
    def run(case: Any) -> None:
        done.append(int(check(case)))

    run()
    print(sum(done))


if __name__ == "__main__":
    main()
