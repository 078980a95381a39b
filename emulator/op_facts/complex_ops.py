"""Which ops take or give complex numbers: those that torch has for them, and no others.

Torch notices what it has not for complex numbers in its kernels, which a trace does not run. So an
op that is not named here is refused, or made of others, where it meets a complex number.
"""

from __future__ import annotations

__all__ = ["COMPLEX_OPS"]

_PARTS = """
_conj _conj_copy _conj_physical _neg_view _neg_view_copy abs absolute adjoint angle complex conj
conj_physical imag mH matrix_H polar real resolve_conj resolve_neg sgn view_as_complex
view_as_complex_copy view_as_real view_as_real_copy
"""
_FOURIER = "_fft_c2c _fft_c2r _fft_r2c"
_POINTWISE = """
_to_copy acos acosh add.Scalar add.Tensor addcdiv addcmul arccos arccosh arcsin arcsinh arctan
arctanh asin asinh atan atanh cos cosh div.Scalar div.Tensor divide.Scalar divide.Tensor
eq.Scalar eq.Tensor exp exp2 special_exp2 expm1 special_expm1 float_power.Scalar
float_power.Tensor_Scalar float_power.Tensor_Tensor
isclose isfinite isinf isnan ldexp.Tensor lerp.Scalar lerp.Tensor log log10 log1p special_log1p log2
logical_and logical_not
logical_or logical_xor masked_fill.Scalar masked_fill.Tensor mul.Scalar mul.Tensor multiply.Scalar
multiply.Tensor nan_to_num ne.Scalar ne.Tensor neg negative not_equal.Scalar not_equal.Tensor
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal rsqrt rsub.Scalar rsub.Tensor sigmoid
sin sinc special_sinc sinh sqrt square sub.Scalar sub.Tensor subtract.Scalar subtract.Tensor
tan tanh
to.dtype to.other true_divide.Scalar true_divide.Tensor type_as where.Scalar where.ScalarOther
where.ScalarSelf where.self xlogy.Tensor silu hardtanh
"""
_REDUCTIONS = """
all all.dim all.dims any any.dim any.dims count_nonzero count_nonzero.dim_IntList cumprod cumsum
diff dist frobenius_norm.dim linalg_vector_norm logsumexp mean mean.dim
nansum nanmean norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype prod
prod.dim_int std.correction std std.dim std_mean.correction std_mean std_mean.dim sum
sum.dim_IntList sum_to_size trace var.correction var var.dim var_mean.correction var_mean
var_mean.dim
"""
_PRODUCTS = """
addbmm addcmul addmm addmv addr baddbmm bmm chain_matmul dot einsum ger inner kron linalg_cross
linalg_multi_dot linalg_vecdot linear matmul mm mv outer tensordot vdot
"""
_LINEAR_ALGEBRA = """
_linalg_det _linalg_eigh _linalg_slogdet _linalg_svd cholesky_inverse cholesky_solve geqrf
linalg_cholesky_ex linalg_eigh linalg_householder_product linalg_pinv.atol_rtol_float
linalg_pinv.atol_rtol_tensor linalg_pinv linalg_pinv.rcond_tensor linalg_qr orgqr ormqr pinverse
_linalg_solve_ex _lu_with_info cholesky det inverse linalg_cholesky
linalg_det linalg_inv linalg_inv_ex linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
linalg_matrix_exp linalg_matrix_power linalg_slogdet linalg_solve linalg_solve_ex
linalg_solve_triangular logdet lu_solve lu_unpack matrix_exp matrix_power slogdet triangular_solve
"""
_MOVES = """
_index_put_impl _lazy_clone _pad_circular _pad_enum _reshape_alias _reshape_alias_copy _reshape_copy
_stack _unsafe_index.Tensor _unsafe_index_put _unsafe_masked_index
_unsafe_masked_index_put_accumulate _unsafe_view alias alias_copy as_strided as_strided_copy
as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cat
chunk clone column_stack concat concatenate constant_pad_nd contiguous copy data detach detach_copy
diag diag_embed diagflat diagonal diagonal_copy diagonal_scatter dsplit.array dsplit.int dstack
embedding
expand expand_as expand_copy flatten.using_ints flip fliplr flipud gather hsplit.array hsplit.int
hstack im2col col2im index.Tensor index_add index_copy index_fill.int_Scalar index_fill.int_Tensor
index_put index_select lift lift_fresh lift_fresh_copy linalg_diagonal mT masked_scatter meshgrid
meshgrid.indexing moveaxis.int moveaxis.intlist movedim.int movedim.intlist narrow narrow_copy
numpy_T pad permute permute_copy pin_memory pixel_shuffle pixel_unshuffle positive put ravel
reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave.self_Tensor
repeat_interleave.self_int replication_pad1d replication_pad2d replication_pad3d reshape reshape_as
resize roll rot90 row_stack scatter.src scatter.value scatter_add select.int select_copy.int
select_scatter slice.Tensor slice_copy.Tensor slice_scatter split.Tensor split split.sizes
split_copy.Tensor split_with_sizes split_with_sizes_copy squeeze squeeze.dim squeeze.dims
squeeze_copy squeeze_copy.dim squeeze_copy.dims stack swapaxes swapdims t t_copy take take_along_dim
tensor_split.indices tensor_split.sections tile transpose.int transpose_copy.int tril triu
unbind.int unbind_copy.int unflatten.int unfold unfold_copy unsafe_chunk unsafe_split.Tensor
unsafe_split_with_sizes unsqueeze unsqueeze_copy view view.dtype view_as view_copy view_copy.dtype
vsplit.array vsplit.int vstack
"""
_CREATION = """
empty.memory_format empty_like empty_permuted empty_strided eye eye.m fill.Scalar fill.Tensor full
full_like linspace linspace.Scalar_Tensor linspace.Tensor_Scalar linspace.Tensor_Tensor logspace
logspace.Scalar_Tensor logspace.Tensor_Scalar logspace.Tensor_Tensor new_empty new_empty_strided
new_full new_ones new_zeros ones ones_like rand rand_like randn randn_like
scalar_tensor zero zeros zeros_like
"""

_MATRICES = (_PRODUCTS, _LINEAR_ALGEBRA)
COMPLEX_OPS = frozenset(
    f"aten.{name}" if "." in name else f"aten.{name}.default"
    for names in (
        _PARTS,
        _FOURIER,
        _POINTWISE,
        _REDUCTIONS,
        _PRODUCTS,
        _LINEAR_ALGEBRA,
        _MOVES,
        _CREATION,
    )
    for name in names.split()
) | {"samba.custom_gradient"}
"""Ops that take or give complex numbers."""
