"""Builds the native kernels; everything else about the package is in ``pyproject.toml``.

They are left out where there is no compiler or no oneDNN: XLA's own code computes the same.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("emulator/native/src")


def native_kernels() -> list[Extension]:
    """The library of kernels; none on systems that it is not for, or without its headers."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    try:
        from jax.ffi import include_dir  # noqa: PLC0415  # a build may be without jax
    except ImportError:
        return []
    root = Path(sysconfig.get_path("data"))
    library = root / "lib" / "libdnnl.so.3"
    if not library.is_file():
        return []
    return [
        Extension(
            "emulator.native._kernels",
            sources=sorted(str(path) for path in SOURCES.glob("*.cc")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            define_macros=[("NDEBUG", None)],
            extra_compile_args=[
                *("-std=c++17", "-O2", "-g0"),
                *("-isystem", include_dir(), "-isystem", str(root / "include")),
            ],
            extra_link_args=[str(library)],
            language="c++",
            optional=True,
        )
    ]


setup(ext_modules=native_kernels())
