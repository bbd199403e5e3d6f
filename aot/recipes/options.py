"""Inductor's options, torch 2.11 to 2.13: each is refused with a reason, or allowed by name.

What no rule names is refused as well: an option of a newer torch may hold a path, drop a check, or do nothing on this
route, and is let in once somebody has read what it does. Source: torch/_inductor/config.py of the three releases.
"""

from fnmatch import fnmatchcase

_OURS = "it is part of what makes an artifact portable and bindable, so this product sets it"
_PROFILE = "the profile decides it: ask for another profile"
_MODE = "CUDA graphs are captured when an artifact is loaded: set mode to reduce-overhead or max-autotune"
_UNSAFE = "with weights outside the code it gives silently wrong results for the next checkpoint"
_FROZEN = "set freeze = true in the recipe, which ties the bundle to its weights"
_FORM = "a bundle stores the shared object and its kernels as files of their own"
_PLACE = "it names a place on the machine that builds"
_SYMBOLS = "debug symbols and line tables hold paths of the builder"
_DUMP = "it writes debug output on the worker, and nothing of it comes back"
_TESTING = "it exists for torch's own tests"
_UNGUARDED = "it promises something of the inputs that no guard of an artifact checks"
_CHECKS = "it takes out or changes checks that keep a wrong input from reading foreign memory"
_CACHES = "caches are private to a build, and what comes out of one must not depend on them"
_WORKER = "it says how a worker works, not what comes out; the spec's limits are for that"
_GROUP = "it is for programs that several processes run together, and this route carries one process's"
_BACKWARD = "it is for the backward pass, and this route compiles for inference"
_VALUE = "its value is a table or a piece of code, which a recipe cannot hold"
_BACKEND = "it belongs to a code generator that no profile of this version has"
_CACHE_PATH = "it belongs to compiled functions in torch's own caches, and this route makes shared objects"
_PROCESS_MODE = "it may link start-up code that changes floating-point arithmetic of the whole process"
_BYTES = "it is not shown to give equal bytes for equal inputs"
_LAYOUT = "outputs would have other strides than eager's"
_UNREVIEWED = "no rule of this version says what it does to an artifact"

