from samba._trace_utils import (
    _get_output_tensors as _get_output_tensors,
    _trace_single_torch_graph as _trace_single_torch_graph,
    _trace_torch_graph as _trace_torch_graph,
)
