"""Made from torch's schemas by tools/regen_op_facts.py; do not edit."""

GROUPS: tuple[tuple[str, str], ...] = (
    (
        "A:t * check_errors:b= > t t",
        "aten.linalg_inv_ex.default",
    ),
    (
        "A:t * offset:i= dim1:i= dim2:i= > t",
        "aten.linalg_diagonal.default",
    ),
    (
        "A:t * pivot:b= > t t",
        "aten.linalg_lu_factor.default",
    ),
    (
        "A:t * pivot:b= > t t t",
        "aten.linalg_lu.default",
    ),
    (
        "A:t * pivot:b= check_errors:b= > t t t",
        "aten.linalg_lu_factor_ex.default",
    ),
    (
        "A:t > t",
        "aten.linalg_det.default aten.linalg_inv.default",
    ),
    (
        "A:t > t t",
        "aten.linalg_slogdet.default",
    ),
    (
        "A:t > t t t",
        "aten._linalg_det.default",
    ),
    (
        "A:t > t t t t",
        "aten._linalg_slogdet.default",
    ),
    (
        "A:t B:t * left:b= > t",
        "aten.linalg_solve.default",
    ),
    (
        "A:t B:t * left:b= check_errors:b= > t t",
        "aten.linalg_solve_ex.default",
    ),
    (
        "A:t B:t * left:b= check_errors:b= > t t t t",
        "aten._linalg_solve_ex.default",
    ),
    (
        "A:t UPLO:s= compute_v:b= > t t",
        "aten._linalg_eigh.default",
    ),
    (
        "A:t full_matrices:b= compute_uv:b= * driver:s?= > t t t",
        "aten._linalg_svd.default",
    ),
    (
        "A:t mode:s= > t t",
        "aten.linalg_qr.default",
    ),
    (
        "LU:t pivots:t B:t * left:b= adjoint:b= > t",
        "aten.linalg_lu_solve.default",
    ),
    (
        "LU_data:t LU_pivots:t unpack_data:b= unpack_pivots:b= > t t t",
        "aten.lu_unpack.default",
    ),
    (
        "abs:t angle:t > t",
        "aten.polar.default",
    ),
    (
        "anchor:t positive:t negative:t margin:f= p:f= eps:f= swap:b= reduction:i= > t",
        "aten.triplet_margin_loss.default",
    ),
    (
        "condition:t self:n other:n > t",
        "aten.where.Scalar",
    ),
    (
        "condition:t self:n other:t > t",
        "aten.where.ScalarSelf",
    ),
    (
        "condition:t self:t other:n > t",
        "aten.where.ScalarOther",
    ),
    (
        "condition:t self:t other:t > t",
        "aten.where.self",
    ),
    (
        "count:t prob:t generator:x= * seed:t= stream:i= > t",
        "aten.binomial.default",
    ),
    (
        "data:t reduce:s * lengths:t?= indices:t?= offsets:t?= axis:i= unsafe:b= initial:n?= > t",
        "aten.segment_reduce.default",
    ),
    (
        "element:n test_elements:t * assume_unique:b= invert:b= > t",
        "aten.isin.Scalar_Tensor",
    ),
    (
        "elements:t test_element:n * assume_unique:b= invert:b= > t",
        "aten.isin.Tensor_Scalar",
    ),
    (
        "elements:t test_elements:t * assume_unique:b= invert:b= > t",
        "aten.isin.Tensor_Tensor",
    ),
    (
        "end:n * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.arange.default",
    ),
    (
        "equation:s tensors:t* * path:i*?= > t",
        "aten.einsum.default",
    ),
    (
        "failed:t condition:t taken:b > t",
        "samba.checked_branch",
    ),
    (
        "gradient:i results:t* inputs:t* reads:t* > t*",
        "samba.custom_gradient",
    ),
    (
        "high:i size:i* * dtype:d?= layout:x= device:x= pin_memory:b?= seed:t= stream:i= > t",
        "aten.randint.default",
    ),
    (
        "input1:t input2:t target:t margin:f= reduction:i= > t",
        "aten.cosine_embedding_loss.default aten.margin_ranking_loss.default",
    ),
    (
        "input1:t input2:t weight:t bias:t?= > t",
        "aten.bilinear.default",
    ),
    (
        "input:t grid:t interpolation_mode:i padding_mode:i align_corners:b > t",
        "aten.grid_sampler.default aten.grid_sampler_2d.default aten.grid_sampler_3d.default",
    ),
    (
        """
        input:t hx:t params:t* has_biases:b num_layers:i dropout:r train:b bidirectional:b
        batch_first:b * seed:t= stream:i= > t t
        """,
        "aten.gru.input aten.rnn_relu.input aten.rnn_tanh.input",
    ),
    (
        "input:t hx:t w_ih:t w_hh:t b_ih:t?= b_hh:t?= > t",
        "aten.gru_cell.default aten.rnn_relu_cell.default aten.rnn_tanh_cell.default",
    ),
    (
        """
        input:t hx:t* params:t* has_biases:b num_layers:i dropout:r train:b bidirectional:b
        batch_first:b * seed:t= stream:i= > t t t
        """,
        "aten.lstm.input",
    ),
    (
        "input:t hx:t* w_ih:t w_hh:t b_ih:t?= b_hh:t?= > t t",
        "aten.lstm_cell.default",
    ),
    (
        "input:t normalized_shape:i* weight:t? bias:t? eps:f > t t t",
        "aten.native_layer_norm.default",
    ),
    (
        "input:t normalized_shape:i* weight:t? eps:f? > t t",
        "aten._fused_rms_norm.default",
    ),
    (
        "input:t normalized_shape:i* weight:t?= bias:t?= eps:f= cudnn_enable:b= > t",
        "aten.layer_norm.default",
    ),
    (
        "input:t normalized_shape:i* weight:t?= eps:f?= > t",
        "aten.rms_norm.default",
    ),
    (
        "input:t num_groups:i weight:t?= bias:t?= eps:f= cudnn_enabled:b= > t",
        "aten.group_norm.default",
    ),
    (
        "input:t output_size:i*? align_corners:b scale_factors:f*? > t",
        """
        aten._upsample_bicubic2d_aa.vec aten._upsample_bilinear2d_aa.vec aten.upsample_bicubic2d.vec
        aten.upsample_bilinear2d.vec aten.upsample_linear1d.vec aten.upsample_trilinear3d.vec
        """,
    ),
    (
        "input:t output_size:i*? scale_factors:f*? > t",
        """
        aten._upsample_nearest_exact1d.vec aten._upsample_nearest_exact2d.vec
        aten._upsample_nearest_exact3d.vec aten.upsample_nearest1d.vec aten.upsample_nearest2d.vec
        aten.upsample_nearest3d.vec
        """,
    ),
    (
        "input:t p:r train:b * seed:t= stream:i= > t",
        "aten.dropout.default",
    ),
    (
        "input:t p:r train:b? * seed:t= stream:i= > t t",
        "aten.native_dropout.default",
    ),
    (
        "input:t target:t log_input:b full:b eps:f reduction:i > t",
        "aten.poisson_nll_loss.default",
    ),
    (
        "input:t tau:t > t",
        "aten.linalg_householder_product.default",
    ),
    (
        """
        input:t weight:t bias:t? stride:i* padding:i* dilation:i* transposed:b output_padding:i*
        groups:i > t
        """,
        "aten.convolution.default",
    ),
    (
        "input:t weight:t bias:t?= > t",
        "aten.linear.default",
    ),
    (
        "input:t weight:t bias:t?= stride:i*1= padding:i*1= dilation:i*1= groups:i= > t",
        "aten.conv1d.default",
    ),
    (
        """
        input:t weight:t bias:t?= stride:i*1= padding:i*1= output_padding:i*1= groups:i=
        dilation:i*1= > t
        """,
        "aten.conv_transpose1d.default",
    ),
    (
        "input:t weight:t bias:t?= stride:i*1= padding:s= dilation:i*1= groups:i= > t",
        "aten.conv1d.padding",
    ),
    (
        "input:t weight:t bias:t?= stride:i*2= padding:i*2= dilation:i*2= groups:i= > t",
        "aten.conv2d.default",
    ),
    (
        """
        input:t weight:t bias:t?= stride:i*2= padding:i*2= output_padding:i*2= groups:i=
        dilation:i*2= > t
        """,
        "aten.conv_transpose2d.input",
    ),
    (
        "input:t weight:t bias:t?= stride:i*2= padding:s= dilation:i*2= groups:i= > t",
        "aten.conv2d.padding",
    ),
    (
        "input:t weight:t bias:t?= stride:i*3= padding:i*3= dilation:i*3= groups:i= > t",
        "aten.conv3d.default",
    ),
    (
        """
        input:t weight:t bias:t?= stride:i*3= padding:i*3= output_padding:i*3= groups:i=
        dilation:i*3= > t
        """,
        "aten.conv_transpose3d.input",
    ),
    (
        "input:t weight:t bias:t?= stride:i*3= padding:s= dilation:i*3= groups:i= > t",
        "aten.conv3d.padding",
    ),
    (
        "input:t weight:t offs:t > t",
        "transformers.grouped_mm_fallback.default",
    ),
    (
        "input:t weight:t? bias:t? N:i C:i HxW:i group:i eps:f > t t t",
        "aten.native_group_norm.default",
    ),
    (
        "input:t weight:t? bias:t? running_mean:t running_var:t momentum:f eps:f > t t t",
        "aten._native_batch_norm_legit_no_training.default",
    ),
    (
        """
        input:t weight:t? bias:t? running_mean:t running_var:t training:b momentum:f eps:f > t t t t
        t
        """,
        "aten._native_batch_norm_legit_functional.default",
    ),
    (
        """
        input:t weight:t? bias:t? running_mean:t? running_var:t? use_input_stats:b momentum:f eps:f
        cudnn_enabled:b > t
        """,
        "aten.instance_norm.default",
    ),
    (
        "input:t weight:t? bias:t? training:b momentum:f eps:f > t t t",
        "aten._native_batch_norm_legit.no_stats",
    ),
    (
        """
        log_probs:t targets:t input_lengths:t target_lengths:t longest:i blank:i= reduction:s=
        zero_infinity:b= > t
        """,
        "samba.ctc_loss.default",
    ),
    (
        """
        low:i high:i size:i* * dtype:d?= layout:x= device:x= pin_memory:b?= seed:t= stream:i= > t
        """,
        "aten.randint.low",
    ),
    (
        "matrices:t* > t",
        "aten.chain_matmul.default",
    ),
    (
        """
        mean:f std:f size:i* * generator:x= dtype:d?= layout:x= device:x= pin_memory:b?= seed:t=
        stream:i= > t
        """,
        "aten.normal.float_float",
    ),
    (
        "mean:f std:t * generator:x= seed:t= stream:i= > t",
        "aten.normal.float_Tensor",
    ),
    (
        "mean:t std:f= * generator:x= seed:t= stream:i= > t",
        "aten.normal.Tensor_float",
    ),
    (
        "mean:t std:t * generator:x= seed:t= stream:i= > t",
        "aten.normal.Tensor_Tensor",
    ),
    (
        "n:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.eye.default",
    ),
    (
        "n:i * dtype:d?= layout:x= device:x= pin_memory:b?= seed:t= stream:i= > t",
        "aten.randperm.default",
    ),
    (
        "n:i m:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.eye.m",
    ),
    (
        "n:i self:t > t",
        "aten.polygamma.default aten.special_polygamma.default",
    ),
    (
        """
        query:t key:t value:t attn_mask:t?= dropout_p:r= is_causal:b= * scale:f?= enable_gqa:b=
        seed:t= stream:i= > t
        """,
        "aten.scaled_dot_product_attention.default",
    ),
    (
        "real:t imag:t > t",
        "aten.complex.default",
    ),
    (
        "repeats:t * output_size:i?= > t",
        "aten.repeat_interleave.Tensor",
    ),
    (
        "row:i col:i offset:i= * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.tril_indices.default aten.triu_indices.default",
    ),
    (
        "s:n * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.scalar_tensor.default",
    ),
    (
        "seed:t > t",
        "samba.next_seed",
    ),
    (
        "self:n boundaries:t * out_int32:b= right:b= > t",
        "aten.bucketize.Scalar",
    ),
    (
        "self:n exponent:t > t",
        "aten.float_power.Scalar aten.pow.Scalar",
    ),
    (
        "self:n other:t > t",
        """
        aten.bitwise_and.Scalar_Tensor aten.bitwise_left_shift.Scalar_Tensor
        aten.bitwise_or.Scalar_Tensor aten.bitwise_right_shift.Scalar_Tensor
        aten.bitwise_xor.Scalar_Tensor aten.remainder.Scalar_Tensor aten.special_xlog1py.self_scalar
        aten.special_xlogy.self_scalar aten.special_zeta.self_scalar aten.xlogy.Scalar_Self
        """,
    ),
    (
        "self:t * approximate:s= > t",
        "aten.gelu.default",
    ),
    (
        "self:t * atol:f?= rtol:f?= hermitian:b= > t",
        "aten.linalg_pinv.atol_rtol_float",
    ),
    (
        "self:t * atol:t?= rtol:t?= hermitian:b= > t",
        "aten.linalg_pinv.atol_rtol_tensor",
    ),
    (
        "self:t * decimals:i > t",
        "aten.round.decimals aten.special_round.decimals",
    ),
    (
        "self:t * decimals:i= > t",
        "aten.special_round.default",
    ),
    (
        "self:t * dim:i?= keepdim:b= > t t",
        "aten.aminmax.default",
    ),
    (
        "self:t * dtype:d?= > t",
        "aten.mean.default aten.prod.default aten.sum.default",
    ),
    (
        "self:t * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= > t",
        "aten.empty_like.default aten.ones_like.default aten.zeros_like.default",
    ),
    (
        """
        self:t * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= seed:t= stream:i= > t
        """,
        "aten.rand_like.default aten.randn_like.default",
    ),
    (
        """
        self:t * dtype:d?= layout:x= device:x= pin_memory:b?= non_blocking:b= memory_format:x= > t
        """,
        "aten._to_copy.default",
    ),
    (
        "self:t * generator:x= seed:t= stream:i= > t",
        "aten.bernoulli.default",
    ),
    (
        "self:t * memory_format:x= > t",
        "aten.clone.default aten.contiguous.default",
    ),
    (
        "self:t * size:i fill_value:i= > t",
        "aten.nonzero_static.default",
    ),
    (
        "self:t * stable:b dim:i= descending:b= > t",
        "aten.argsort.stable",
    ),
    (
        "self:t * stable:b? dim:i= descending:b= > t t",
        "aten.sort.stable",
    ),
    (
        "self:t * upper:b= > t",
        "aten.linalg_cholesky.default",
    ),
    (
        "self:t * upper:b= check_errors:b= > t t",
        "aten.linalg_cholesky_ex.default",
    ),
    (
        "self:t > t",
        """
        aten._conj.default aten._conj_copy.default aten._conj_physical.default
        aten._is_all_true.default aten._is_any_true.default aten._lazy_clone.default
        aten._neg_view.default aten._neg_view_copy.default aten.abs.default aten.absolute.default
        aten.acos.default aten.acosh.default aten.adjoint.default aten.alias.default
        aten.alias_copy.default aten.all.default aten.angle.default aten.any.default
        aten.arccos.default aten.arccosh.default aten.arcsin.default aten.arcsinh.default
        aten.arctan.default aten.arctanh.default aten.asin.default aten.asinh.default
        aten.atan.default aten.atanh.default aten.atleast_1d.default aten.atleast_2d.default
        aten.atleast_3d.default aten.bitwise_not.default aten.ceil.default aten.conj.default
        aten.conj_physical.default aten.cos.default aten.cosh.default aten.data.default
        aten.deg2rad.default aten.det.default aten.detach.default aten.detach_copy.default
        aten.digamma.default aten.erf.default aten.erfc.default aten.erfinv.default aten.exp.default
        aten.exp2.default aten.expm1.default aten.fix.default aten.fliplr.default
        aten.flipud.default aten.floor.default aten.frac.default aten.hardsigmoid.default
        aten.hardswish.default aten.i0.default aten.imag.default aten.inverse.default
        aten.isfinite.default aten.isinf.default aten.isnan.default aten.isneginf.default
        aten.isposinf.default aten.lgamma.default aten.lift.default aten.lift_fresh.default
        aten.lift_fresh_copy.default aten.linalg_matrix_exp.default aten.log.default
        aten.log10.default aten.log1p.default aten.log2.default aten.log_sigmoid.default
        aten.logdet.default aten.logical_not.default aten.mH.default aten.mT.default
        aten.matrix_H.default aten.matrix_exp.default aten.max.default aten.median.default
        aten.min.default aten.mish.default aten.msort.default aten.nanmedian.default
        aten.neg.default aten.negative.default aten.numpy_T.default aten.positive.default
        aten.rad2deg.default aten.ravel.default aten.real.default aten.reciprocal.default
        aten.relu.default aten.relu6.default aten.resolve_conj.default aten.resolve_neg.default
        aten.round.default aten.rsqrt.default aten.selu.default aten.sgn.default
        aten.sigmoid.default aten.sign.default aten.signbit.default aten.silu.default
        aten.sin.default aten.sinc.default aten.sinh.default aten.special_bessel_j0.default
        aten.special_bessel_j1.default aten.special_bessel_y0.default aten.special_bessel_y1.default
        aten.special_digamma.default aten.special_entr.default aten.special_erf.default
        aten.special_erfc.default aten.special_erfcx.default aten.special_erfinv.default
        aten.special_exp2.default aten.special_expm1.default aten.special_gammaln.default
        aten.special_i0.default aten.special_i0e.default aten.special_i1.default
        aten.special_i1e.default aten.special_log1p.default aten.special_log_ndtr.default
        aten.special_modified_bessel_i0.default aten.special_modified_bessel_i1.default
        aten.special_modified_bessel_k0.default aten.special_modified_bessel_k1.default
        aten.special_ndtr.default aten.special_ndtri.default aten.special_psi.default
        aten.special_sinc.default aten.sqrt.default aten.square.default aten.squeeze.default
        aten.squeeze_copy.default aten.t.default aten.t_copy.default aten.tan.default
        aten.tanh.default aten.trace.default aten.trunc.default aten.view_as_complex.default
        aten.view_as_complex_copy.default aten.view_as_real.default aten.view_as_real_copy.default
        aten.zero.default
        """,
    ),
    (
        "self:t > t t",
        """
        aten.frexp.Tensor aten.geqrf.default aten.log_sigmoid_forward.default aten.slogdet.default
        """,
    ),
    (
        "self:t A:t upper:b= transpose:b= unitriangular:b= > t t",
        "aten.triangular_solve.default",
    ),
    (
        "self:t B:t * upper:b left:b= unitriangular:b= > t",
        "aten.linalg_solve_triangular.default",
    ),
    (
        "self:t LU_data:t LU_pivots:t > t",
        "aten.lu_solve.default",
    ),
    (
        "self:t UPLO:s= > t t",
        "aten.linalg_eigh.default",
    ),
    (
        "self:t alpha:n= > t",
        "aten.celu.default",
    ),
    (
        "self:t alpha:n= scale:n= input_scale:n= > t",
        "aten.elu.default",
    ),
    (
        "self:t axis0:i axis1:i > t",
        "aten.swapaxes.default",
    ),
    (
        "self:t batch1:t batch2:t * beta:n= alpha:n= > t",
        "aten.addbmm.default aten.baddbmm.default",
    ),
    (
        "self:t beta:n= threshold:n= > t",
        "aten.softplus.default",
    ),
    (
        "self:t bins:i* * range:f*?= weight:t?= density:b= > t",
        "aten._histogramdd_from_bin_cts.default",
    ),
    (
        "self:t bins:i* * range:f*?= weight:t?= density:b= > t*",
        "aten._histogramdd_bin_edges.default",
    ),
    (
        "self:t bins:i= * range:f*?= weight:t?= density:b= > t t",
        "aten.histogram.bin_ct",
    ),
    (
        "self:t bins:i= min:n= max:n= > t",
        "aten.histc.default",
    ),
    (
        "self:t bins:t * weight:t?= density:b= > t t",
        "aten.histogram.bins_tensor",
    ),
    (
        "self:t bins:t* * weight:t?= density:b= > t",
        "aten._histogramdd_from_bin_tensors.default",
    ),
    (
        "self:t boundaries:t * out_int32:b= right:b= > t",
        "aten.bucketize.Tensor",
    ),
    (
        "self:t chunks:i dim:i= > t*",
        "aten.chunk.default aten.unsafe_chunk.default",
    ),
    (
        "self:t device:x= > t",
        "aten.pin_memory.default",
    ),
    (
        "self:t diagonal:i= > t",
        "aten.diag.default aten.tril.default aten.triu.default",
    ),
    (
        "self:t dim0:i dim1:i > t",
        "aten.swapdims.default aten.transpose.int aten.transpose_copy.int",
    ),
    (
        "self:t dim:i * dtype:d?= > t",
        "aten.cumprod.default aten.cumsum.default",
    ),
    (
        "self:t dim:i > t",
        """
        aten._logcumsumexp.default aten.logcumsumexp.default aten.squeeze.dim aten.squeeze_copy.dim
        aten.unsqueeze.default aten.unsqueeze_copy.default
        """,
    ),
    (
        "self:t dim:i > t t",
        "aten.cummax.default aten.cummin.default",
    ),
    (
        "self:t dim:i dtype:d?= > t",
        "aten._safe_softmax.default aten.log_softmax.int aten.softmax.int",
    ),
    (
        "self:t dim:i half_to_float:b > t",
        "aten._log_softmax.default aten._softmax.default",
    ),
    (
        "self:t dim:i index:i > t",
        "aten.select.int aten.select_copy.int",
    ),
    (
        "self:t dim:i index:t * sparse_grad:b= > t",
        "aten.gather.default",
    ),
    (
        "self:t dim:i index:t > t",
        "aten.index_select.default",
    ),
    (
        "self:t dim:i index:t source:t * alpha:n= > t",
        "aten.index_add.default",
    ),
    (
        "self:t dim:i index:t source:t > t",
        "aten.index_copy.default",
    ),
    (
        "self:t dim:i index:t source:t reduce:s * include_self:b= > t",
        "aten.index_reduce.default",
    ),
    (
        "self:t dim:i index:t src:t * reduce:s > t",
        "aten.scatter.reduce",
    ),
    (
        "self:t dim:i index:t src:t > t",
        "aten.scatter.src aten.scatter_add.default",
    ),
    (
        "self:t dim:i index:t src:t reduce:s * include_self:b= > t",
        "aten.scatter_reduce.two",
    ),
    (
        "self:t dim:i index:t value:n * reduce:s > t",
        "aten.scatter.value_reduce",
    ),
    (
        "self:t dim:i index:t value:n > t",
        "aten.index_fill.int_Scalar aten.scatter.value",
    ),
    (
        "self:t dim:i index:t value:t > t",
        "aten.index_fill.int_Tensor",
    ),
    (
        "self:t dim:i keepdim:b= * dtype:d?= > t",
        "aten.prod.dim_int",
    ),
    (
        "self:t dim:i keepdim:b= > t",
        "aten.all.dim aten.any.dim",
    ),
    (
        "self:t dim:i keepdim:b= > t t",
        "aten.max.dim aten.median.dim aten.min.dim aten.nanmedian.dim",
    ),
    (
        "self:t dim:i sizes:i* > t",
        "aten.unflatten.int",
    ),
    (
        "self:t dim:i start:i length:i > t",
        "aten.narrow.default aten.narrow_copy.default",
    ),
    (
        "self:t dim:i* > t",
        "aten.count_nonzero.dim_IntList aten.squeeze.dims aten.squeeze_copy.dims",
    ),
    (
        "self:t dim:i* normalization:i forward:b > t",
        "aten._fft_c2c.default",
    ),
    (
        "self:t dim:i* normalization:i last_dim_size:i > t",
        "aten._fft_c2r.default",
    ),
    (
        "self:t dim:i* normalization:i onesided:b > t",
        "aten._fft_r2c.default",
    ),
    (
        "self:t dim:i*1 keepdim:b= > t",
        "aten.frobenius_norm.dim aten.logsumexp.default aten.special_logsumexp.default",
    ),
    (
        "self:t dim:i*1= keepdim:b= > t",
        "aten.amax.default aten.amin.default",
    ),
    (
        "self:t dim:i*1? keepdim:b= * dtype:d?= > t",
        "aten.mean.dim aten.sum.dim_IntList",
    ),
    (
        "self:t dim:i*1? unbiased:b= keepdim:b= > t",
        "aten.std.dim aten.var.dim",
    ),
    (
        "self:t dim:i*1? unbiased:b= keepdim:b= > t t",
        "aten.std_mean.dim aten.var_mean.dim",
    ),
    (
        "self:t dim:i*1?= * correction:n?= keepdim:b= > t",
        "aten.std.correction aten.var.correction",
    ),
    (
        "self:t dim:i*1?= * correction:n?= keepdim:b= > t t",
        "aten.std_mean.correction aten.var_mean.correction",
    ),
    (
        "self:t dim:i*1?= keepdim:b= * dtype:d?= > t",
        "aten.nanmean.default aten.nansum.default",
    ),
    (
        "self:t dim:i*?= keepdim:b= > t",
        "aten.all.dims aten.any.dims",
    ),
    (
        "self:t dim:i= > t",
        "aten.glu.default",
    ),
    (
        "self:t dim:i= > t*",
        "aten.unbind.int aten.unbind_copy.int",
    ),
    (
        "self:t dim:i= descending:b= > t",
        "aten.argsort.default",
    ),
    (
        "self:t dim:i= descending:b= > t t",
        "aten.sort.default",
    ),
    (
        "self:t dim:i= keepdim:b= > t t",
        "aten.mode.default",
    ),
    (
        "self:t dim:i= start:i?= end:i?= step:i= > t",
        "aten.slice.Tensor aten.slice_copy.Tensor",
    ),
    (
        "self:t dim:i?= > t",
        "aten.count_nonzero.default",
    ),
    (
        "self:t dim:i?= keepdim:b= > t",
        "aten.argmax.default aten.argmin.default",
    ),
    (
        "self:t dimension:i size:i step:i > t",
        "aten.unfold.default aten.unfold_copy.default",
    ),
    (
        "self:t dims:i* > t",
        "aten.flip.default aten.permute.default aten.permute_copy.default aten.tile.default",
    ),
    (
        "self:t downscale_factor:i > t",
        "aten.pixel_unshuffle.default",
    ),
    (
        "self:t dtype:d > t",
        "aten.view.dtype aten.view_copy.dtype",
    ),
    (
        "self:t dtype:d non_blocking:b= copy:b= memory_format:x= > t",
        "aten.to.dtype",
    ),
    (
        "self:t end:t weight:n > t",
        "aten.lerp.Scalar",
    ),
    (
        "self:t end:t weight:t > t",
        "aten.lerp.Tensor",
    ),
    (
        "self:t eps:f?= > t",
        "aten.logit.default aten.special_logit.default",
    ),
    (
        "self:t exponent:n > t",
        "aten.float_power.Tensor_Scalar aten.pow.Tensor_Scalar",
    ),
    (
        "self:t exponent:t > t",
        "aten.float_power.Tensor_Tensor aten.pow.Tensor_Tensor",
    ),
    (
        "self:t fill_value:n * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= > t",
        "aten.full_like.default",
    ),
    (
        "self:t from:f= to:f= * generator:x= seed:t= stream:i= > t",
        "aten.uniform.default",
    ),
    (
        "self:t generator:x= * seed:t= stream:i= > t",
        "aten._standard_gamma.default aten.poisson.default",
    ),
    (
        "self:t groups:i > t",
        "aten.channel_shuffle.default aten.native_channel_shuffle.default",
    ),
    (
        """
        self:t high:i * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= seed:t=
        stream:i= > t
        """,
        "aten.randint_like.default",
    ),
    (
        """
        self:t high:t * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= seed:t=
        stream:i= > t
        """,
        "aten.randint_like.Tensor",
    ),
    (
        "self:t index:t > t",
        "aten.take.default",
    ),
    (
        "self:t index:t source:t accumulate:b= > t",
        "aten.put.default",
    ),
    (
        "self:t indices:i* > t*",
        "aten.dsplit.array aten.hsplit.array aten.vsplit.array",
    ),
    (
        "self:t indices:i* dim:i= > t*",
        "aten.tensor_split.indices",
    ),
    (
        "self:t indices:t dim:i?= > t",
        "aten.take_along_dim.default",
    ),
    (
        "self:t indices:t output_size:i*2 > t",
        "aten.max_unpool2d.default",
    ),
    (
        "self:t indices:t output_size:i*3 stride:i*3 padding:i*3 > t",
        "aten.max_unpool3d.default",
    ),
    (
        "self:t indices:t?* > t",
        "aten._unsafe_index.Tensor aten.index.Tensor",
    ),
    (
        "self:t indices:t?* values:t accumulate:b= > t",
        "aten._unsafe_index_put.default aten.index_put.default",
    ),
    (
        "self:t indices:t?* values:t accumulate:b= unsafe:b= > t",
        "aten._index_put_impl.default",
    ),
    (
        "self:t input2:t > t",
        "aten.orgqr.default",
    ),
    (
        "self:t input2:t input3:t left:b= transpose:b= > t",
        "aten.ormqr.default",
    ),
    (
        "self:t input2:t upper:b= > t",
        "aten.cholesky_solve.default",
    ),
    (
        "self:t k:i dim:i= keepdim:b= > t t",
        "aten.kthvalue.default",
    ),
    (
        "self:t k:i dim:i= largest:b= sorted:b= > t t",
        "aten.topk.default",
    ),
    (
        "self:t k:i= dims:i*= > t",
        "aten.rot90.default",
    ),
    (
        "self:t kernel_size:i*1 stride:i*1= padding:i*1= ceil_mode:b= count_include_pad:b= > t",
        "aten.avg_pool1d.default",
    ),
    (
        "self:t kernel_size:i*1 stride:i*1= padding:i*1= dilation:i*1= ceil_mode:b= > t",
        "aten.max_pool1d.default",
    ),
    (
        "self:t kernel_size:i*1 stride:i*1= padding:i*1= dilation:i*1= ceil_mode:b= > t t",
        "aten.max_pool1d_with_indices.default",
    ),
    (
        "self:t kernel_size:i*2 dilation:i*2 padding:i*2 stride:i*2 > t",
        "aten.im2col.default",
    ),
    (
        "self:t kernel_size:i*2 output_size:i*2 random_samples:t > t t",
        "aten.fractional_max_pool2d.default",
    ),
    (
        """
        self:t kernel_size:i*2 stride:i*2= padding:i*2= ceil_mode:b= count_include_pad:b=
        divisor_override:i?= > t
        """,
        "aten.avg_pool2d.default",
    ),
    (
        "self:t kernel_size:i*2 stride:i*2= padding:i*2= dilation:i*2= ceil_mode:b= > t",
        "aten.max_pool2d.default",
    ),
    (
        "self:t kernel_size:i*2 stride:i*2= padding:i*2= dilation:i*2= ceil_mode:b= > t t",
        "aten.max_pool2d_with_indices.default",
    ),
    (
        "self:t kernel_size:i*3 output_size:i*3 random_samples:t > t t",
        "aten.fractional_max_pool3d.default",
    ),
    (
        """
        self:t kernel_size:i*3 stride:i*3= padding:i*3= ceil_mode:b= count_include_pad:b=
        divisor_override:i?= > t
        """,
        "aten.avg_pool3d.default",
    ),
    (
        "self:t kernel_size:i*3 stride:i*3= padding:i*3= dilation:i*3= ceil_mode:b= > t",
        "aten.max_pool3d.default",
    ),
    (
        "self:t kernel_size:i*3 stride:i*3= padding:i*3= dilation:i*3= ceil_mode:b= > t t",
        "aten.max_pool3d_with_indices.default",
    ),
    (
        "self:t lambd:f= * generator:x= seed:t= stream:i= > t",
        "aten.exponential.default",
    ),
    (
        "self:t lambd:n= > t",
        "aten.hardshrink.default aten.softshrink.default",
    ),
    (
        """
        self:t low:i high:i * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= seed:t=
        stream:i= > t
        """,
        "aten.randint_like.low_dtype",
    ),
    (
        "self:t lower:n= upper:n= training:b= generator:x= * seed:t= stream:i= > t",
        "aten.rrelu.default",
    ),
    (
        "self:t mask:t indices:t?* fill:n > t",
        "aten._unsafe_masked_index.default",
    ),
    (
        "self:t mask:t indices:t?* values:t > t",
        "aten._unsafe_masked_index_put_accumulate.default",
    ),
    (
        "self:t mask:t source:t > t",
        "aten.masked_scatter.default",
    ),
    (
        "self:t mask:t value:n > t",
        "aten.masked_fill.Scalar",
    ),
    (
        "self:t mask:t value:t > t",
        "aten.masked_fill.Tensor",
    ),
    (
        "self:t mat1:t mat2:t * beta:n= alpha:n= > t",
        "aten.addmm.default",
    ),
    (
        "self:t mat2:t > t",
        "aten.bmm.default aten.mm.default",
    ),
    (
        "self:t mat2:t offs:t?= bias:t?= out_dtype:d?= > t",
        "aten._grouped_mm.default",
    ),
    (
        "self:t mat:t vec:t * beta:n= alpha:n= > t",
        "aten.addmv.default",
    ),
    (
        "self:t max:n > t",
        "aten.clamp_max.default",
    ),
    (
        "self:t max:t > t",
        "aten.clamp_max.Tensor",
    ),
    (
        "self:t mean:f= std:f= * generator:x= seed:t= stream:i= > t",
        "aten.log_normal.default aten.normal_functional.default",
    ),
    (
        "self:t median:f= sigma:f= * generator:x= seed:t= stream:i= > t",
        "aten.cauchy.default",
    ),
    (
        "self:t min:n > t",
        "aten.clamp_min.default",
    ),
    (
        "self:t min:n?= max:n?= > t",
        "aten.clamp.default aten.clip.default",
    ),
    (
        "self:t min:t > t",
        "aten.clamp_min.Tensor",
    ),
    (
        "self:t min:t?= max:t?= > t",
        "aten.clamp.Tensor aten.clip.Tensor",
    ),
    (
        "self:t min_val:n= max_val:n= > t",
        "aten.hardtanh.default",
    ),
    (
        "self:t mode:s * seed:t?= stream:i?= > t",
        "samba.cast_bf16.input samba.cast_bf16.result",
    ),
    (
        "self:t n:i > t",
        "aten.linalg_matrix_power.default aten.matrix_power.default",
    ),
    (
        "self:t n:i= dim:i= prepend:t?= append:t?= > t",
        "aten.diff.default",
    ),
    (
        "self:t nan:f?= posinf:f?= neginf:f?= > t",
        "aten.nan_to_num.default",
    ),
    (
        "self:t negative_slope:n= > t",
        "aten.leaky_relu.default",
    ),
    (
        "self:t num_classes:i= > t",
        "aten.one_hot.default",
    ),
    (
        "self:t num_samples:i replacement:b= * generator:x= seed:t= stream:i= > t",
        "aten.multinomial.default",
    ),
    (
        "self:t offset:i= > t",
        "aten.diagflat.default",
    ),
    (
        "self:t offset:i= dim1:i= dim2:i= > t",
        "aten.diag_embed.default aten.diagonal.default aten.diagonal_copy.default",
    ),
    (
        "self:t ord:n= dim:i*1?= keepdim:b= * dtype:d?= > t",
        "aten.linalg_vector_norm.default",
    ),
    (
        "self:t other:n * rounding_mode:s? > t",
        "aten.div.Scalar_mode aten.divide.Scalar_mode",
    ),
    (
        "self:t other:n > t",
        """
        aten.__and__.Scalar aten.__lshift__.Scalar aten.__or__.Scalar aten.__rshift__.Scalar
        aten.__xor__.Scalar aten.bitwise_and.Scalar aten.bitwise_left_shift.Tensor_Scalar
        aten.bitwise_or.Scalar aten.bitwise_right_shift.Tensor_Scalar aten.bitwise_xor.Scalar
        aten.copysign.Scalar aten.div.Scalar aten.divide.Scalar aten.eq.Scalar
        aten.floor_divide.Scalar aten.fmod.Scalar aten.ge.Scalar aten.greater.Scalar
        aten.greater_equal.Scalar aten.gt.Scalar aten.le.Scalar aten.less.Scalar
        aten.less_equal.Scalar aten.lt.Scalar aten.mul.Scalar aten.multiply.Scalar aten.ne.Scalar
        aten.not_equal.Scalar aten.remainder.Scalar aten.special_xlog1py.other_scalar
        aten.special_xlogy.other_scalar aten.special_zeta.other_scalar aten.true_divide.Scalar
        aten.xlogy.Scalar_Other
        """,
    ),
    (
        "self:t other:n alpha:n= > t",
        "aten.add.Scalar aten.rsub.Scalar aten.sub.Scalar aten.subtract.Scalar",
    ),
    (
        "self:t other:t * alpha:n= > t",
        "aten.add.Tensor aten.rsub.Tensor aten.sub.Tensor aten.subtract.Tensor",
    ),
    (
        "self:t other:t * dim:i= > t",
        "aten.linalg_cross.default",
    ),
    (
        "self:t other:t * rounding_mode:s? > t",
        "aten.div.Tensor_mode aten.divide.Tensor_mode",
    ),
    (
        "self:t other:t > t",
        """
        aten.__and__.Tensor aten.__lshift__.Tensor aten.__or__.Tensor aten.__rshift__.Tensor
        aten.__xor__.Tensor aten.arctan2.default aten.atan2.default aten.bitwise_and.Tensor
        aten.bitwise_left_shift.Tensor aten.bitwise_or.Tensor aten.bitwise_right_shift.Tensor
        aten.bitwise_xor.Tensor aten.copysign.Tensor aten.div.Tensor aten.divide.Tensor
        aten.eq.Tensor aten.expand_as.default aten.floor_divide.default aten.fmax.default
        aten.fmin.default aten.fmod.Tensor aten.gcd.default aten.ge.Tensor aten.greater.Tensor
        aten.greater_equal.Tensor aten.gt.Tensor aten.hypot.default aten.igamma.default
        aten.igammac.default aten.inner.default aten.kron.default aten.lcm.default aten.ldexp.Tensor
        aten.le.Tensor aten.less.Tensor aten.less_equal.Tensor aten.logaddexp.default
        aten.logaddexp2.default aten.logical_and.default aten.logical_or.default
        aten.logical_xor.default aten.lt.Tensor aten.matmul.default aten.max.other
        aten.maximum.default aten.min.other aten.minimum.default aten.mul.Tensor
        aten.multiply.Tensor aten.ne.Tensor aten.nextafter.default aten.not_equal.Tensor
        aten.remainder.Tensor aten.reshape_as.default aten.special_gammainc.default
        aten.special_gammaincc.default aten.special_xlog1py.default aten.special_xlogy.default
        aten.special_zeta.default aten.true_divide.Tensor aten.type_as.default aten.vdot.default
        aten.view_as.default aten.xlogy.Tensor
        """,
    ),
    (
        "self:t other:t dims_self:i* dims_other:i* > t",
        "aten.tensordot.default",
    ),
    (
        "self:t other:t non_blocking:b= copy:b= memory_format:x= > t",
        "aten.to.other",
    ),
    (
        "self:t other:t p:n= > t",
        "aten.dist.default",
    ),
    (
        "self:t other:t rtol:f= atol:f= equal_nan:b= > t",
        "aten.isclose.default",
    ),
    (
        "self:t output_size:i*1 > t",
        "aten.adaptive_avg_pool1d.default",
    ),
    (
        "self:t output_size:i*1 > t t",
        "aten.adaptive_max_pool1d.default",
    ),
    (
        "self:t output_size:i*1 align_corners:b scales:f?= > t",
        "aten.upsample_linear1d.default",
    ),
    (
        "self:t output_size:i*1 scales:f?= > t",
        "aten._upsample_nearest_exact1d.default aten.upsample_nearest1d.default",
    ),
    (
        "self:t output_size:i*2 > t",
        "aten._adaptive_avg_pool2d.default aten.adaptive_avg_pool2d.default",
    ),
    (
        "self:t output_size:i*2 > t t",
        "aten.adaptive_max_pool2d.default",
    ),
    (
        "self:t output_size:i*2 align_corners:b scales_h:f?= scales_w:f?= > t",
        """
        aten._upsample_bicubic2d_aa.default aten._upsample_bilinear2d_aa.default
        aten.upsample_bicubic2d.default aten.upsample_bilinear2d.default
        """,
    ),
    (
        "self:t output_size:i*2 kernel_size:i*2 dilation:i*2 padding:i*2 stride:i*2 > t",
        "aten.col2im.default",
    ),
    (
        "self:t output_size:i*2 scales_h:f?= scales_w:f?= > t",
        "aten._upsample_nearest_exact2d.default aten.upsample_nearest2d.default",
    ),
    (
        "self:t output_size:i*3 > t",
        "aten._adaptive_avg_pool3d.default aten.adaptive_avg_pool3d.default",
    ),
    (
        "self:t output_size:i*3 > t t",
        "aten.adaptive_max_pool3d.default",
    ),
    (
        "self:t output_size:i*3 align_corners:b scales_d:f?= scales_h:f?= scales_w:f?= > t",
        "aten.upsample_trilinear3d.default",
    ),
    (
        "self:t output_size:i*3 scales_d:f?= scales_h:f?= scales_w:f?= > t",
        "aten._upsample_nearest_exact3d.default aten.upsample_nearest3d.default",
    ),
    (
        "self:t p:f= > t",
        "aten.pdist.default",
    ),
    (
        "self:t p:i > t",
        "aten.mvlgamma.default aten.special_multigammaln.default",
    ),
    (
        "self:t p:n dim:i maxnorm:n > t",
        "aten.renorm.default",
    ),
    (
        "self:t p:n= > t",
        "aten.norm.Scalar",
    ),
    (
        "self:t p:n? * dtype:d > t",
        "aten.norm.ScalarOpt_dtype",
    ),
    (
        "self:t p:n? dim:i*1 keepdim:b * dtype:d > t",
        "aten.norm.ScalarOpt_dim_dtype",
    ),
    (
        "self:t p:n? dim:i*1 keepdim:b= > t",
        "aten.norm.ScalarOpt_dim",
    ),
    (
        "self:t p:r * generator:x= seed:t= stream:i= > t",
        "aten.bernoulli.Tensor aten.bernoulli.p aten.geometric.default",
    ),
    (
        "self:t pad:i* > t",
        "aten._pad_circular.default",
    ),
    (
        "self:t pad:i* mode:i value:f?= > t",
        "aten._pad_enum.default",
    ),
    (
        "self:t pad:i* mode:s= value:f?= > t",
        "aten.pad.default",
    ),
    (
        "self:t pad:i* value:n= > t",
        "aten.constant_pad_nd.default",
    ),
    (
        "self:t padding:i*2 > t",
        "aten.reflection_pad1d.default aten.replication_pad1d.default",
    ),
    (
        "self:t padding:i*4 > t",
        "aten.reflection_pad2d.default aten.replication_pad2d.default",
    ),
    (
        "self:t padding:i*6 > t",
        "aten.reflection_pad3d.default aten.replication_pad3d.default",
    ),
    (
        "self:t pivot:b= check_errors:b= > t t t",
        "aten._lu_with_info.default",
    ),
    (
        "self:t rcond:f hermitian:b= > t",
        "aten.linalg_pinv.default",
    ),
    (
        "self:t rcond:f= > t",
        "aten.pinverse.default",
    ),
    (
        "self:t rcond:t hermitian:b= > t",
        "aten.linalg_pinv.rcond_tensor",
    ),
    (
        "self:t repeats:i dim:i?= * output_size:i?= > t",
        "aten.repeat_interleave.self_int",
    ),
    (
        "self:t repeats:i* > t",
        "aten.repeat.default",
    ),
    (
        "self:t repeats:t dim:i?= * output_size:i?= > t",
        "aten.repeat_interleave.self_Tensor",
    ),
    (
        "self:t sections:i > t*",
        "aten.dsplit.int aten.hsplit.int aten.vsplit.int",
    ),
    (
        "self:t sections:i dim:i= > t*",
        "aten.tensor_split.sections",
    ),
    (
        "self:t shape:i* > t",
        "aten.reshape.default",
    ),
    (
        "self:t shifts:i*1 dims:i*1= > t",
        "aten.roll.default",
    ),
    (
        "self:t size:i* * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.new_empty.default aten.new_ones.default aten.new_zeros.default",
    ),
    (
        "self:t size:i* * implicit:b= > t",
        "aten.expand.default aten.expand_copy.default",
    ),
    (
        "self:t size:i* * memory_format:x= > t",
        "aten.resize.default",
    ),
    (
        "self:t size:i* > t",
        """
        aten._reshape_copy.default aten._unsafe_view.default aten.broadcast_to.default
        aten.sum_to_size.default aten.view.default aten.view_copy.default
        """,
    ),
    (
        "self:t size:i* fill_value:n * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.new_full.default",
    ),
    (
        "self:t size:i* stride:i* * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.new_empty_strided.default",
    ),
    (
        "self:t size:i* stride:i* > t",
        "aten._reshape_alias.default aten._reshape_alias_copy.default",
    ),
    (
        "self:t size:i* stride:i* storage_offset:i?= > t",
        "aten.as_strided.default aten.as_strided_copy.default",
    ),
    (
        "self:t source:i destination:i > t",
        "aten.moveaxis.int aten.movedim.int",
    ),
    (
        "self:t source:i* destination:i* > t",
        "aten.moveaxis.intlist aten.movedim.intlist",
    ),
    (
        "self:t split_size:i dim:i= > t*",
        "aten.split.Tensor aten.split_copy.Tensor aten.unsafe_split.Tensor",
    ),
    (
        "self:t split_size:i* dim:i= > t*",
        "aten.split.sizes",
    ),
    (
        "self:t split_sizes:i* dim:i= > t*",
        """
        aten.split.default aten.split_with_sizes.default aten.split_with_sizes_copy.default
        aten.unsafe_split_with_sizes.default
        """,
    ),
    (
        "self:t src:t dim:i index:i > t",
        "aten.select_scatter.default",
    ),
    (
        "self:t src:t dim:i= start:i?= end:i?= step:i= > t",
        "aten.slice_scatter.default",
    ),
    (
        "self:t src:t non_blocking:b= > t",
        "aten.copy.default",
    ),
    (
        "self:t src:t offset:i= dim1:i= dim2:i= > t",
        "aten.diagonal_scatter.default",
    ),
    (
        "self:t src:t size:i* stride:i* storage_offset:i?= > t",
        "aten.as_strided_scatter.default",
    ),
    (
        "self:t start_dim:i= end_dim:i= > t",
        "aten.flatten.using_ints",
    ),
    (
        "self:t target:t margin:f= reduction:i= > t",
        "aten.hinge_embedding_loss.default",
    ),
    (
        "self:t target:t reduction:i= * log_target:b= > t",
        "aten.kl_div.default",
    ),
    (
        "self:t target:t reduction:i= > t",
        """
        aten.l1_loss.default aten.mse_loss.default aten.multilabel_margin_loss.default
        aten.soft_margin_loss.default
        """,
    ),
    (
        "self:t target:t reduction:i= beta:f= > t",
        "aten.smooth_l1_loss.default",
    ),
    (
        "self:t target:t reduction:i= delta:f= > t",
        "aten.huber_loss.default",
    ),
    (
        "self:t target:t weight:t? reduction:i ignore_index:i > t t",
        "aten.nll_loss2d_forward.default aten.nll_loss_forward.default",
    ),
    (
        "self:t target:t weight:t?= pos_weight:t?= reduction:i= > t",
        "aten.binary_cross_entropy_with_logits.default",
    ),
    (
        "self:t target:t weight:t?= reduction:i= > t",
        "aten.binary_cross_entropy.default",
    ),
    (
        "self:t target:t weight:t?= reduction:i= ignore_index:i= > t",
        "aten.nll_loss.default aten.nll_loss2d.default aten.nll_loss_nd.default",
    ),
    (
        "self:t target:t weight:t?= reduction:i= ignore_index:i= label_smoothing:f= > t",
        "aten.cross_entropy_loss.default",
    ),
    (
        "self:t tensor1:t tensor2:t * value:n= > t",
        "aten.addcdiv.default aten.addcmul.default",
    ),
    (
        "self:t tensor:t > t",
        "aten.dot.default",
    ),
    (
        "self:t threshold:n value:n > t",
        "aten.threshold.default",
    ),
    (
        "self:t unbiased:b= > t",
        "aten.std.default aten.var.default",
    ),
    (
        "self:t unbiased:b= > t t",
        "aten.std_mean.default aten.var_mean.default",
    ),
    (
        "self:t upper:b= > t",
        "aten.cholesky.default aten.cholesky_inverse.default",
    ),
    (
        "self:t upscale_factor:i > t",
        "aten.pixel_shuffle.default",
    ),
    (
        "self:t value:n > t",
        "aten.fill.Scalar",
    ),
    (
        "self:t value:t > t",
        "aten.fill.Tensor",
    ),
    (
        "self:t values:t > t",
        "aten.heaviside.default",
    ),
    (
        "self:t vec1:t vec2:t * beta:n= alpha:n= > t",
        "aten.addr.default",
    ),
    (
        "self:t vec2:t > t",
        "aten.ger.default aten.outer.default",
    ),
    (
        "self:t vec:t > t",
        "aten.mv.default",
    ),
    (
        "self:t weight:t > t",
        "aten._prelu_kernel.default aten.prelu.default",
    ),
    (
        "size:i* * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.ones.default aten.zeros.default",
    ),
    (
        "size:i* * dtype:d?= layout:x= device:x= pin_memory:b?= memory_format:x= > t",
        "aten.empty.memory_format",
    ),
    (
        "size:i* * dtype:d?= layout:x= device:x= pin_memory:b?= seed:t= stream:i= > t",
        "aten.rand.default aten.randn.default",
    ),
    (
        "size:i* fill_value:n * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.full.default",
    ),
    (
        "size:i* physical_layout:i* * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.empty_permuted.default",
    ),
    (
        "size:i* stride:i* * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.empty_strided.default",
    ),
    (
        "sorted_sequence:t self:n * out_int32:b= right:b= side:s?= sorter:t?= > t",
        "aten.searchsorted.Scalar",
    ),
    (
        "sorted_sequence:t self:t * out_int32:b= right:b= side:s?= sorter:t?= > t",
        "aten.searchsorted.Tensor",
    ),
    (
        "start:n end:n * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.arange.start aten.range.default",
    ),
    (
        "start:n end:n step:n= * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.arange.start_step aten.range.step",
    ),
    (
        "start:n end:n steps:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.linspace.default",
    ),
    (
        "start:n end:n steps:i base:f= * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.logspace.default",
    ),
    (
        "start:n end:t steps:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.linspace.Scalar_Tensor",
    ),
    (
        "start:n end:t steps:i base:f= * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.logspace.Scalar_Tensor",
    ),
    (
        "start:t end:n steps:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.linspace.Tensor_Scalar",
    ),
    (
        "start:t end:n steps:i base:f= * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.logspace.Tensor_Scalar",
    ),
    (
        "start:t end:t steps:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.linspace.Tensor_Tensor",
    ),
    (
        "start:t end:t steps:i base:f= * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.logspace.Tensor_Tensor",
    ),
    (
        "tensors:t* * indexing:s > t*",
        "aten.meshgrid.indexing",
    ),
    (
        "tensors:t* > t",
        """
        aten.block_diag.default aten.column_stack.default aten.dstack.default aten.hstack.default
        aten.linalg_multi_dot.default aten.row_stack.default aten.vstack.default
        """,
    ),
    (
        "tensors:t* > t*",
        "aten.broadcast_tensors.default aten.meshgrid.default",
    ),
    (
        "tensors:t* dim:i= > t",
        """
        aten._stack.default aten.cat.default aten.concat.default aten.concatenate.default
        aten.stack.default
        """,
    ),
    (
        "v:t g:t dim:i= > t",
        "aten._weight_norm.default",
    ),
    (
        "v:t g:t dim:i= > t t",
        "aten._weight_norm_interface.default",
    ),
    (
        "weight:t indices:t max_norm:f norm_type:f > t",
        "samba.embedding_renorm.default",
    ),
    (
        """
        weight:t indices:t offsets:t scale_grad_by_freq:b mode:i sparse:b per_sample_weights:t?
        include_last_offset:b padding_idx:i? > t t t t
        """,
        "aten.embedding_bag.padding_idx",
    ),
    (
        """
        weight:t indices:t offsets:t scale_grad_by_freq:b= mode:i= sparse:b= per_sample_weights:t?=
        include_last_offset:b= > t t t t
        """,
        "aten.embedding_bag.default",
    ),
    (
        """
        weight:t indices:t offsets:t scale_grad_by_freq:b= mode:i= sparse:b= per_sample_weights:t?=
        include_last_offset:b= padding_idx:i= > t t t t
        """,
        "aten._embedding_bag.default",
    ),
    (
        "weight:t indices:t padding_idx:i= scale_grad_by_freq:b= sparse:b= > t",
        "aten.embedding.default",
    ),
    (
        "window_length:i * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        """
        aten.bartlett_window.default aten.blackman_window.default aten.hamming_window.default
        aten.hann_window.default aten.kaiser_window.default
        """,
    ),
    (
        "window_length:i periodic:b * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        """
        aten.bartlett_window.periodic aten.blackman_window.periodic aten.hamming_window.periodic
        aten.hann_window.periodic aten.kaiser_window.periodic
        """,
    ),
    (
        "window_length:i periodic:b alpha:f * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.hamming_window.periodic_alpha",
    ),
    (
        """
        window_length:i periodic:b alpha:f beta:f * dtype:d?= layout:x= device:x= pin_memory:b?= > t
        """,
        "aten.hamming_window.periodic_alpha_beta",
    ),
    (
        "window_length:i periodic:b beta:f * dtype:d?= layout:x= device:x= pin_memory:b?= > t",
        "aten.kaiser_window.beta",
    ),
    (
        "x1:t x2:t dim:i= eps:f= > t",
        "aten.cosine_similarity.default",
    ),
    (
        "x1:t x2:t p:f= compute_mode:i?= > t",
        "aten.cdist.default",
    ),
    (
        "x1:t x2:t p:f= eps:f= keepdim:b= > t",
        "aten.pairwise_distance.default",
    ),
    (
        "x:n n:t > t",
        """
        aten.special_chebyshev_polynomial_t.x_scalar aten.special_chebyshev_polynomial_u.x_scalar
        aten.special_chebyshev_polynomial_v.x_scalar aten.special_chebyshev_polynomial_w.x_scalar
        aten.special_hermite_polynomial_h.x_scalar aten.special_hermite_polynomial_he.x_scalar
        aten.special_laguerre_polynomial_l.x_scalar aten.special_legendre_polynomial_p.x_scalar
        aten.special_shifted_chebyshev_polynomial_t.x_scalar
        aten.special_shifted_chebyshev_polynomial_u.x_scalar
        aten.special_shifted_chebyshev_polynomial_v.x_scalar
        aten.special_shifted_chebyshev_polynomial_w.x_scalar
        """,
    ),
    (
        "x:t > t",
        """
        aten.special_airy_ai.default aten.special_scaled_modified_bessel_k0.default
        aten.special_scaled_modified_bessel_k1.default aten.special_spherical_bessel_j0.default
        """,
    ),
    (
        "x:t n:n > t",
        """
        aten.special_chebyshev_polynomial_t.n_scalar aten.special_chebyshev_polynomial_u.n_scalar
        aten.special_chebyshev_polynomial_v.n_scalar aten.special_chebyshev_polynomial_w.n_scalar
        aten.special_hermite_polynomial_h.n_scalar aten.special_hermite_polynomial_he.n_scalar
        aten.special_laguerre_polynomial_l.n_scalar aten.special_legendre_polynomial_p.n_scalar
        aten.special_shifted_chebyshev_polynomial_t.n_scalar
        aten.special_shifted_chebyshev_polynomial_u.n_scalar
        aten.special_shifted_chebyshev_polynomial_v.n_scalar
        aten.special_shifted_chebyshev_polynomial_w.n_scalar
        """,
    ),
    (
        "x:t n:t > t",
        """
        aten.special_chebyshev_polynomial_t.default aten.special_chebyshev_polynomial_u.default
        aten.special_chebyshev_polynomial_v.default aten.special_chebyshev_polynomial_w.default
        aten.special_hermite_polynomial_h.default aten.special_hermite_polynomial_he.default
        aten.special_laguerre_polynomial_l.default aten.special_legendre_polynomial_p.default
        aten.special_shifted_chebyshev_polynomial_t.default
        aten.special_shifted_chebyshev_polynomial_u.default
        aten.special_shifted_chebyshev_polynomial_v.default
        aten.special_shifted_chebyshev_polynomial_w.default
        """,
    ),
    (
        "x:t y:t * dim:i= > t",
        "aten.linalg_vecdot.default",
    ),
)
"""Signatures with the ops that have them."""
