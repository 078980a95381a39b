"""Write the stubs of ``sambaflow.samba`` and what ``samba.optim`` exports, or check that they fit.

    python tools/write_stubs.py            write sambaflow/samba/**.pyi and samba/optim/__init__.py
    python tools/write_stubs.py --check    exit 1 if they do not match the modules of samba

``sambaflow.samba`` turns into the package ``samba`` when it is imported, which type checkers
cannot know. A stub for each module that scripts import says which names of the real one it has.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = Path("sambaflow", "samba")
REAL = "samba"
ROOMS = {
    *("comparison", "compiler", "distributed", "exporting", "inspection", "remembering"),
    *("reporting", "session", "support", "tensor", "tracer"),
}
"""Rooms of which scripts import no module but those of ``PUBLIC``."""
INTERNAL = {
    *("argconf/app_parser.py", "argconf/options.py", "argconf/parsed.py"),
    "nn/converted.py",
    "surface.py",
    *("utils/flat_yaml.py", "utils/misc.py", "utils/uncaught.py", "utils/weight_norm.py"),
}
"""Modules in the other rooms that no script imports."""
PUBLIC = {
    "_trace_utils.py",
    "distributed/__init__.py",
    "distributed/bagua/__init__.py",
    "distributed/bagua/algorithms/__init__.py",
    *("distributed/bagua/install.py", "distributed/bagua/cuda_on_cpu.py"),
    *("distributed/bagua/torch_api/__init__.py", "distributed/bagua/torch_api/tensor.py"),
    "session/__init__.py",
}
"""Modules that scripts import, although their room or their name looks internal."""
GATHERED = Path(REAL, "optim", "__init__.py")
"""Exports what the modules beside it list in their ``__all__``."""


def is_public(inside: Path) -> bool:
    """Tell whether scripts import a module.

    Args:
        inside: Its file, from the package.

    Returns:
        Whether there is a stub of it.
    """
    if inside.as_posix() in PUBLIC:
        return True
    hidden = inside.stem.startswith("_") and inside.stem != "__init__"
    return not (hidden or inside.parts[0] in ROOMS or inside.as_posix() in INTERNAL)


def exports(module: str, text: str) -> Sequence[str]:
    """Return the names that a module exports.

    Args:
        module: Its dotted name; it is imported.
        text: Its text.

    Returns:
        The names of its ``__all__``; without one, what it defines at its top level or imports as
        its own (``x as x``) and does not begin with an underscore, and its version.
    """
    listed: Sequence[str] | None = getattr(importlib.import_module(module), "__all__", None)
    if listed is not None:
        return sorted(listed)
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.name for alias in node.names if alias.name == alias.asname)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return sorted(n for n in names if not n.startswith("_") or n == "__version__")


def gathered(root: Path) -> str:
    """Return the text of the package whose exports are those of its modules.

    Args:
        root: The folder that holds the packages.

    Returns:
        Its docstring, and an import of every name that a module beside it lists.
    """
    path = root / GATHERED
    lines = path.read_text().partition("\nfrom ")[0] + "\n"
    for module in sorted(path.parent.glob("*.py")):
        name = f"{REAL}.{path.parent.name}.{module.stem}"
        names = getattr(importlib.import_module(name), "__all__", ()) if module != path else ()
        if names:
            # ruff's order: first what is written in capitals.
            ordered = sorted(names, key=lambda n: (not n.isupper(), n.lower()))
            listed = "".join(f"    {n} as {n},\n" for n in ordered)
            lines += f"from {name} import (\n{listed})\n"
    return lines


def stubs(root: Path) -> dict[Path, str]:
    """Return the text of each stub by its path.

    Args:
        root: The folder that holds the packages.

    Returns:
        A stub for each public module of the package, in order; before them :data:`GATHERED`.
    """
    texts = {GATHERED: gathered(root)}
    for path in sorted((root / REAL).rglob("*.py")):
        inside = path.relative_to(root / REAL)
        if not is_public(inside):
            continue
        package = path.name == "__init__.py"
        module = ".".join((REAL, *(inside.parent if package else inside.with_suffix("")).parts))
        names = exports(module, texts.get(path.relative_to(root)) or path.read_text())
        listed = "".join(f"    {name} as {name},\n" for name in names)
        text = f"from {module} import (\n{listed})\n" if names else ""
        texts[STUBS / inside.with_suffix(".pyi")] = text
    return texts


def main() -> int:
    """Write or check the stubs; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the stubs of sambaflow.samba.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if they differ")
    check = parser.parse_args().check
    sys.path.insert(0, str(ROOT))  # run as a script, the modules are those of this tree
    texts = stubs(ROOT)
    written = (ROOT / GATHERED, *(ROOT / STUBS).rglob("*.pyi"))
    there = {path.relative_to(ROOT): path.read_text() for path in written}
    if check:
        wrong = sorted(p for p in {*texts, *there} if texts.get(p) != there.get(p))
        for path in wrong:
            print(f"{path}:1: differs from the modules of {REAL}: run tools/write_stubs.py")
        return 1 if wrong else 0
    shutil.rmtree(ROOT / STUBS, ignore_errors=True)
    for path, text in texts.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
