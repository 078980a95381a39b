from samba.exporting.onnx_graph import (
    NoOnnx as NoOnnx,
    load_weights as load_weights,
    onnx_bytes as onnx_bytes,
)
