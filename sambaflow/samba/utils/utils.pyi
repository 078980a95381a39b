from samba.utils.utils import (
    init_output_grads as init_output_grads,
    trace_graph as trace_graph,
    trace_multigraph as trace_multigraph,
)
