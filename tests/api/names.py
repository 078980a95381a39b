"""Every documented name of the front end, by page.

``samba.session.x`` is a method or property of a session, ``samba.SambaTensor.x`` of a tensor. A
name in brackets, such as ``samba.session.run(train)``, is an argument that has its own meaning and
so its own test; arguments that only say which object is meant have none.
"""

from __future__ import annotations


def _of(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names.split())


def _arguments(function: str, names: str) -> tuple[str, ...]:
    return tuple(f"{function}({name})" for name in names.split())


SESSION = (
    "samba.SambaSession",
    *_of(
        "samba.session.",
        """add_graph atexit_register compile compile_multigraph disable_graphamp disable_lazy_param
        disable_pinned_memory enable_lazy_param enable_pinned_memory end_runtime_profile
        end_samba_profile get_argin_names get_dropout_rate_argin_names get_dropout_seed_argin_names
        get_samba_tensor_by_name get_section_types get_tensors get_tensors_by_name get_weight_names
        init_multigraph_runtime profiler reset reset_random_generator run samba_profile setup
        start_runtime_profile start_samba_profile sync_buffers_to_cpu sync_buffers_to_rdu to_cpu
        to_cpu_ to_device to_rdu tracing update_tensor use_abexit use_lazy_param use_legacy_names
        use_pinned_memory use_static_functional""",
    ),
    *_arguments("samba.session.add_graph", "overwrite"),
    *_arguments("samba.session.compile", "inputs optimizers name loss_indices io_host_memory"),
    *_arguments(
        "samba.session.enable_lazy_param",
        "seed init_threads inverse_transform_sampling fp32_to_bf16_rounding",
    ),
    *_arguments("samba.session.init_multigraph_runtime", "transfer_device"),
    *_arguments(
        "samba.session.run",
        """input_tensors output_tensors hyperparam_dict data_parallel reduce_on_rdu section_ids
        section_types run_until_call_id run_from_call_id graph_name data_parallel_mode train""",
    ),
    *_arguments("samba.session.start_runtime_profile", "timer_enabled"),
    *_arguments("samba.session.to_cpu", "optims inplace"),
)
"""The page of ``SambaSession``."""

UTILS = (
    *_of("samba.utils.", "init_output_grads trace_graph trace_multigraph"),
    *_arguments(
        "samba.utils.init_output_grads",
        """output_tensors unspecified_tensor_grad customized_tensors_dict
        is_variable_batch_size""",
    ),
    *_arguments(
        "samba.utils.trace_graph",
        """model inputs optim init_output_grads loss_indices pef mapping data_parallel_mode
        transfer_device""",
    ),
    *_arguments(
        "samba.utils.trace_multigraph",
        "graph inputs optimizers init_output_grads mapping trace_prefix",
    ),
)
"""The page of ``samba.utils``."""

SAMBATENSOR = (
    "samba.SambaTensor",
    *_arguments(
        "samba.SambaTensor",
        """torch_tensor shape dtype name batch_dim named_dims sized_dims materializer is_complex
        region_name""",
    ),
    *_of(
        "samba.SambaTensor.",
        """T __getitem__ __setitem__ backward bfloat16 bool clear_data cpu cpu_ data data_ptr device
        dim dtype element_size fast_access float grad int is_fast_access is_floating_point item long
        materialize_ materializer materializer_provided ndim ndimension nelement new_empty new_full
        new_ones new_zeros numel permute rdu requires_grad requires_grad_ reshape reusable shape
        short size sn_data sn_grad sn_grad_name sn_name sn_region_name stride to torch torch_tensor
        type type_as view_as""",
    ),
    *_of("samba.", "from_torch_tensor to_torch"),
)
"""The page of ``SambaTensor``."""

SLIDES = (
    *_of(
        "samba.",
        """from_torch_model from_torch_model_ optim.SGD rand randint randn SambaTensor.batch_dim
        sambaloader.SambaLoader""",
    ),
    *_arguments("samba.sambaloader.SambaLoader", "names"),
    *_arguments(
        "samba.session.run", "grad_of_outputs hyperparam_dict[lr] hyperparam_dict[weight_decay]"
    ),
    *_arguments("samba.session.run", "hyperparam_dict[momentum] hyperparam_dict[p]"),
    *_of(
        "samba.utils.",
        """argparser.parse_app_args common.common_app_driver get_file_dir measure_performance
        measure_sections""",
    ),
    *_arguments(
        "samba.utils.argparser.parse_app_args", "command batch_size microbatch_size inference pef"
    ),
    *_arguments(
        "samba.utils.common.common_app_driver",
        "args model inputs optim name init_output_grads app_dir",
    ),
    *_arguments(
        "samba.utils.measure_performance", "batch_size inference run_graph_only n_iterations"
    ),
    *_arguments("samba.utils.measure_sections", "batch_size num_sections n_iterations"),
    *_of("", "numpy.add torch.nn.functional.relu torch.nn.Conv2d torch.Tensor.split"),
)
"""What the slides on modelling add to the pages; the last four stand for torch and NumPy
functions called with SambaTensors."""

BAGUA = (
    "bagua.BaguaTensor",
    *_of(
        "bagua.BaguaTensor.",
        """bagua_backend_tensor bagua_ensure_grad bagua_getter_closure
        bagua_mark_communication_ready bagua_mark_communication_ready_without_synchronization
        bagua_set_storage bagua_setter_closure ensure_bagua_tensor is_bagua_tensor
        to_bagua_tensor""",
    ),
    *_arguments(
        "bagua.BaguaTensor.ensure_bagua_tensor", "name module_name getter_closure setter_closure"
    ),
)
"""The page of ``bagua.torch_api.tensor``; here ``samba.distributed.bagua``."""

PAGES = {
    "SambaSession": SESSION,
    "samba.utils": UTILS,
    "SambaTensor": SAMBATENSOR,
    "Modelling slides": SLIDES,
    "BaguaTensor": BAGUA,
}
"""Names by page, each on the first page that has it."""

ALL = frozenset(name for names in PAGES.values() for name in names)
"""Every name."""
