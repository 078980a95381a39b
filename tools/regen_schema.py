"""Regenerate ``pef_schema/_generated/pef.py`` from ``pef_schema/pef.fbs``, or check that it fits.

    python tools/regen_schema.py            write the generated file
    python tools/regen_schema.py --check    exit 1 if it does not match the schema

The schema's enum of optimizers is written, too, from ``pef_schema/optimizer_rules.py``.

flatc's Python code reads without any check and slowly, so the generated file holds a description
of the tables instead, which the checked reader and the writer walk. Where ``flatc`` is installed,
it must accept the schema and agree on every slot; where it is not, that is said and skipped.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "pef_schema" / "pef.fbs"
RULES = ROOT / "pef_schema" / "optimizer_rules.py"
GENERATED = ROOT / "pef_schema" / "_generated" / "pef.py"

SCALARS = {
    "bool": "?",
    "byte": "b",
    "ubyte": "B",
    "short": "h",
    "ushort": "H",
    "int": "i",
    "uint": "I",
    "long": "q",
    "ulong": "Q",
    "float": "f",
    "double": "d",
}


class SchemaError(Exception):
    """The schema says something that this generator does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldText:
    """A field as written: name, type, default, id and whether it is required."""

    name: str
    type: str
    default: str
    id: int
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """A parsed schema."""

    enums: dict[str, dict[str, int]]
    tables: dict[str, tuple[FieldText, ...]]
    root: str
    identifier: str


def parse(text: str) -> SchemaText:
    """Parse the subset of the schema language that ``pef.fbs`` uses.

    Args:
        text: Content of the schema file.

    Returns:
        Its enums and tables.

    Raises:
        SchemaError: For anything outside the subset, or ids that are not 0, 1, 2, ...
    """
    text = re.sub(r"//[^\n]*", "", text)
    enums: dict[str, dict[str, int]] = {}
    for name, base, body in re.findall(r"\benum\s+(\w+)\s*:\s*(\w+)\s*\{(.*?)\}", text, re.S):
        if base != "ubyte":
            raise SchemaError(f"enum {name} is {base}; only ubyte is known")
        pairs = re.findall(r"(\w+)\s*=\s*(\d+)", body)
        if len(pairs) != len([item for item in body.split(",") if item.strip()]):
            raise SchemaError(f"enum {name}: write every member as NAME = number")
        enums[name] = {member: int(number) for member, number in pairs}
    tables: dict[str, tuple[FieldText, ...]] = {}
    for name, body in re.findall(r"\btable\s+(\w+)\s*\{(.*?)\}", text, re.S):
        fields = [_field(name, line) for line in body.split(";") if line.strip()]
        if [field.id for field in fields] != list(range(len(fields))):
            raise SchemaError(f"table {name}: ids must be 0, 1, 2, ... in order")
        tables[name] = tuple(fields)
    root = re.search(r"\broot_type\s+(\w+)\s*;", text)
    identifier = re.search(r'\bfile_identifier\s+"(.{4})"\s*;', text)
    if root is None or identifier is None:
        raise SchemaError("root_type and file_identifier must be given")
    schema = SchemaText(enums=enums, tables=tables, root=root[1], identifier=identifier[1])
    for name, fields_of in tables.items():
        for field in fields_of:
            _kind(schema, name, field)
    return schema


def _field(table: str, line: str) -> FieldText:
    match = re.fullmatch(
        r"\s*(\w+)\s*:\s*(\w+|\[\w+\])\s*(?:=\s*([-\w.]+)\s*)?\(id:\s*(\d+)(,\s*required)?\)\s*",
        line,
    )
    if match is None:
        raise SchemaError(f"table {table}: cannot read {line.strip()!r}")
    name, type_, default, number, required = match.groups()
    return FieldText(
        name=name, type=type_, default=default or "0", id=int(number), required=bool(required)
    )


def _kind(schema: SchemaText, table: str, field: FieldText) -> str:
    """Arguments after ``name`` of the ``Field`` that describes this field."""
    vector = field.type.startswith("[")
    element = field.type.strip("[]")
    code = "B" if element in schema.enums else SCALARS.get(element, "")
    required = ", required=True" if field.required else ""
    if code and vector:
        return f"kind=Kind.SCALARS, code={code!r}{required}".replace("'", '"')
    if code:
        number = float(field.default) if element in ("float", "double") else int(field.default)
        default = f", default={number}" if field.default != "0" or code in "fd" else ""
        return f'kind=Kind.SCALAR, code="{code}"{default}'
    if element == "string":
        return f"kind=Kind.{'STRINGS' if vector else 'STRING'}{required}"
    if element in schema.tables and vector:
        return f'kind=Kind.TABLES, table="{element}"{required}'
    raise SchemaError(f"table {table}: type {field.type} of {field.name} is not known")


def with_kinds(text: str) -> str:
    """Write the kinds of optimizers into the schema.

    Args:
        text: Content of the schema file.

    Returns:
        The text with the members that ``OptimizerKind`` has now.
    """
    body = ast.parse(RULES.read_text(encoding="utf-8")).body
    (kinds,) = [n for n in body if isinstance(n, ast.ClassDef) and n.name == "OptimizerKind"]
    rows = [ast.unparse(n) for n in kinds.body if isinstance(n, ast.Assign)]
    members = textwrap.fill(
        ", ".join(["MISSING = 0", *rows]), 72, initial_indent="  ", subsequent_indent="  "
    )
    last = max(int(row.partition(" = ")[2]) for row in rows)
    return re.sub(
        r"// Last used id: \d+\.\nenum OptimizerKind : ubyte \{.*?\}",
        f"// Last used id: {last}.\nenum OptimizerKind : ubyte {{\n{members}\n}}",
        text,
        flags=re.DOTALL,
    )


