"""Made from the ops of emulator/ops by tools/regen_op_facts.py; do not edit."""

from emulator.op_facts.facts import OpFacts

GROUPS: tuple[tuple[OpFacts, str], ...] = (
    (
        OpFacts(),
        """
        aten.det.default aten.grid_sampler.default aten.grid_sampler_2d.default
        aten.grid_sampler_3d.default aten.gru_cell.default aten.inverse.default
        aten.linalg_cholesky.default aten.linalg_det.default aten.linalg_inv.default
        aten.linalg_matrix_power.default aten.linalg_slogdet.default aten.linalg_solve.default
        aten.linalg_solve_triangular.default aten.logdet.default aten.lstm_cell.default
        aten.matrix_power.default aten.rnn_relu_cell.default aten.rnn_tanh_cell.default
        aten.slogdet.default
        """,
    ),
    (
        OpFacts(cheap=True),
        """
        aten.addcdiv.default aten.addcmul.default aten.clamp.Tensor aten.clamp.default
        aten.clamp_max.Tensor aten.clamp_max.default aten.clamp_min.Tensor aten.clamp_min.default
        aten.clip.Tensor aten.clip.default aten.float_power.Scalar aten.float_power.Tensor_Scalar
        aten.float_power.Tensor_Tensor aten.fmax.default aten.fmin.default aten.lerp.Scalar
        aten.lerp.Tensor aten.max.other aten.maximum.default aten.min.other aten.minimum.default
        aten.pow.Scalar aten.pow.Tensor_Scalar aten.pow.Tensor_Tensor
        """,
    ),
    (
        OpFacts(cheap=True, differentiable=False),
        """
        aten.floor_divide.Scalar aten.floor_divide.default aten.gcd.default aten.heaviside.default
        aten.lcm.default
        """,
    ),
    (
        OpFacts(loops=True, random=True),
        """
        aten.gru.input aten.lstm.input aten.rnn_relu.input aten.rnn_tanh.input
        """,
    ),
    (
        OpFacts(reads=()),
        """
        aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool3d.default aten._fft_c2c.default
        aten._fft_c2r.default aten._fft_r2c.default aten._upsample_bicubic2d_aa.default
        aten._upsample_bicubic2d_aa.vec aten._upsample_bilinear2d_aa.default
        aten._upsample_bilinear2d_aa.vec aten._upsample_nearest_exact1d.default
        aten._upsample_nearest_exact1d.vec aten._upsample_nearest_exact2d.default
        aten._upsample_nearest_exact2d.vec aten._upsample_nearest_exact3d.default
        aten._upsample_nearest_exact3d.vec aten.adaptive_avg_pool1d.default
        aten.adaptive_avg_pool2d.default aten.adaptive_avg_pool3d.default aten.avg_pool1d.default
        aten.avg_pool2d.default aten.avg_pool3d.default aten.col2im.default aten.cumsum.default
        aten.diff.default aten.im2col.default aten.mean.default aten.mean.dim aten.sum.default
        aten.sum.dim_IntList aten.sum_to_size.default aten.trace.default
        aten.upsample_bicubic2d.default aten.upsample_bicubic2d.vec aten.upsample_bilinear2d.default
        aten.upsample_bilinear2d.vec aten.upsample_linear1d.default aten.upsample_linear1d.vec
        aten.upsample_nearest1d.default aten.upsample_nearest1d.vec aten.upsample_nearest2d.default
        aten.upsample_nearest2d.vec aten.upsample_nearest3d.default aten.upsample_nearest3d.vec
        aten.upsample_trilinear3d.default aten.upsample_trilinear3d.vec
        samba.embedding_renorm.default
        """,
    ),
    (
        OpFacts(reads=(), cheap=True),
        """
        aten._conj.default aten._conj_copy.default aten._conj_physical.default
        aten._lazy_clone.default aten._neg_view.default aten._neg_view_copy.default
        aten._pad_circular.default aten._pad_enum.default aten._reshape_alias.default
        aten._reshape_alias_copy.default aten._reshape_copy.default aten._stack.default
        aten._to_copy.default aten._unsafe_view.default aten.add.Scalar aten.add.Tensor
        aten.adjoint.default aten.alias.default aten.alias_copy.default aten.as_strided.default
        aten.as_strided_copy.default aten.as_strided_scatter.default aten.atleast_1d.default
        aten.atleast_2d.default aten.atleast_3d.default aten.block_diag.default
        aten.broadcast_tensors.default aten.broadcast_to.default aten.cat.default aten.ceil.default
        aten.channel_shuffle.default aten.chunk.default aten.clone.default aten.column_stack.default
        aten.complex.default aten.concat.default aten.concatenate.default aten.conj.default
        aten.conj_physical.default aten.constant_pad_nd.default aten.contiguous.default
        aten.copy.default aten.deg2rad.default aten.diag.default aten.diag_embed.default
        aten.diagflat.default aten.diagonal.default aten.diagonal_copy.default
        aten.diagonal_scatter.default aten.dsplit.array aten.dsplit.int aten.dstack.default
        aten.expand.default aten.expand_as.default aten.expand_copy.default aten.fill.Scalar
        aten.fill.Tensor aten.fix.default aten.flatten.using_ints aten.flip.default
        aten.fliplr.default aten.flipud.default aten.floor.default aten.frac.default
        aten.hsplit.array aten.hsplit.int aten.hstack.default aten.imag.default aten.lift.default
        aten.lift_fresh.default aten.lift_fresh_copy.default aten.linalg_diagonal.default
        aten.mH.default aten.mT.default aten.matrix_H.default aten.meshgrid.default
        aten.meshgrid.indexing aten.moveaxis.int aten.moveaxis.intlist aten.movedim.int
        aten.movedim.intlist aten.narrow.default aten.narrow_copy.default
        aten.native_channel_shuffle.default aten.neg.default aten.negative.default
        aten.numpy_T.default aten.pad.default aten.permute.default aten.permute_copy.default
        aten.pin_memory.default aten.pixel_shuffle.default aten.pixel_unshuffle.default
        aten.positive.default aten.rad2deg.default aten.ravel.default aten.real.default
        aten.reflection_pad1d.default aten.reflection_pad2d.default aten.reflection_pad3d.default
        aten.repeat.default aten.repeat_interleave.self_int aten.replication_pad1d.default
        aten.replication_pad2d.default aten.replication_pad3d.default aten.reshape.default
        aten.reshape_as.default aten.resolve_conj.default aten.resolve_neg.default aten.roll.default
        aten.rot90.default aten.round.decimals aten.round.default aten.row_stack.default
        aten.rsub.Scalar aten.rsub.Tensor aten.select.int aten.select_copy.int
        aten.select_scatter.default aten.sign.default aten.slice.Tensor aten.slice_copy.Tensor
        aten.slice_scatter.default aten.special_round.decimals aten.special_round.default
        aten.split.Tensor aten.split.default aten.split.sizes aten.split_copy.Tensor
        aten.split_with_sizes.default aten.split_with_sizes_copy.default aten.squeeze.default
        aten.squeeze.dim aten.squeeze.dims aten.squeeze_copy.default aten.squeeze_copy.dim
        aten.squeeze_copy.dims aten.stack.default aten.sub.Scalar aten.sub.Tensor
        aten.subtract.Scalar aten.subtract.Tensor aten.swapaxes.default aten.swapdims.default
        aten.t.default aten.t_copy.default aten.tensor_split.indices aten.tensor_split.sections
        aten.tile.default aten.to.dtype aten.to.other aten.transpose.int aten.transpose_copy.int
        aten.tril.default aten.triu.default aten.trunc.default aten.type_as.default aten.unbind.int
        aten.unbind_copy.int aten.unflatten.int aten.unfold.default aten.unfold_copy.default
        aten.unsafe_chunk.default aten.unsafe_split.Tensor aten.unsafe_split_with_sizes.default
        aten.unsqueeze.default aten.unsqueeze_copy.default aten.view.default aten.view_as.default
        aten.view_as_complex.default aten.view_as_complex_copy.default aten.view_as_real.default
        aten.view_as_real_copy.default aten.view_copy.default aten.vsplit.array aten.vsplit.int
        aten.vstack.default samba.cast_bf16.input samba.cast_bf16.result
        """,
    ),
    (
        OpFacts(reads=(), cheap=True, differentiable=False),
        """
        aten.__and__.Scalar aten.__and__.Tensor aten.__lshift__.Scalar aten.__lshift__.Tensor
        aten.__or__.Scalar aten.__or__.Tensor aten.__rshift__.Scalar aten.__rshift__.Tensor
        aten.__xor__.Scalar aten.__xor__.Tensor aten.arange.default aten.arange.start
        aten.arange.start_step aten.bartlett_window.default aten.bartlett_window.periodic
        aten.bitwise_and.Scalar aten.bitwise_and.Scalar_Tensor aten.bitwise_and.Tensor
        aten.bitwise_left_shift.Scalar_Tensor aten.bitwise_left_shift.Tensor
        aten.bitwise_left_shift.Tensor_Scalar aten.bitwise_not.default aten.bitwise_or.Scalar
        aten.bitwise_or.Scalar_Tensor aten.bitwise_or.Tensor aten.bitwise_right_shift.Scalar_Tensor
        aten.bitwise_right_shift.Tensor aten.bitwise_right_shift.Tensor_Scalar
        aten.bitwise_xor.Scalar aten.bitwise_xor.Scalar_Tensor aten.bitwise_xor.Tensor
        aten.blackman_window.default aten.blackman_window.periodic aten.data.default
        aten.detach.default aten.detach_copy.default aten.empty.memory_format
        aten.empty_like.default aten.empty_permuted.default aten.empty_strided.default
        aten.eq.Scalar aten.eq.Tensor aten.eye.default aten.eye.m aten.full.default
        aten.full_like.default aten.ge.Scalar aten.ge.Tensor aten.greater.Scalar aten.greater.Tensor
        aten.greater_equal.Scalar aten.greater_equal.Tensor aten.gt.Scalar aten.gt.Tensor
        aten.hamming_window.default aten.hamming_window.periodic aten.hamming_window.periodic_alpha
        aten.hamming_window.periodic_alpha_beta aten.hann_window.default aten.hann_window.periodic
        aten.isclose.default aten.isfinite.default aten.isinf.default aten.isnan.default
        aten.isneginf.default aten.isposinf.default aten.kaiser_window.beta
        aten.kaiser_window.default aten.kaiser_window.periodic aten.le.Scalar aten.le.Tensor
        aten.less.Scalar aten.less.Tensor aten.less_equal.Scalar aten.less_equal.Tensor
        aten.linspace.Scalar_Tensor aten.linspace.Tensor_Scalar aten.linspace.Tensor_Tensor
        aten.linspace.default aten.logical_and.default aten.logical_not.default
        aten.logical_or.default aten.logical_xor.default aten.logspace.Scalar_Tensor
        aten.logspace.Tensor_Scalar aten.logspace.Tensor_Tensor aten.logspace.default aten.lt.Scalar
        aten.lt.Tensor aten.ne.Scalar aten.ne.Tensor aten.new_empty.default
        aten.new_empty_strided.default aten.new_full.default aten.new_ones.default
        aten.new_zeros.default aten.not_equal.Scalar aten.not_equal.Tensor aten.one_hot.default
        aten.ones.default aten.ones_like.default aten.range.default aten.range.step
        aten.scalar_tensor.default aten.signbit.default aten.special_airy_ai.default
        aten.special_bessel_j0.default aten.special_bessel_j1.default aten.special_bessel_y0.default
        aten.special_bessel_y1.default aten.special_modified_bessel_i0.default
        aten.special_modified_bessel_i1.default aten.special_modified_bessel_k0.default
        aten.special_modified_bessel_k1.default aten.special_scaled_modified_bessel_k0.default
        aten.special_scaled_modified_bessel_k1.default aten.special_spherical_bessel_j0.default
        aten.tril_indices.default aten.triu_indices.default aten.view.dtype aten.view_copy.dtype
        aten.zero.default aten.zeros.default aten.zeros_like.default samba.checked_branch
        samba.next_seed
        """,
    ),
    (
        OpFacts(reads=(), cheap=True, differentiable=False, random=True),
        """
        aten.bernoulli.Tensor aten.bernoulli.default aten.bernoulli.p aten.cauchy.default
        aten.exponential.default aten.geometric.default aten.log_normal.default
        aten.normal.Tensor_Tensor aten.normal.Tensor_float aten.normal.float_Tensor
        aten.normal.float_float aten.normal_functional.default aten.rand.default
        aten.rand_like.default aten.randint.default aten.randint.low aten.randint_like.Tensor
        aten.randint_like.default aten.randint_like.low_dtype aten.randn.default
        aten.randn_like.default aten.uniform.default
        """,
    ),
    (
        OpFacts(reads=(), differentiable=False),
        """
        aten._histogramdd_bin_edges.default aten._histogramdd_from_bin_cts.default
        aten._histogramdd_from_bin_tensors.default aten._is_all_true.default
        aten._is_any_true.default aten.all.default aten.all.dim aten.all.dims aten.any.default
        aten.any.dim aten.any.dims aten.argmax.default aten.argmin.default aten.argsort.default
        aten.argsort.stable aten.bucketize.Scalar aten.bucketize.Tensor aten.count_nonzero.default
        aten.count_nonzero.dim_IntList aten.geqrf.default aten.histc.default aten.histogram.bin_ct
        aten.histogram.bins_tensor aten.isin.Scalar_Tensor aten.isin.Tensor_Scalar
        aten.isin.Tensor_Tensor aten.nonzero_static.default aten.repeat_interleave.Tensor
        aten.resize.default aten.scatter.reduce aten.scatter.value_reduce aten.searchsorted.Scalar
        aten.searchsorted.Tensor aten.special_chebyshev_polynomial_t.default
        aten.special_chebyshev_polynomial_t.n_scalar aten.special_chebyshev_polynomial_t.x_scalar
        aten.special_chebyshev_polynomial_u.default aten.special_chebyshev_polynomial_u.n_scalar
        aten.special_chebyshev_polynomial_u.x_scalar aten.special_chebyshev_polynomial_v.default
        aten.special_chebyshev_polynomial_v.n_scalar aten.special_chebyshev_polynomial_v.x_scalar
        aten.special_chebyshev_polynomial_w.default aten.special_chebyshev_polynomial_w.n_scalar
        aten.special_chebyshev_polynomial_w.x_scalar aten.special_hermite_polynomial_h.default
        aten.special_hermite_polynomial_h.n_scalar aten.special_hermite_polynomial_h.x_scalar
        aten.special_hermite_polynomial_he.default aten.special_hermite_polynomial_he.n_scalar
        aten.special_hermite_polynomial_he.x_scalar aten.special_laguerre_polynomial_l.default
        aten.special_laguerre_polynomial_l.n_scalar aten.special_laguerre_polynomial_l.x_scalar
        aten.special_legendre_polynomial_p.default aten.special_legendre_polynomial_p.n_scalar
        aten.special_legendre_polynomial_p.x_scalar
        aten.special_shifted_chebyshev_polynomial_t.default
        aten.special_shifted_chebyshev_polynomial_t.n_scalar
        aten.special_shifted_chebyshev_polynomial_t.x_scalar
        aten.special_shifted_chebyshev_polynomial_u.default
        aten.special_shifted_chebyshev_polynomial_u.n_scalar
        aten.special_shifted_chebyshev_polynomial_u.x_scalar
        aten.special_shifted_chebyshev_polynomial_v.default
        aten.special_shifted_chebyshev_polynomial_v.n_scalar
        aten.special_shifted_chebyshev_polynomial_v.x_scalar
        aten.special_shifted_chebyshev_polynomial_w.default
        aten.special_shifted_chebyshev_polynomial_w.n_scalar
        aten.special_shifted_chebyshev_polynomial_w.x_scalar
        """,
    ),
    (
        OpFacts(reads=(), differentiable=False, random=True),
        """
        aten.binomial.default aten.multinomial.default aten.poisson.default aten.randperm.default
        """,
    ),
    (
        OpFacts(reads=(0, 1)),
        """
        aten._linalg_solve_ex.default aten._native_batch_norm_legit.no_stats
        aten._weight_norm.default aten._weight_norm_interface.default aten.cdist.default
        aten.cholesky_solve.default aten.cosine_similarity.default aten.dist.default
        aten.ger.default aten.hinge_embedding_loss.default aten.huber_loss.default
        aten.inner.default aten.kl_div.default aten.kron.default aten.l1_loss.default
        aten.linalg_cross.default aten.linalg_householder_product.default
        aten.linalg_solve_ex.default aten.linalg_vecdot.default aten.mse_loss.default
        aten.multilabel_margin_loss.default aten.native_group_norm.default aten.orgqr.default
        aten.outer.default aten.pairwise_distance.default aten.poisson_nll_loss.default
        aten.segment_reduce.default aten.smooth_l1_loss.default aten.soft_margin_loss.default
        aten.tensordot.default aten.triangular_solve.default
        """,
    ),
    (
        OpFacts(reads=(0, 1), cheap=True),
        """
        aten._prelu_kernel.default aten.arctan2.default aten.atan2.default aten.copysign.Scalar
        aten.copysign.Tensor aten.div.Scalar_mode aten.div.Tensor_mode aten.divide.Scalar_mode
        aten.divide.Tensor_mode aten.fmod.Scalar aten.fmod.Tensor aten.hypot.default
        aten.igamma.default aten.igammac.default aten.ldexp.Tensor aten.logaddexp.default
        aten.logaddexp2.default aten.nextafter.default aten.polar.default aten.prelu.default
        aten.remainder.Scalar aten.remainder.Scalar_Tensor aten.remainder.Tensor
        aten.special_gammainc.default aten.special_gammaincc.default aten.special_xlog1py.default
        aten.special_xlog1py.other_scalar aten.special_xlog1py.self_scalar
        aten.special_xlogy.default aten.special_xlogy.other_scalar aten.special_xlogy.self_scalar
        aten.special_zeta.default aten.special_zeta.other_scalar aten.special_zeta.self_scalar
        aten.xlogy.Scalar_Other aten.xlogy.Scalar_Self aten.xlogy.Tensor
        """,
    ),
    (
        OpFacts(reads=(0, 1), linear_in=(0, 1)),
        """
        aten.bmm.default aten.conv1d.default aten.conv1d.padding aten.conv2d.default
        aten.conv2d.padding aten.conv3d.default aten.conv3d.padding aten.conv_transpose1d.default
        aten.conv_transpose2d.input aten.conv_transpose3d.input aten.convolution.default
        aten.dot.default aten.linear.default aten.matmul.default aten.mm.default aten.mv.default
        aten.vdot.default
        """,
    ),
    (
        OpFacts(reads=(0, 1), linear_in=(0, 1), cheap=True),
        """
        aten.mul.Scalar aten.mul.Tensor aten.multiply.Scalar aten.multiply.Tensor
        """,
    ),
    (
        OpFacts(reads=(0, 1), linear_in=(0,), cheap=True),
        """
        aten.div.Scalar aten.div.Tensor aten.divide.Scalar aten.divide.Tensor
        aten.true_divide.Scalar aten.true_divide.Tensor
        """,
    ),
    (
        OpFacts(reads=(0, 1, 2)),
        """
        aten._grouped_mm.default aten.bilinear.default aten.binary_cross_entropy.default
        aten.cosine_embedding_loss.default aten.cross_entropy_loss.default
        aten.linalg_lu_solve.default aten.lu_solve.default aten.margin_ranking_loss.default
        aten.ormqr.default aten.triplet_margin_loss.default transformers.grouped_mm_fallback.default
        """,
    ),
    (
        OpFacts(reads=(0, 1, 2, 3)),
        """
        aten.binary_cross_entropy_with_logits.default samba.ctc_loss.default
        """,
    ),
    (
        OpFacts(reads=(0, 1, 2, 3, 4), random=True),
        """
        aten.scaled_dot_product_attention.default
        """,
    ),
    (
        OpFacts(reads=(0, 1, 2, 6)),
        """
        aten._embedding_bag.default aten.embedding_bag.default aten.embedding_bag.padding_idx
        """,
    ),
    (
        OpFacts(reads=(0, 1, 3, 4)),
        """
        aten._native_batch_norm_legit_functional.default
        aten._native_batch_norm_legit_no_training.default aten.instance_norm.default
        """,
    ),
    (
        OpFacts(reads=(0, 2)),
        """
        aten._fused_rms_norm.default aten.group_norm.default aten.layer_norm.default
        aten.native_layer_norm.default aten.rms_norm.default
        """,
    ),
    (
        OpFacts(reads=(0, 2, 3)),
        """
        aten.index_reduce.default aten.scatter_reduce.two
        """,
    ),
    (
        OpFacts(reads=(0, 3)),
        """
        aten.fractional_max_pool2d.default aten.fractional_max_pool3d.default
        """,
    ),
    (
        OpFacts(reads=(0,)),
        """
        aten._linalg_det.default aten._linalg_eigh.default aten._linalg_slogdet.default
        aten._linalg_svd.default aten._log_softmax.default aten._logcumsumexp.default
        aten._lu_with_info.default aten._safe_softmax.default aten._softmax.default
        aten.adaptive_max_pool1d.default aten.adaptive_max_pool2d.default
        aten.adaptive_max_pool3d.default aten.amax.default aten.amin.default aten.aminmax.default
        aten.chain_matmul.default aten.cholesky.default aten.cholesky_inverse.default
        aten.cummax.default aten.cummin.default aten.cumprod.default aten.frobenius_norm.dim
        aten.kthvalue.default aten.linalg_cholesky_ex.default aten.linalg_eigh.default
        aten.linalg_inv_ex.default aten.linalg_lu.default aten.linalg_lu_factor.default
        aten.linalg_lu_factor_ex.default aten.linalg_matrix_exp.default
        aten.linalg_multi_dot.default aten.linalg_pinv.atol_rtol_float
        aten.linalg_pinv.atol_rtol_tensor aten.linalg_pinv.default aten.linalg_pinv.rcond_tensor
        aten.linalg_qr.default aten.linalg_vector_norm.default aten.log_softmax.int
        aten.logcumsumexp.default aten.logsumexp.default aten.matrix_exp.default aten.max.default
        aten.max.dim aten.max_pool1d.default aten.max_pool1d_with_indices.default
        aten.max_pool2d.default aten.max_pool2d_with_indices.default aten.max_pool3d.default
        aten.max_pool3d_with_indices.default aten.median.default aten.median.dim aten.min.default
        aten.min.dim aten.mode.default aten.msort.default aten.nanmean.default
        aten.nanmedian.default aten.nanmedian.dim aten.nansum.default aten.norm.Scalar
        aten.norm.ScalarOpt_dim aten.norm.ScalarOpt_dim_dtype aten.norm.ScalarOpt_dtype
        aten.pdist.default aten.pinverse.default aten.prod.default aten.prod.dim_int
        aten.renorm.default aten.softmax.int aten.sort.default aten.sort.stable
        aten.special_logsumexp.default aten.std.correction aten.std.default aten.std.dim
        aten.std_mean.correction aten.std_mean.default aten.std_mean.dim aten.topk.default
        aten.var.correction aten.var.default aten.var.dim aten.var_mean.correction
        aten.var_mean.default aten.var_mean.dim
        """,
    ),
    (
        OpFacts(reads=(0,), cheap=True),
        """
        aten.abs.default aten.absolute.default aten.acos.default aten.acosh.default
        aten.angle.default aten.arccos.default aten.arccosh.default aten.arcsin.default
        aten.arcsinh.default aten.arctan.default aten.arctanh.default aten.asin.default
        aten.asinh.default aten.atan.default aten.atanh.default aten.celu.default aten.cos.default
        aten.cosh.default aten.digamma.default aten.elu.default aten.erf.default aten.erfc.default
        aten.erfinv.default aten.exp.default aten.exp2.default aten.expm1.default aten.frexp.Tensor
        aten.gelu.default aten.glu.default aten.hardshrink.default aten.hardsigmoid.default
        aten.hardswish.default aten.hardtanh.default aten.i0.default aten.leaky_relu.default
        aten.lgamma.default aten.log.default aten.log10.default aten.log1p.default aten.log2.default
        aten.log_sigmoid.default aten.log_sigmoid_forward.default aten.logit.default
        aten.mish.default aten.mvlgamma.default aten.nan_to_num.default aten.reciprocal.default
        aten.relu.default aten.relu6.default aten.rsqrt.default aten.selu.default aten.sgn.default
        aten.sigmoid.default aten.silu.default aten.sin.default aten.sinc.default aten.sinh.default
        aten.softplus.default aten.softshrink.default aten.special_digamma.default
        aten.special_entr.default aten.special_erf.default aten.special_erfc.default
        aten.special_erfcx.default aten.special_erfinv.default aten.special_exp2.default
        aten.special_expm1.default aten.special_gammaln.default aten.special_i0.default
        aten.special_i0e.default aten.special_i1.default aten.special_i1e.default
        aten.special_log1p.default aten.special_log_ndtr.default aten.special_logit.default
        aten.special_multigammaln.default aten.special_ndtr.default aten.special_ndtri.default
        aten.special_psi.default aten.special_sinc.default aten.sqrt.default aten.square.default
        aten.tan.default aten.tanh.default aten.threshold.default aten.where.Scalar
        aten.where.ScalarOther aten.where.ScalarSelf aten.where.self
        """,
    ),
    (
        OpFacts(reads=(0,), random=True),
        """
        aten._standard_gamma.default aten.rrelu.default
        """,
    ),
    (
        OpFacts(reads=(1, 2)),
        """
        aten._unsafe_masked_index.default aten._unsafe_masked_index_put_accumulate.default
        aten.addbmm.default aten.addr.default aten.nll_loss.default aten.nll_loss2d.default
        aten.nll_loss2d_forward.default aten.nll_loss_forward.default aten.nll_loss_nd.default
        """,
    ),
    (
        OpFacts(reads=(1, 2), linear_in=(1, 2)),
        """
        aten.addmm.default aten.addmv.default aten.baddbmm.default
        """,
    ),
    (
        OpFacts(reads=(1,)),
        """
        aten._index_put_impl.default aten._unsafe_index.Tensor aten._unsafe_index_put.default
        aten.einsum.default aten.embedding.default aten.index.Tensor aten.index_put.default
        aten.lu_unpack.default aten.masked_scatter.default aten.max_unpool2d.default
        aten.max_unpool3d.default aten.put.default aten.repeat_interleave.self_Tensor
        aten.take.default aten.take_along_dim.default
        """,
    ),
    (
        OpFacts(reads=(1,), cheap=True),
        """
        aten.masked_fill.Scalar aten.masked_fill.Tensor aten.polygamma.default
        aten.special_polygamma.default
        """,
    ),
    (
        OpFacts(reads=(1,), cheap=True, random=True),
        """
        aten.dropout.default aten.native_dropout.default
        """,
    ),
    (
        OpFacts(reads=(2,)),
        """
        aten.gather.default aten.index_add.default aten.index_copy.default
        aten.index_fill.int_Scalar aten.index_fill.int_Tensor aten.index_select.default
        aten.scatter.src aten.scatter.value aten.scatter_add.default
        """,
    ),
    (
        OpFacts(reads=(3,), cheap=True),
        """
        samba.custom_gradient
        """,
    ),
)
