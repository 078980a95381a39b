from samba.nn.quantized import (
    QuantizedLinear as QuantizedLinear,
    SNQConfig as SNQConfig,
    UndocumentedQuantization as UndocumentedQuantization,
    quantize_model as quantize_model,
)
