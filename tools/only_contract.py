"""A contract of import-linter that lists what packages may import, where its own list what not."""

from __future__ import annotations

import sys
from typing import Any, cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """Packages import nothing but the standard library, themselves and the packages listed.

    Configuration options:
        - packages: Top-level packages that the contract is about.
        - allowed: Top-level packages that they may import.
    """

    type_name = "only"

    packages = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look for imports of other packages.

        Args:
            graph: The import graph with packages from outside.
            verbose: Not used: there is nothing more to say.

        Returns:
            Whether the contract is kept, and the imports that break it.
        """
        packages = cast("list[str]", self.packages)
        allowed = {*packages, *cast("list[str]", self.allowed), *sys.stdlib_module_names}
        wrong: list[tuple[str, str, Any]] = []
        for importer in sorted(graph.modules):
            if importer.partition(".")[0] not in packages:
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if imported.partition(".")[0] not in allowed:
                    details = graph.get_import_details(importer=importer, imported=imported)
                    lines = ", ".join(f"l.{d['line_number']}" for d in details)
                    wrong.append((importer, imported, lines))
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that break the contract.

        Args:
            check: What ``check`` returned.
        """
        for importer, imported, lines in check.metadata["wrong"]:
            output.print_error(f"- {importer} -> {imported} ({lines})", bold=False)
        output.new_line()
