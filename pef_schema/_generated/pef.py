"""Made from pef.fbs by tools/regen_schema.py; do not edit."""

from pef_schema.tables import Field, Kind, Schema, Table

FBS_SHA256 = "0a567c6880d0f6a0fa72713d906822e7801cc93cc34abccafbac5dca71a36015"

ENUMS: dict[str, dict[str, int]] = {
    "DType": {
        "MISSING": 0,
        "BOOL": 1,
        "UINT8": 2,
        "INT8": 3,
        "INT16": 4,
        "INT32": 5,
        "INT64": 6,
        "FLOAT16": 7,
        "BFLOAT16": 8,
        "FLOAT32": 9,
        "FLOAT64": 10,
        "UINT32": 11,
        "COMPLEX64": 12,
        "COMPLEX128": 13,
    },
    "Role": {
        "MISSING": 0,
        "INPUT": 1,
        "WEIGHT": 2,
        "BUFFER": 3,
        "CONSTANT": 4,
        "ACTIVATION": 5,
        "OUTPUT": 6,
        "GRADIENT": 7,
        "OUTPUT_GRADIENT": 8,
        "COTANGENT": 9,
        "OPTIMIZER_STATE": 10,
        "ARGIN": 11,
        "SEED": 12,
        "METRIC": 13,
    },
    "SectionKind": {
        "MISSING": 0,
        "ZEROGRAD": 1,
        "FWD": 2,
        "BCKWD": 3,
        "REDUCE": 4,
        "GRADNORM": 5,
        "OPT": 6,
    },
    "OptimizerKind": {
        "MISSING": 0,
        "SGD": 1,
        "ADAM": 2,
        "ADAMW": 3,
        "QADAM": 4,
        "RMSPROP": 5,
        "ADAGRAD": 6,
        "ADADELTA": 7,
        "ADAMAX": 8,
        "NADAM": 9,
        "RADAM": 10,
    },
    "ArginKind": {
        "MISSING": 0,
        "LR": 1,
        "MOMENTUM": 2,
        "WEIGHT_DECAY": 3,
        "DROPOUT_RATE": 4,
        "DROPOUT_SEED": 5,
    },
    "OutputGrad": {
        "MISSING": 0,
        "NONE": 1,
        "ONES": 2,
        "ABSENT": 3,
    },
    "ArgTag": {
        "MISSING": 0,
        "NONE": 1,
        "REF": 2,
        "DTYPE": 3,
        "BOOL": 4,
        "INT": 5,
        "FLOAT": 6,
        "TEXT": 7,
        "LIST": 8,
        "COMPLEX": 10,
        "IMAGINARY": 11,
    },
}

