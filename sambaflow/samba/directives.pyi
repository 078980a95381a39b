from samba.directives import (
    fusion_of as fusion_of,
    op_fusion as op_fusion,
    sdpa_directives as sdpa_directives,
    sdpa_settings as sdpa_settings,
)
