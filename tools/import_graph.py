"""The figures of the import graph, each held to its limit.

    python -m tools.import_graph            print the figures; exit 1 if one is beyond its limit

Every import counts, those under ``TYPE_CHECKING`` and inside functions too. The limits stand in
``[tool.import_graph]`` of pyproject.toml. The order of samba's layers stands there once as well, as
a contract of import-linter, which checks it; here its exceptions are counted, and each must name
two modules and give its reason on its line.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import grimp

from tools.import_settings import LAYERED, Settings

ROOT = Path(__file__).resolve().parent.parent
EXEMPTION = re.compile(r"# noqa: PLC0415  # \S")
"""How a line says why its import stands inside a function."""
BY_NAME = re.compile(r"# by name: \S")
"""How a line says why it imports by ``importlib.import_module``, which the graph cannot see."""


def rooms(root: Path) -> list[str]:
    """Return the modules and folders at the top of the layered package.

    Args:
        root: The folder that holds the packages.

    Returns:
        Their names in order, folders with a slash.
    """
    top = root / LAYERED
    files = [path.name for path in top.glob("*.py")]
    return sorted(files + [f"{path.parent.name}/" for path in top.glob("*/__init__.py")])


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the import circles: the largest sets of modules that all lead to one another.

    Args:
        graph: The import graph.

    Returns:
        Each circle's modules in order, the largest circle first.
    """
    needs = {module: graph.find_upstream_modules(module) for module in sorted(graph.modules)}
    found: list[list[str]] = []
    seen: set[str] = set()
    for module, needed in needs.items():
        circle = {other for other in needed if module in needs[other]} - {module}
        if circle and module not in seen:
            seen |= circle
            found.append(sorted({module, *circle}))
    return sorted(found, key=lambda circle: (-len(circle), circle))


@dataclass(frozen=True, slots=True)
class InnerImport:
    """An import of one of the project's own modules inside a function, or by its name.

    Attributes:
        path: The file, from the root.
        line: Its line.
        name: What it imports.
        reason: Whether its line says why it stands there.
        by_name: Whether ``importlib.import_module`` does it.
    """

    path: Path
    line: int
    name: str
    reason: bool
    by_name: bool = False


def named_import(node: ast.AST, packages: tuple[str, ...]) -> str | None:
    """Return what a call of ``importlib.import_module`` imports.

    Args:
        node: Any node of a file's syntax tree.
        packages: The project's own packages.

    Returns:
        The name as it is written, where that is a literal or an f-string and one of the
        project's own; else None.
    """
    if not (isinstance(node, ast.Call) and node.args):
        return None
    if ast.unparse(node.func).rpartition(".")[2] != "import_module":
        return None
    name = node.args[0]
    if not isinstance(name, ast.Constant | ast.JoinedStr):
        return None
    text = ast.unparse(name).lstrip("f")[1:-1]
    own = text.partition(".")[0] in packages or text.startswith(
        (".", "{__name__}", "{__package__}")
    )
    return text if own else None


def inner_imports(root: Path, packages: tuple[str, ...]) -> list[InnerImport]:
    """Return the imports of own modules that stand inside functions, or go by the name.

    Args:
        root: The folder that holds the packages.
        packages: The project's own packages.

    Returns:
        The imports by file and line.
    """
    found: list[InnerImport] = []
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text()
            lines = text.splitlines()
            tree = ast.parse(text, filename=str(path))
            for node in ast.walk(tree):
                name = named_import(node, packages)
                if name is not None and isinstance(node, ast.Call):
                    line = node.lineno
                    reason = BY_NAME.search(lines[line - 1]) is not None
                    found.append(InnerImport(path.relative_to(root), line, name, reason, True))
            statements = {
                node.lineno: node
                for function in ast.walk(tree)
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                for node in ast.walk(function)
                if isinstance(node, ast.Import | ast.ImportFrom)
            }
            for line, node in sorted(statements.items()):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    names = ["." * node.level + (node.module or "")]
                own = [n for n in names if n.startswith(".") or n.partition(".")[0] in packages]
                if own:
                    reason = EXEMPTION.search(lines[line - 1]) is not None
                    found.append(InnerImport(path.relative_to(root), line, ", ".join(own), reason))
    return found