_TABLES = (
    Table(
        name="Region",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="shape", kind=Kind.SCALARS, code="q"),
            Field(name="dtype", kind=Kind.SCALAR, code="B"),
            Field(name="role", kind=Kind.SCALAR, code="B"),
            Field(name="segment", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Symbol",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="region", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="grad_region", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Value",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="shape", kind=Kind.SCALARS, code="q"),
            Field(name="dtype", kind=Kind.SCALAR, code="B"),
            Field(name="region", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="grad_region", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="needs_grad", kind=Kind.SCALAR, code="?"),
        ),
    ),
    Table(
        name="Node",
        fields=(
            Field(name="op", kind=Kind.STRING, required=True),
            Field(name="arg_tags", kind=Kind.SCALARS, code="B"),
            Field(name="arg_bits", kind=Kind.SCALARS, code="q"),
            Field(name="texts", kind=Kind.STRINGS),
            Field(name="kwarg_names", kind=Kind.STRINGS),
            Field(name="outputs", kind=Kind.SCALARS, code="i"),
            Field(name="module", kind=Kind.STRING),
            Field(name="source", kind=Kind.STRING),
        ),
    ),
    Table(
        name="Output",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="value", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="region", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="grad_region", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="grad", kind=Kind.SCALAR, code="B"),
        ),
    ),
    Table(
        name="Update",
        fields=(
            Field(name="value", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="region", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Graph",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="values", kind=Kind.TABLES, table="Value"),
            Field(name="nodes", kind=Kind.TABLES, table="Node"),
            Field(name="inputs", kind=Kind.SCALARS, code="i"),
            Field(name="outputs", kind=Kind.TABLES, table="Output"),
            Field(name="updates", kind=Kind.TABLES, table="Update"),
            Field(name="gradients", kind=Kind.TABLES, table="Gradient"),
        ),
    ),
    Table(
        name="Gradient",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="source", kind=Kind.STRING),
            Field(name="values", kind=Kind.TABLES, table="Value"),
            Field(name="nodes", kind=Kind.TABLES, table="Node"),
            Field(name="inputs", kind=Kind.SCALARS, code="i"),
            Field(name="outputs", kind=Kind.SCALARS, code="i"),
        ),
    ),
    Table(
        name="OptimizerParam",
        fields=(
            Field(name="weight", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="grad", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="states", kind=Kind.SCALARS, code="i"),
        ),
    ),
    Table(
        name="NamedRegion",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="region", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Option",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="value", kind=Kind.SCALAR, code="d", default=0.0),
        ),
    ),
    Table(
        name="Optimizer",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="kind", kind=Kind.SCALAR, code="B"),
            Field(name="params", kind=Kind.TABLES, table="OptimizerParam"),
            Field(name="argins", kind=Kind.TABLES, table="NamedRegion"),
            Field(name="options", kind=Kind.TABLES, table="Option"),
            Field(name="step", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Argin",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="region", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="kind", kind=Kind.SCALAR, code="B"),
            Field(name="default_value", kind=Kind.SCALAR, code="d", default=0.0),
        ),
    ),
    Table(
        name="Step",
        fields=(
            Field(name="kind", kind=Kind.SCALAR, code="B"),
            Field(name="graph", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="nodes", kind=Kind.SCALARS, code="i"),
            Field(name="recompute", kind=Kind.SCALARS, code="i"),
            Field(name="optimizers", kind=Kind.SCALARS, code="i"),
            Field(name="max_norm", kind=Kind.SCALAR, code="d", default=0.0),
            Field(name="reads", kind=Kind.SCALARS, code="i"),
            Field(name="writes", kind=Kind.SCALARS, code="i"),
            Field(name="accumulates", kind=Kind.SCALARS, code="i"),
        ),
    ),
    Table(
        name="Section",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="steps", kind=Kind.TABLES, table="Step"),
            Field(name="twin", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Call",
        fields=(
            Field(name="call_id", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="section", kind=Kind.SCALAR, code="i", default=-1),
        ),
    ),
    Table(
        name="Schedule",
        fields=(
            Field(name="graph", kind=Kind.SCALAR, code="i", default=-1),
            Field(name="calls", kind=Kind.TABLES, table="Call"),
        ),
    ),
    Table(
        name="Segment",
        fields=(
            Field(name="offset", kind=Kind.SCALAR, code="Q"),
            Field(name="length", kind=Kind.SCALAR, code="Q"),
            Field(name="sha256", kind=Kind.SCALARS, code="B", required=True),
        ),
    ),
    Table(
        name="Entry",
        fields=(
            Field(name="key", kind=Kind.STRING, required=True),
            Field(name="value", kind=Kind.STRING),
        ),
    ),
    Table(
        name="Program",
        fields=(
            Field(name="name", kind=Kind.STRING, required=True),
            Field(name="mapping", kind=Kind.STRING, required=True),
            Field(name="inference", kind=Kind.SCALAR, code="?"),
            Field(name="regions", kind=Kind.TABLES, table="Region"),
            Field(name="symbols", kind=Kind.TABLES, table="Symbol"),
            Field(name="graphs", kind=Kind.TABLES, table="Graph"),
            Field(name="optimizers", kind=Kind.TABLES, table="Optimizer"),
            Field(name="argins", kind=Kind.TABLES, table="Argin"),
            Field(name="sections", kind=Kind.TABLES, table="Section"),
            Field(name="schedules", kind=Kind.TABLES, table="Schedule"),
            Field(name="segments", kind=Kind.TABLES, table="Segment"),
            Field(name="metadata", kind=Kind.TABLES, table="Entry"),
        ),
    ),
)

SCHEMA = Schema(
    tables={table.name: table for table in _TABLES},
    root="Program",
    identifier=b"SPEF",
)
