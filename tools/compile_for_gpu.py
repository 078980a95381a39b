"""Compile the programs of PEF files for a GPU that need not be there.

    JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 tools/compile_for_gpu.py model.pef ...

XLA's compiler for CUDA takes a description of the GPU in the place of one; it comes with the extra
``cuda``. Nothing is run. Both variables are jax's: without them it looks for a GPU first. For each
graph, it prints the products and calls of libraries in the executable, how many of float32 do not
say that they are exact, and the bytes that the executable needs.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

ROOT = Path(__file__).resolve().parent.parent

if str(ROOT) not in sys.path:  # run as a script, the packages are those of this tree
    sys.path.insert(0, str(ROOT))

from emulator.device import Device  # noqa: E402  # after the path is set
from emulator.plans.plan import lower_plan  # noqa: E402
from emulator.plans.steps import all_steps  # noqa: E402
from emulator.plans.xla_options import xla_options  # noqa: E402
from pef_schema import read_pef  # noqa: E402
from pef_schema.printable import say  # noqa: E402

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 20 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""What XLA asks of a GPU when it compiles for one, as its ``GpuTargetConfigProto``."""

_PRODUCT = re.compile(r"= f32\S* (dot|convolution)\(")
_CALL = re.compile(r'custom_call_target="(__cu\w+\$\w+)"')
_EXACT = re.compile(r"operand_precision=\{highest,highest[,}]|HIGHEST")


def described_gpu() -> Any:
    """A ``jax.Device`` to compile for, of which there is only the description."""
    jax.devices()  # the plugins of jax are known after this
    topology = topologies.get_topology_desc("1x1x1", "cuda", topology="1x1x1", target_config=H100)
    return topology.devices[0]


def report(device: Device, graph: int, gpu: Any) -> str:
    """Compile a full run of one graph; says what came of it.

    Args:
        device: The program.
        graph: Number of the graph.
        gpu: What to compile for.
    """
    program = device.program
    steps = all_steps(program, graph)
    lowered = lower_plan(program, device.buffer_map, steps, device.variant, gpu)
    compiled = lowered.compile(compiler_options=xla_options(gpu))
    lines = [x for x in compiled.as_text().splitlines() if _PRODUCT.search(x) or _CALL.search(x)]
    calls = [name for line in lines for name in _CALL.findall(line)]
    inexact = [line for line in lines if not _EXACT.search(line)]
    memory = compiled.memory_analysis()
    return (
        f"{program.name}, graph {graph}: {len(lines) - len(calls)} products, {len(calls)} calls of "
        f"libraries, {len(inexact)} of them not said to be exact; {memory.alias_size_in_bytes} "
        f"bytes are given away, {memory.temp_size_in_bytes} temporary"
    )


def main() -> None:
    """Compile what the command line names."""
    parser = argparse.ArgumentParser(description="Compile PEF files for a GPU.")
    parser.add_argument("pefs", nargs="+", help="PEF files")
    gpu = described_gpu()
    say(f"{gpu.device_kind}, platform {gpu.platform}, options {xla_options(gpu)}")
    for path in parser.parse_args().pefs:
        device = Device(read_pef(path))
        for graph in range(len(device.program.graphs)):
            say(report(device, graph, gpu))


if __name__ == "__main__":
    main()