class Checked:
    """A tree whose figures are taken and held to the limits.

    Args:
        root: The folder that holds pyproject.toml and the packages.

    Attributes:
        figures: One line for each figure.
        problems: One line for each thing that is beyond its limit: where, what, what to do.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings.read(root / "pyproject.toml")
        self.figures: list[str] = []
        self.problems: list[str] = []
        packages = self.settings.packages
        self.graph = grimp.build_graph(packages[0], *packages[1:], cache_dir=None)
        self._rooms()
        self._circles()
        self._upward()
        self._inner()

    def _figure(self, what: str, value: int, limit: int) -> bool:
        """Note a figure and tell whether it is within its limit."""
        self.figures.append(f"{what}: {value} (at most {limit})")
        return value <= limit

    def _rooms(self) -> None:
        found = rooms(self.root)
        limit = self.settings.limits.rooms
        if not self._figure(f"modules and folders at the top of {LAYERED}", len(found), limit):
            self.problems.append(
                f"{LAYERED}/:1: {len(found)} modules and folders ({', '.join(found)}), "
                f"at most {limit}: put what belongs together into one folder"
            )

    def _folder(self, module: str) -> str:
        """Return the package a module's file lies in; a package's is its own."""
        return module if self._file(module).name == "__init__.py" else module.rpartition(".")[0]

    def _file(self, module: str) -> Path:
        """Return a module's file, from the root."""
        path = Path(*module.split("."))
        inside = path / "__init__.py"
        return inside if (self.root / inside).exists() else path.with_suffix(".py")

    def _place(self, importer: str, imported: str) -> str:
        """Return where an import stands."""
        first = self.graph.get_import_details(importer=importer, imported=imported)[0]
        return f"{self._file(importer)}:{first['line_number']}"

    def _circles(self) -> None:
        limit = self.settings.limits.circle
        found = circles(self.graph)
        across = [c for c in found if len({self._folder(m) for m in c}) > 1]
        inside = [c for c in found if c not in across]
        self._figure("import circles across folders", len(across), 0)
        longest = max(map(len, inside), default=0)
        self._figure("files in the longest import circle inside a folder", longest, limit)
        for circle in across:
            self._circle(circle, f"an import circle of {len(circle)} files across folders")
        for circle in inside:
            if len(circle) > limit:
                self._circle(circle, f"an import circle of {len(circle)} files (at most {limit})")

    def _circle(self, circle: list[str], what: str) -> None:
        """Note a circle with each import that is a part of it."""
        for importer in circle:
            for imported in sorted(self.graph.find_modules_directly_imported_by(importer)):
                if imported in circle:
                    self.problems.append(
                        f"{self._place(importer, imported)}: {what} has this import of "
                        f"{imported}: move what is needed down, or ask for a Protocol"
                    )

    def _upward(self) -> None:
        settings, exempt = self.settings, self.settings.exempt
        upward = {
            (importer, imported)
            for importer in self.graph.modules
            for imported in self.graph.find_modules_directly_imported_by(importer)
            if settings.upward(importer, imported)
        }
        limit = settings.limits.upward
        if not self._figure("imports against the order of the layers", len(upward), limit):
            self.problems.append(
                f"pyproject.toml:1: {len(upward)} imports against the order of the layers, "
                f"at most {limit}: move what is needed down"
            )
        for each in exempt:
            problem = ""
            if (each.importer, each.imported) not in upward:
                problem = "is not needed: take it out"
            elif not each.reason:
                problem = "has no reason: give it in a comment on its line"
            if problem:
                self.problems.append(
                    f"pyproject.toml:{each.line}: the exception for the import of "
                    f"{each.imported} in {each.importer} {problem}"
                )
        for importer, imported in sorted(upward - {(e.importer, e.imported) for e in exempt}):
            self.problems.append(
                f"{self._place(importer, imported)}: import of {imported}, which is not below "
                f"{importer}: move what is needed down, or ask for a Protocol"
            )
        for module in sorted(self.graph.modules):
            if module.partition(".")[0] == LAYERED and settings.room(module) is None:
                self.problems.append(
                    f"{self._file(module)}:1: {module} lies in no layer: "
                    f"give it its place in the order of layers in pyproject.toml"
                )

    def _inner(self) -> None:
        limit = self.settings.limits.inner
        found = inner_imports(self.root, self.settings.packages)
        within = self._figure(
            "imports of own modules inside functions or by name", len(found), limit
        )
        for each in found:
            how = "by its name" if each.by_name else "inside a function"
            place = f"{each.path}:{each.line}: import of {each.name} {how}"
            if not each.reason and each.by_name:
                self.problems.append(
                    f"{place} without a reason: import it by a statement, "
                    f"or say why not: '# by name: reason'"
                )
            elif not each.reason:
                self.problems.append(
                    f"{place} without a reason: put it to the top of the file, "
                    f"or say why not: '# noqa: PLC0415  # reason'"
                )
            elif not within:
                self.problems.append(
                    f"{place}, one of {len(found)}, at most {limit}: put one to the top of its file"
                )


def main() -> int:
    """Print the figures and what is beyond its limit; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Check the figures of the import graph against the limits in pyproject.toml."
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="folder with pyproject.toml and the packages"
    )
    root = parser.parse_args().root.resolve()
    sys.path.insert(0, str(root))
    checked = Checked(root)
    for figure in checked.figures:
        print(figure)
    for problem in checked.problems:
        print(problem)
    return 1 if checked.problems else 0


if __name__ == "__main__":
    sys.exit(main())
