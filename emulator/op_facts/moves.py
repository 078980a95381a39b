"""Ops that move, choose or fill elements and compute none."""

from __future__ import annotations

_VIEWS_NAMES = """
aten._lazy_clone.default aten._reshape_alias.default
aten._unsafe_view.default aten.alias.default aten.atleast_1d.default aten.atleast_2d.default
aten.atleast_3d.default aten.broadcast_tensors.default aten.broadcast_to.default
aten.contiguous.default aten.data.default aten.detach.default aten.expand.default
aten.expand_as.default aten.flatten.using_ints aten.lift.default aten.lift_fresh.default
aten.pin_memory.default aten.positive.default aten.ravel.default
aten.reshape.default aten.reshape_as.default aten.resolve_conj.default
aten.resolve_neg.default aten.squeeze.default aten.squeeze.dim aten.squeeze.dims
aten.unflatten.int aten.unsqueeze.default aten.view.default aten.view_as.default
aten.view.dtype samba.custom_gradient
"""
VIEWS = frozenset(_VIEWS_NAMES.split())
"""Ops that give what they take under another shape: they move nothing."""

_FREE_NAMES = """
aten._index_put_impl.default aten._pad_circular.default aten._pad_enum.default
aten._reshape_alias_copy.default aten._reshape_copy.default aten._stack.default
aten._unsafe_index.Tensor aten._unsafe_index_put.default aten._unsafe_masked_index.default
aten.adjoint.default aten.alias_copy.default aten.as_strided.default
aten.as_strided_copy.default aten.as_strided_scatter.default aten.block_diag.default
aten.cat.default aten.channel_shuffle.default aten.chunk.default aten.clone.default
aten.column_stack.default aten.complex.default aten.concat.default aten.concatenate.default
aten.constant_pad_nd.default
aten.copy.default aten.detach_copy.default aten.diag.default aten.diag_embed.default
aten.diagflat.default aten.diagonal.default aten.diagonal_copy.default
aten.diagonal_scatter.default aten.dsplit.array aten.dsplit.int aten.dstack.default
aten.embedding.default aten.empty.memory_format aten.empty_like.default
aten.empty_permuted.default aten.empty_strided.default aten.expand_copy.default
aten.eye.default aten.eye.m aten.fill.Scalar aten.fill.Tensor aten.flip.default
aten.fliplr.default aten.flipud.default aten.full.default aten.full_like.default
aten.gather.default aten.hsplit.array aten.hsplit.int aten.hstack.default aten.im2col.default
aten.index.Tensor aten.index_copy.default aten.index_fill.int_Scalar
aten.imag.default aten.index_fill.int_Tensor aten.index_put.default aten.index_select.default
aten.lift_fresh_copy.default aten.linalg_diagonal.default aten.lu_unpack.default
aten.mH.default aten.mT.default aten.masked_scatter.default aten.matrix_H.default
aten.max_unpool2d.default aten.max_unpool3d.default aten.meshgrid.default
aten.meshgrid.indexing aten.moveaxis.int aten.moveaxis.intlist aten.movedim.int
aten.movedim.intlist aten.narrow.default aten.narrow_copy.default
aten.native_channel_shuffle.default aten.new_empty.default aten.new_empty_strided.default
aten.new_full.default aten.new_ones.default aten.new_zeros.default
aten.nonzero_static.default aten.numpy_T.default aten.one_hot.default aten.ones.default
aten.ones_like.default aten.pad.default aten.permute.default aten.permute_copy.default
aten.pixel_shuffle.default aten.pixel_unshuffle.default aten.put.default aten.real.default
aten.reflection_pad1d.default aten.reflection_pad2d.default aten.reflection_pad3d.default
aten.repeat.default aten.repeat_interleave.Tensor aten.repeat_interleave.self_Tensor
aten.repeat_interleave.self_int aten.replication_pad1d.default
aten.replication_pad2d.default aten.replication_pad3d.default aten.resize.default
aten.roll.default aten.rot90.default aten.row_stack.default aten.scalar_tensor.default
aten.scatter.src aten.scatter.value aten.select.int aten.select_copy.int
aten.select_scatter.default aten.slice.Tensor aten.slice_copy.Tensor
aten.slice_scatter.default aten.split.Tensor aten.split.default aten.split.sizes
aten.split_copy.Tensor aten.split_with_sizes.default aten.split_with_sizes_copy.default
aten.squeeze_copy.default aten.squeeze_copy.dim aten.squeeze_copy.dims aten.stack.default
aten.swapaxes.default aten.swapdims.default aten.t.default aten.t_copy.default
aten.take.default aten.take_along_dim.default aten.tensor_split.indices
aten.tensor_split.sections aten.tile.default aten.transpose.int aten.transpose_copy.int
aten.tril_indices.default aten.triu_indices.default aten.unbind.int aten.unbind_copy.int
aten.unfold.default aten.unfold_copy.default aten.unsafe_chunk.default
aten.unsafe_split.Tensor aten.unsafe_split_with_sizes.default aten.unsqueeze_copy.default
aten.view_copy.default aten.view_copy.dtype aten.vsplit.array aten.vsplit.int
aten.view_as_complex.default aten.view_as_complex_copy.default aten.view_as_real.default
aten.view_as_real_copy.default aten.vstack.default aten.zero.default aten.zeros.default
aten.zeros_like.default
aten._upsample_nearest_exact1d.default aten._upsample_nearest_exact1d.vec
aten._upsample_nearest_exact2d.default aten._upsample_nearest_exact2d.vec
aten._upsample_nearest_exact3d.default aten._upsample_nearest_exact3d.vec
aten.upsample_nearest1d.default aten.upsample_nearest1d.vec aten.upsample_nearest2d.default
aten.upsample_nearest2d.vec aten.upsample_nearest3d.default aten.upsample_nearest3d.vec
"""
FREE = VIEWS | frozenset(_FREE_NAMES.split())
"""Ops that move, choose or fill elements and compute none."""
