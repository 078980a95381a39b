"""The PEF file format: what a program is, and how it is written, read and checked.

Example:
    >>> import tempfile, os
    >>> from pef_schema import Program, read_pef, write_pef
    >>> program = Program(
    ...     name="empty", mapping="section", inference=True, regions=(), symbols=(), graphs=(),
    ...     optimizers=(), argins=(), sections=(), schedules=(),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "empty.pef")
    ...     info = write_pef(path, program)
    ...     same = read_pef(path) == program
    >>> info.writer, same
    (1, True)
"""

from __future__ import annotations

from pef_schema.envelope import MIN_READER, WRITER_VERSION, PefInfo
from pef_schema.errors import (
    PefDamaged,
    PefError,
    PefForHardware,
    PefInvalid,
    PefLimit,
    PefMalformed,
    PefMissing,
    PefNotOurs,
    PefNotRegular,
    PefTooNew,
    PefTooOld,
    PefTruncated,
    PefUnreadable,
    PefUnwritable,
    SambaError,
)
from pef_schema.fingerprint import (
    Difference,
    first_difference,
    program_digest,
)
from pef_schema.limits import LIMITS, Limits
from pef_schema.program import (
    Arg,
    Argin,
    ArginKind,
    Call,
    DType,
    Gradient,
    Graph,
    Node,
    Optimizer,
    OptimizerKind,
    OptimizerParam,
    Output,
    OutputGrad,
    Program,
    Ref,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
    Symbol,
    Update,
    Value,
)
from pef_schema.read import decode, read_info, read_pef
from pef_schema.verify import verify
from pef_schema.write import encode, write_pef

__all__ = [
    "LIMITS",
    "MIN_READER",
    "WRITER_VERSION",
    "Arg",
    "Argin",
    "ArginKind",
    "Call",
    "DType",
    "Difference",
    "Gradient",
    "Graph",
    "Limits",
    "Node",
    "Optimizer",
    "OptimizerKind",
    "OptimizerParam",
    "Output",
    "OutputGrad",
    "PefDamaged",
    "PefError",
    "PefForHardware",
    "PefInfo",
    "PefInvalid",
    "PefLimit",
    "PefMalformed",
    "PefMissing",
    "PefNotOurs",
    "PefNotRegular",
    "PefTooNew",
    "PefTooOld",
    "PefTruncated",
    "PefUnreadable",
    "PefUnwritable",
    "Program",
    "Ref",
    "Region",
    "Role",
    "SambaError",
    "Schedule",
    "Section",
    "SectionKind",
    "Step",
    "Symbol",
    "Update",
    "Value",
    "decode",
    "encode",
    "first_difference",
    "program_digest",
    "read_info",
    "read_pef",
    "verify",
    "write_pef",
]
