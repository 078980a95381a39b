"""A process that draws calls of the native kernels, for those that watch its memory.

    python -m tests.emulator.native.drawing COUNT [KERNELS]

computes so many convolutions and products, and a sixth as many recurrent layers, by kernels of
another file if one is named.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings


def main() -> None:
    """Draw what the command line asks for, and print how much was computed."""
    os.environ.pop("LD_PRELOAD", None)  # compilers that jax starts are not watched
    from emulator.kernels import conv_by_native, convolutions, products
    from emulator.native import library
    from tests.emulator.native import test_drawn, test_drawn_recurrences

    count = int(sys.argv[1])
    if len(sys.argv) > 2:
        library._path_of_kernels = lambda: Path(sys.argv[2])
    test_drawn_recurrences.take_small_ones(setattr)
    convolutions._LEAST_FOR_NATIVE = 0
    conv_by_native._LARGE_DATA = 0
    products._LEAST_FOR_NATIVE = {"float32": 0, "bfloat16": 0}
    done: Counter[str] = Counter()

    @given(case=test_drawn._convolutions())
    @settings(max_examples=count, deadline=None, database=None)
    def convolutions_(case: Any) -> None:
        done["convolutions"] += sum(test_drawn._check_convolution(case).values())

    @given(case=test_drawn._products())
    @settings(max_examples=count, deadline=None, database=None)
    def products_(case: Any) -> None:
        done["products"] += test_drawn._check_product(case)

    @given(case=test_drawn_recurrences._layers())
    @settings(max_examples=max(1, count // 6), deadline=None, database=None)
    def layers(case: Any) -> None:
        done["layers"] += test_drawn_recurrences.check_layer(case)

    convolutions_()
    products_()
    layers()
    print(*done.values())


if __name__ == "__main__":
    main()
