"""The processor as Linux describes it, and where it describes none."""

from __future__ import annotations

import pytest

from emulator.processor import ISA, Processor, described, processor

ZEN5 = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 26
model		: 2
model name	: AMD EPYC
stepping	: 1
flags		: fpu fma avx avx2 avx512f avx512bw avx_vnni avx512_bf16 hypervisor

processor	: 1
vendor_id	: AuthenticAMD
cpu family	: 25
model name	: another
flags		: fpu
"""

NEOVERSE = """\
processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd asimddp sve bf16 i8mm
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: 0xd40
CPU revision	: 1
"""


def test_the_first_of_several_processors():
    assert described(ZEN5) == Processor(
        vendor="amd",
        family=26,
        model=2,
        stepping=1,
        name="AMD EPYC",
        isa=("avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_bf16"),
    )
    assert described(ZEN5).key == "amd-26-avx512_bf16"
    assert str(described(ZEN5)) == ("AMD EPYC (amd family 26, model 2, stepping 1, avx512_bf16)")


def test_arm():
    found = described(NEOVERSE, "aarch64")
    assert (found.vendor, found.family, found.model, found.stepping) == ("arm", 8, 0xD40, 1)
    assert (found.name, found.key) == ("aarch64", "arm-8-none")
    assert found.isa == ("asimd", "asimddp", "bf16", "i8mm", "sve")


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ("sse4_2", "none"),
        ("avx avx2", "avx2"),
        ("avx2 avx512f", "avx512f"),
        ("avx512f avx512_bf16", "avx512_bf16"),
        ("avx512f avx512_bf16 amx_tile amx_bf16", "amx_bf16"),
        ("avx512f amx_tile", "avx512f"),
    ],
)
def test_the_best_extension(flags, best):
    assert described(f"flags : {flags}").best_isa == best


@pytest.mark.parametrize("text", ["", "no colon", "cpu family : many\nmodel :\n:\n\x00: \x00"])
def test_where_nothing_is_said(text):
    found = described(text)
    assert (found.vendor, found.family, found.name, found.isa) == ("unknown", 0, "unknown", ())
    assert described(text, "arm64").name == "arm64"


def test_this_machine():
    found = processor()
    assert found is processor()
    assert found.name and set(found.isa) <= set(ISA)