def generate(text: str) -> str:
    """Return the text of the generated module.

    Args:
        text: Content of the schema file.

    Returns:
        Python source.

    Raises:
        SchemaError: See :func:`parse`.
    """
    schema = parse(text)
    lines = [
        '"""Made from pef.fbs by tools/regen_schema.py; do not edit."""',
        "",
        "from pef_schema.tables import Field, Kind, Schema, Table",
        "",
        f'FBS_SHA256 = "{hashlib.sha256(text.encode()).hexdigest()}"',
        "",
        "ENUMS: dict[str, dict[str, int]] = {",
    ]
    for name, members in schema.enums.items():
        lines.append(f'    "{name}": {{')
        lines += [f'        "{member}": {number},' for member, number in members.items()]
        lines.append("    },")
    lines += ["}", "", "_TABLES = ("]
    for name, fields in schema.tables.items():
        lines += ["    Table(", f'        name="{name}",', "        fields=("]
        lines += [
            f'            Field(name="{field.name}", {_kind(schema, name, field)}),'
            for field in fields
        ]
        lines += ["        ),", "    ),"]
    lines += [
        ")",
        "",
        "SCHEMA = Schema(",
        "    tables={table.name: table for table in _TABLES},",
        f'    root="{schema.root}",',
        f'    identifier=b"{schema.identifier}",',
        ")",
        "",
    ]
    return "\n".join(lines)


def compare_with_flatc(schema: SchemaText, path: Path, flatc: str) -> list[str]:
    """Have flatc compile the schema and compare the slots it assigns with ours.

    Args:
        schema: What :func:`parse` made of the file.
        path: The schema file.
        flatc: The compiler's program name.

    Returns:
        Differences, one line each; empty if both agree.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [flatc, "--python", "-o", folder, str(path)], capture_output=True, text=True
        )
        if done.returncode:
            return [f"flatc refuses {path.name}: {(done.stdout + done.stderr).strip()}"]
        problems = []
        for name, fields in schema.tables.items():
            (code_path,) = Path(folder).rglob(f"{name}.py")
            code = code_path.read_text()
            ours = {(field.name.replace("_", "").lower(), field.id) for field in fields}
            slots = re.findall(rf"def {name}Add(\w+)\(.*?\): builder\.Prepend\w+Slot\((\d+)", code)
            theirs = {(field.lower(), int(slot)) for field, slot in slots}
            if ours != theirs:
                problems.append(f"table {name}: flatc's slots are {sorted(theirs ^ ours)}")
    return problems


def incompatibilities(old: SchemaText, new: SchemaText) -> list[str]:
    """List what a reader of ``old`` files would misread under ``new``.

    Args:
        old: The schema of a released version.
        new: The schema of a later one.

    Returns:
        One line for each removal, renumbering, retyping, new default or new requirement.
    """
    problems = []
    if (old.root, old.identifier) != (new.root, new.identifier):
        problems.append("root_type and file_identifier must stay")
    for name, fields in old.tables.items():
        now = new.tables.get(name, ())
        for field in fields:
            if field.id >= len(now):
                problems.append(f"{name}.{field.name} (id {field.id}) was removed")
            elif now[field.id] != field:
                problems.append(f"{name}.{field.name} was {field}, is {now[field.id]}")
        problems += [
            f"{name}.{field.name} is new and required"
            for field in now[len(fields) :]
            if field.required
        ]
    for name, members in old.enums.items():
        now_members = new.enums.get(name, {})
        problems += [
            f"{name}.{member} was {number}, is {now_members.get(member, 'removed')}"
            for member, number in members.items()
            if now_members.get(member) != number
        ]
    return problems


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments, those of the process by default.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description="Regenerate the PEF schema description.")
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    args = parser.parse_args(argv)
    written = SCHEMA.read_text(encoding="utf-8")
    text = with_kinds(written)
    problems = []
    if args.check and text != written:
        problems.append(
            f"{SCHEMA.name} lacks an optimizer of {RULES.relative_to(ROOT)}; "
            "run python tools/regen_schema.py"
        )
    try:
        code = generate(text)
        flatc = shutil.which("flatc")
        if flatc is None:
            print("skipped: no flatc; the schema was not compared with the official compiler")
        else:
            problems += compare_with_flatc(parse(text), SCHEMA, flatc)
    except SchemaError as error:
        print(f"{SCHEMA.name}: {error}", file=sys.stderr)
        return 1
    current = GENERATED.read_text(encoding="utf-8") if GENERATED.exists() else ""
    if args.check and current != code:
        problems.append(
            f"{GENERATED.relative_to(ROOT)} does not match {SCHEMA.relative_to(ROOT)}; "
            "run python tools/regen_schema.py"
        )
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    if not args.check:
        SCHEMA.write_text(text, encoding="utf-8")
        GENERATED.write_text(code, encoding="utf-8")
    print(f"{GENERATED.relative_to(ROOT)} {'matches' if args.check else 'written'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