# The first pattern that matches gives the reason. Patterns are those of `fnmatch`.
REFUSED: tuple[tuple[str, str], ...] = (
    *((name, _UNSAFE) for name in ("always_keep_tensor_constants", "joint_graph_constant_folding")),
    ("aot_inductor.use_runtime_constant_folding", _UNSAFE),
    (
        "inplace_buffers",
        "a kernel of a card that stores over what it loads can be wrong: it is off there, and on on a CPU",
    ),
    ("cpp.weight_prepack", _UNSAFE + "; set freeze = true to pack the weights of one checkpoint"),
    ("freezing*", _FROZEN),
    ("aot_inductor.package_constants_in_so", _OURS + "; set freeze = true for weights inside"),
    *((f"aot_inductor.{name}", _OURS) for name in ("package_constants_on_disk_format", "force_mmap_weights")),
    *((f"aot_inductor.{name}", _OURS) for name in ("metadata", "model_name_for_generated_files", "serialized_*")),
    *((f"aot_inductor.{name}", _OURS) for name in ("precompile_headers", "raise_error_on_ignored_optimization")),
    *((f"aot_inductor.{name}", _OURS) for name in ("use_minimal_arrayref_interface", "allow_stack_allocation")),
    ("aot_inductor.weight_use_caching_allocator", _OURS),
    *((f"aot_inductor.{name}", _FORM) for name in ("package", "package_cpp_only", "embed_kernel_binary")),
    *((f"aot_inductor.{name}", _FORM) for name in ("dynamic_linkage", "link_libtorch", "use_consts_asm_*")),
    *((name, _FORM) for name in ("aot_inductor.output_path", "aot_inductor_mode.*", "triton.store_cubin", "keep_*raw")),
    *((f"aot_inductor.{name}", _SYMBOLS) for name in ("enable_line_tables", "debug_compile", "debug_symbols")),
    ("aot_inductor.dump_aoti_minifier", "it writes the program into files of the worker"),
    *((f"aot_inductor.{name}", _DUMP) for name in ("debug_intermediate_*", "filtered_kernel_names", "repro_level")),
    ("aot_inductor.aoti_shim_library*", _PLACE),
    *((f"aot_inductor.{name}", _VALUE) for name in ("custom_op_libs", "custom_ops_to_c_shims", "presets")),
    ("aot_inductor.cross_target_platform", _PROFILE),
    ("aot_inductor.check_lowerbound", _CHECKS),
    ("aot_inductor.enable_lto", _BYTES),
    *((name, "this route always has a C++ wrapper") for name in ("cpp_wrapper*", "fx_wrapper", "disable_cpp_codegen")),
    *((f"cpp.{name}", _PROFILE) for name in ("march", "simdlen", "vec_isa_ok", "cxx", "threads", "dynamic_threads")),
    *((name, _PROFILE) for name in ("cuda.arch", "cuda.version", "rocm.arch", "triton_disable_device_detection")),
    ("cpp.enable_unsafe_math_opt_flag", _PROCESS_MODE),
    ("cpp.enable_kernel_profile", _DUMP),
    *((name, _TESTING) for name in ("*_TESTING_ONLY", "test_configs.*", "_raise_error_for_testing")),
    *((name, _MODE) for name in ("*cudagraph*", "graph_partition", "triton.reorder_for_reducing_graph_partitions")),
    *(
        (name, _PLACE)
        for name in ("global_cache_dir", "*logpath", "*log_path", "*_profile_path", "*.proton_output_dir")
    ),
    *((name, _PLACE) for name in ("*.cutlass_dir", "*.cuda_cxx", "*_root", "*.ck_dir", "*.rocm_home")),
    *((name, _DUMP) for name in ("trace.*", "debug*", "*.debug_*", "*.is_debug", "save_args", "log_tlparse")),
    *((name, _DUMP) for name in ("*.enable_debug_info", "*.enable_ptxas_info", "*.print_*", "*.save_temps")),
    *((name, _DUMP) for name in ("*.generate_test_runner", "*proton*", "*.max_kernel_dump_occurrences")),
    *((name, _DUMP) for name in ("profile_bandwidth*", "profiler_mark_*", "*_profile_var", "enabled_metric_tables")),
    *((name, _DUMP) for name in ("verbose_progress", "disable_progress", "developer_warnings", "comment_origin")),
    *((name, _DUMP) for name in ("*_choices_displayed", "*report_choices_stats", "warn_mix_layout", "*_memory_debug")),
    *((name, _DUMP) for name in ("generate_intermediate_hooks", "autoheuristic_collect.*", "fx_passes_numeric_check")),
    *((name, _DUMP) for name in ("benchmark_kernel", "benchmark_harness", "pre_grad_pass_timing", "nan_asserts")),
    ("runtime_triton_nan_asserts", _DUMP),
    *((name, _OURS) for name in ("*.descriptive_names", "*.unique*_kernel_names", "kernel_name_max_ops")),
    *((name, _UNGUARDED) for name in ("assume_32bit_indexing", "assume_aligned_inputs", "unsafe_*")),
    *((name, _UNGUARDED) for name in ("static_weight_shapes", "triton.emit_pointer_range_32")),
    *((name, _CHECKS) for name in ("*_asserts", "assert_*", "do_not_emit_runtime_assertions")),
    *((name, _LAYOUT) for name in ("keep_output_stride", "pad_outputs")),
    *((name, _CACHES) for name in ("*_cache", "_cache_*", "_save_config_*", "*remote_cache*", "cpp_cache_*")),
    *((name, _CACHES) for name in ("*.enable_caching_codegen", "*hash_with_compile_cmd", "bundle_triton_*")),
    *((name, _CACHES) for name in ("enable_caching_generated_triton_templates", "cache_sdpa_constraint")),
    *((name, _WORKER) for name in ("compile_threads", "*worker*", "quiesce_*", "file_lock_timeout", "autotune_in_*")),
    *((name, _WORKER) for name in ("max_autotune_subproc_*", "autotune_multi_device", "precompilation_timeout_*")),
    *((name, _GROUP) for name in ("_collective.*", "_fuse_ddp*", "_micro_pipeline_tp", "aten_distributed_*")),
    *((name, _GROUP) for name in ("bucket_*", "collective_*", "*_node_bw", "dedup_reduce_scatters", "distributed_*")),
    *((name, _GROUP) for name in ("reorder_for_compute_comm_*", "reorder_prefetch_limit")),
    *((name, _BACKWARD) for name in ("annotate_training", "bw_*", "*_on_saved_tensors", "enable_autograd_for_aot")),
    *((name, _BACKWARD) for name in ("custom_partitioner_fn", "max_autotune_conv_bwd_*", "auto_chunker.*")),
    *((name, _VALUE) for name in ("*custom_*pass", "*_fusion_options", "inductor_choices_class")),
    *((name, _VALUE) for name in ("external_matmul", "autotune_lookup_table", "lookup_table.*", "multi_kernel_hints")),
    *((name, _VALUE) for name in ("custom_should_partition_ops", "*.cutlass_dynamic_cluster_*")),
    *((name, _VALUE) for name in ("*max_profiling_swizzle_options", "rocm.ck_supported_arch", "rocm.kBatch_sweep")),
    ("cpp.gemm_cache_blocking", _BYTES + ": it is tuned to one machine's caches"),
    *((name, _BACKEND) for name in ("halide.*", "xpu*", "mtia.*", "tpu_backend", "*_backend")),
    *((name, _CACHE_PATH) for name in ("run_jit_*", "wrap_inductor_*", "*static_cuda_launcher", "static_launch_*")),
    *((name, _CACHE_PATH) for name in ("use_fast_triton_launcher", "use_launch_metadata_schema", "write_are_*")),
    *((name, _CACHE_PATH) for name in ("is_nightly_or_source", "is_predispatch", "TYPE_CHECKING")),
)

