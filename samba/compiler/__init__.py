"""From a traced graph to a Program: gradient flow, sections, saved values, regions, schedule."""

from samba.compiler.build import build_multigraph as build_multigraph
from samba.compiler.build import build_program as build_program
from samba.compiler.options import CompileOptions as CompileOptions
