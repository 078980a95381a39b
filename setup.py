"""Builds the native kernels; everything else about the package is in ``pyproject.toml``.

They are left out where there is no compiler or no oneDNN: XLA's own code computes the same.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("emulator/native/src")
COMPILER = "ziglang"
"""The package of the compiler that is used where the system has none."""


def is_for_this_system() -> bool:
    """Whether the kernels are for this system: oneDNN's package is for no other."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def has_compiler() -> bool:
    """Whether the system has a compiler of C++, or the environment names one."""
    return bool(os.environ.get("CXX")) or any(map(shutil.which, ("c++", "g++", "clang++")))


def path_in(package: str, name: str) -> Path | None:
    """Where a package has put a file of some name; None without the package or the file."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())).resolve() for f in files if f.name == name), None)


def digest_of_sources() -> int:
    """What ``emulator.native.library`` compares with: kernels of other sources are not called."""
    data = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]*")))
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def native_kernels() -> list[Extension]:
    """The library of kernels; none on systems that it is not for, or without what it is made of."""
    if not is_for_this_system():
        return []
    try:
        from jax.ffi import include_dir  # noqa: PLC0415  # a build may be without jax
    except ImportError:
        return []
    header = path_in("onednn-devel-cpu-gomp", "dnnl.hpp")
    library = path_in("onednn-cpu-gomp", "libdnnl.so.3")
    if header is None or library is None:
        return []
    if not has_compiler() and importlib.util.find_spec(COMPILER) is not None:
        os.environ["CC"] = f"{sys.executable} -m {COMPILER} cc"
        os.environ["CXX"] = f"{sys.executable} -m {COMPILER} c++"
        os.environ["LDSHARED"] = f"{sys.executable} -m {COMPILER} cc -shared"
        os.environ["LDCXXSHARED"] = f"{sys.executable} -m {COMPILER} c++ -shared"
    return [
        Extension(
            "emulator.native._kernels",
            sources=sorted(str(path) for path in SOURCES.glob("*.cc")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            define_macros=[("NDEBUG", None), ("EMULATOR_SOURCES", f"{digest_of_sources()}u")],
            extra_compile_args=[
                *("-std=c++17", "-O3", "-g0", "-fvisibility=hidden"),
                # No kernel is called without these extensions; loops with choices become vectors.
                *("-mavx2", "-mfma", "-fno-trapping-math"),
                *("-isystem", include_dir(), "-isystem", str(header.parent)),
            ],
            extra_link_args=[str(library)],
            language="c++",
            optional=True,
        )
    ]


setup(
    ext_modules=native_kernels(),
    # Asked for where a build installs what it needs, and there is no compiler.
    setup_requires=[COMPILER] if is_for_this_system() and not has_compiler() else [],
)
