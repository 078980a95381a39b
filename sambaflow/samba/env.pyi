from samba.env import (
    disable_sgd_stoc as disable_sgd_stoc,
    enable_addbias_grad_accum_stoc as enable_addbias_grad_accum_stoc,
    enable_conv_grad_accum_stoc as enable_conv_grad_accum_stoc,
    stochastic_rounding as stochastic_rounding,
    use_mock_samba_runtime as use_mock_samba_runtime,
)