# What and how to fuse, tile, pad and lay out; how much to tune; how closely to follow eager's arithmetic. Whatever they
# do to results is measured by the proof, and whatever they do to speed as well.
_TUNING = """
    max_autotune max_autotune_allow_flexible_layouts max_autotune_conv_backends max_autotune_flex_search_space
    max_autotune_gemm max_autotune_gemm_backends max_autotune_gemm_search_space max_autotune_pointwise
    max_autotune_prune_choices_based_on_shared_mem coordinate_descent_check_all_directions
    coordinate_descent_search_radius coordinate_descent_tuning autoheuristic_use.mixed_mm autoheuristic_use.pad_mm
    autotune_fallback_to_aten benchmark_combo_kernel benchmark_epilogue_fusion benchmark_fusion incremental_autotune
    inductor_default_autotune_rep inductor_default_autotune_warmup max_epilogue_benchmarked_choices mixed_mm_choice
    pipeline_max_autotune_gemm runtime_estimations_mms_benchmark use_experimental_benchmarker
    use_torch_profiler_benchmarker aot_inductor.autotune_per_kernel_alloc cutedsl_enable_autotuning
    nvgemm_max_profiling_configs nvgemm_supplement_configs _conv_default_backends estimate_op_runtime cpu_gpu_bw
"""
_PASSES = """
    _use_fp64_for_unbacked_floats add_pre_grad_passes aggressive_fusion align_random_eager allow_buffer_reuse
    apply_gumbel_max_trick assume_unaligned_fallback_output b2b_gemm_pass batch_fusion can_inplace_pad_graph_input
    combo_kernel_allow_mixed_sizes combo_kernel_autotune_grouping combo_kernel_foreach_dynamic_shapes
    combo_kernel_max_distance combo_kernel_max_num_args combo_kernel_max_num_nodes
    combo_kernel_peak_memory_increase_gb combo_kernel_peak_memory_pct_threshold combo_kernel_per_subkernel_blocks
    combo_kernels combo_kernels_autotune combo_kernels_pointwise_only comprehensive_padding compute_all_bounds
    constant_and_index_propagation conv_1x1_as_mm dce decompose_mem_bound_mm delay_realize_cheap_outputs
    disable_padding_cpu disabled_passes dynamic_scale_rblock efficient_conv_bn_eval_fx_passes
    enable_auto_functionalized_v2 enable_linear_binary_folding epilogue_fusion epilogue_fusion_first
    epilogue_fusion_user_defined_triton_kernel epilogue_fusion_with_atomic_add
    expand_dimension_for_pointwise_nodes fallback_by_default fallback_embedding_bag_byte_unpack
    force_fuse_int_mm_with_mul force_layout_optimization force_pointwise_cat force_shape_pad group_fusion
    implicit_fallbacks inplace_padding layout_opt_default layout_optimization
    loop_index_inversion_in_fusion loop_ordering_after_fusion loop_reindexing_after_fusion
    max_complex_pointwise_cat_inputs max_fusion_buffer_group_pairwise_attempts max_fusion_size
    max_fusion_unique_io_buffers max_pointwise_cat_inputs memory_planning memory_pool min_num_split min_overlap_ratio
    online_softmax optimize_scatter_upon_const_tensor pad_channels_last pad_dynamic_shapes padding_alignment_bytes
    padding_stride_threshold partitioned_scatter_enabled partitioned_scatter_max_partitions
    partitioned_scatter_memory_budget partitioned_scatter_min_partitions pattern_matcher permute_fusion
    pick_loop_orders prologue_fusion remove_pre_grad_passes reorder_for_locality reorder_for_peak_memory
    score_fusion_memory_threshold selective_decompose shape_padding size_threshold_for_succ_based_strategy
    small_memory_access_threshold split_cat_fx_passes split_reductions triton_kernel_default_layout_constraint
    unbacked_symint_fallback unroll_reductions_threshold use_dce use_joint_graph_passes use_mixed_mm
    use_post_grad_passes use_pre_grad_passes _realize_acc_reads_threshold_default _realize_opcount_threshold_default
    realize_acc_reads_size_threshold realize_acc_reads_threshold realize_cpu_acc_reads_threshold
    realize_cpu_opcount_threshold realize_opcount_threshold realize_reads_threshold
"""
_ARITHMETIC = """
    batch_invariant deterministic eager_numerics.disable_ftz eager_numerics.division_rounding
    eager_numerics.use_pytorch_libdevice emulate_precision_casts fallback_random keep_addmm_fused_for_half_dtypes
    use_fast_math cuda.use_fast_math cutlass.use_fast_math rocm.use_fast_math rocm.flush_denormals
    triton.codegen_upcast_to_fp32 cpp.enable_floating_point_contract_flag cpp.use_decompose_tanh
    cpp.use_two_step_variance_threshold triton.use_two_step_variance_min_numel triton.use_two_step_variance_threshold
"""
_CPU = """
    aot_inductor.compile_wrapper_opt_level aot_inductor.enable_frame_pointer cpp.enable_concat_linear
    cpp.enable_grouped_gemm_template cpp.enable_loop_tail_vec cpp.enable_tiling_heuristics
    cpp.fallback_scatter_reduce_sum cpp.force_inline_kernel cpp.gemm_max_k_slices cpp.gemm_thread_factors
    cpp.max_horizontal_fusion_size cpp.min_chunk_size cpp.no_redundant_loops cpp.use_constexpr_for_int_array
    cpp.use_small_dequant_buffer
"""
_CUTLASS = """
    compile_opt_level cutlass_backend_min_gemm_size cutlass_enabled_ops cutlass_epilogue_fusion_enabled
    cutlass_instantiation_level cutlass_max_profiling_configs cutlass_op_allowlist_regex cutlass_op_denylist_regex
    cutlass_prescreening cutlass_tma_only
"""
# A bundle's kernels are files, and a fat binary is one: see aot.compile.multi_arch.
_GPU = """
    aot_inductor.emit_multi_arch_kernel
    cuda.enable_cuda_lto cuda.nvgemm_max_profiling_configs rocm.ck_max_profiling_configs
    rocm.ck_tile_max_profiling_configs rocm.compile_opt_level rocm.contiguous_threshold rocm.n_max_profiling_configs
    rocm.origami rocm.origami_topk rocm.split_k_threshold rocm.use_preselected_instances
"""
_TRITON = """
    autotune_at_compile_time autotune_cublasLt autotune_pointwise autotune_with_sample_inputs coalesce_tiling_analysis
    cooperative_reductions decompose_k_threshold decompose_sort_ops dense_indexing divisible_by_16
    dynamic_disable_pipelining enable_pdl enable_persistent_tma_matmul enable_template_tma_store
    enable_tma_load_for_template_epilogue force_cooperative_reductions max_tiles min_split_scan_rblock
    mix_order_reduction mix_order_reduction_allow_multi_stages mix_order_reduction_autotune_split_size
    mix_order_reduction_initial_xblock mix_order_reduction_max_reads mix_order_reduction_non_strict_mode
    mix_order_reduction_split_size multi_kernel native_matmul nested_reduction num_decompose_k_splits
    persistent_reductions prefer_nd_tiling skip_l1_cache spill_threshold tile_reductions
    tiling_prevents_pointwise_fusion tiling_prevents_reduction_fusion transpose_discontiguous_tensor_descriptor
    use_block_ptr use_tensor_descriptor
"""

ALLOWED = frozenset(
    (
        *(" ".join((_TUNING, _PASSES, _ARITHMETIC, _CPU, _GPU))).split(),
        *(f"{family}.{name}" for family in ("cuda", "cutlass") for name in _CUTLASS.split()),
        *(f"triton.{name}" for name in _TRITON.split()),
    )
)


def reason_against(name: str) -> str:
    """Return why the option cannot be set, "" where it can."""
    if name in ALLOWED:
        return ""
    return next((reason for pattern, reason in REFUSED if fnmatchcase(name, pattern)), _UNREVIEWED)


def is_known(name: str) -> bool:
    """True where a rule names the option."""
    return reason_against(name) != _UNREVIEWED
