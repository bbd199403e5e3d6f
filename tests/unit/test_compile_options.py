"""Options of torch.compile on the route `package`: honoured or refused with a reason."""

import pytest
from msgspec.structs import replace

from aot.compile.options import (
    PLANNED_THREADS,
    captures_graphs,
    check_options,
    host_limits,
    inductor_settings,
    mode_notes,
)
from aot.errors import InvalidSpec
from aot.schema.recipe import Mode, Recipe, Route
from tests.builders import a_device, a_profile

KNOWN = {"max_autotune": False, "cpp.threads": -1, "epilogue": 0.5, "trace.dir": None}


def test_an_unknown_option_is_refused_with_its_neighbours() -> None:
    with pytest.raises(InvalidSpec, match="no option max_autotun") as caught:
        check_options({"max_autotun": True}, KNOWN)
    assert "max_autotune" in caught.value.hint


@pytest.mark.parametrize(("name", "value"), [("max_autotune", 1), ("cpp.threads", True), ("epilogue", "0.5")])
def test_an_option_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSpec, match=f"option {name} must be a"):
        check_options({name: value}, KNOWN)


def test_options_of_the_right_type_pass() -> None:
    check_options({"max_autotune": True, "cpp.threads": 4, "epilogue": 1, "trace.dir": "x"}, KNOWN)


def test_weights_stay_outside_and_nothing_is_folded() -> None:
    settings = inductor_settings(Recipe(), a_profile())
    assert settings["always_keep_tensor_constants"] is True
    assert settings["joint_graph_constant_folding"] is False
    assert settings["aot_inductor.package_constants_in_so"] is False
    assert settings["cpp.weight_prepack"] is False
    assert settings["layout_optimization"] is False
    assert settings["freezing"] is False


def test_a_frozen_build_packs_and_tunes() -> None:
    settings = inductor_settings(Recipe(freeze=True), a_profile())
    assert settings["freezing"] is True
    assert settings["aot_inductor.package_constants_in_so"] is True
    assert settings["max_autotune_gemm_backends"] == "CPP,ATEN"
    assert "cpp.weight_prepack" not in settings
    assert "layout_optimization" not in settings


@pytest.mark.parametrize(
    ("level", "simdlen"), [("x86-64", 0), ("x86-64-v2", 0), ("x86-64-v3", 256), ("x86-64-v4", 512)]
)
def test_the_instruction_set_is_the_profiles(level: str, simdlen: int) -> None:
    settings = inductor_settings(Recipe(), a_profile(capability=f"cpu:{level}"))
    assert (settings["cpp.march"], settings["cpp.simdlen"]) == (level, simdlen)


def test_the_host_code_of_a_gpu_build_runs_on_every_host_of_one() -> None:
    gpu = a_profile(capability="cuda:sm_90", device=a_device())
    settings = inductor_settings(Recipe(), gpu)
    assert settings["cpp.march"] in ("x86-64-v2", "armv8-a")
    assert host_limits(gpu) == {}


def test_no_kernel_of_a_card_stores_over_what_it_loads() -> None:
    # Where it does, several warps may load an element that one of them has stored already: wrong by configuration.
    assert inductor_settings(Recipe(), a_profile(capability="cuda:sm_90"))["inplace_buffers"] is False
    assert "inplace_buffers" not in inductor_settings(Recipe(), a_profile())


def test_a_lower_profile_holds_its_builder_back() -> None:
    assert host_limits(a_profile(capability="cpu:x86-64-v3")) == {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }


def test_threads_are_dynamic_unless_the_profile_pins_them() -> None:
    dynamic = inductor_settings(Recipe(), a_profile())
    # The plan must not be the builder's number of cores, which would be another on the next worker.
    assert (dynamic["cpp.dynamic_threads"], dynamic["cpp.threads"]) == (True, PLANNED_THREADS)
    pinned = inductor_settings(Recipe(), a_profile(threads=4))
    assert (pinned["cpp.dynamic_threads"], pinned["cpp.threads"]) == (False, 4)


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_is_tuning_or_not(mode: Mode) -> None:
    tuned = mode in (Mode.MAX_AUTOTUNE, Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS)
    assert inductor_settings(Recipe(mode=mode), a_profile())["max_autotune"] is tuned


def test_the_recipes_options_have_the_last_word() -> None:
    assert inductor_settings(Recipe(options={"max_autotune": False}), a_profile())["max_autotune"] is False


def test_cuda_graphs_are_noted_on_a_cpu_and_captured_on_a_gpu() -> None:
    recipe = Recipe(mode=Mode.REDUCE_OVERHEAD)
    gpu = a_profile(capability="cuda:sm_90", device=a_device())
    assert any("no CUDA graphs on a CPU" in note for note in mode_notes(recipe, a_profile()))
    assert not captures_graphs(recipe, a_profile())
    assert captures_graphs(recipe, gpu)
    assert mode_notes(replace(recipe, routes=(Route.PACKAGE,)), gpu) == ()


def test_graph_breaks_are_noted_as_pointless() -> None:
    assert any("fullgraph" in note for note in mode_notes(Recipe(fullgraph=False), a_profile()))


def test_loops_that_inductor_leaves_scalar_are_noted() -> None:
    assert any(
        "scalar loops for x86-64-v2" in note for note in mode_notes(Recipe(), a_profile(capability="cpu:x86-64-v2"))
    )
    assert not any("scalar" in note for note in mode_notes(Recipe(), a_profile(capability="cpu:x86-64-v3")))


def test_an_option_that_contradicts_the_mode_is_noted() -> None:
    notes = mode_notes(Recipe(mode=Mode.MAX_AUTOTUNE, options={"max_autotune": False}), a_profile())
    assert "option max_autotune = False overrides True, which mode max-autotune sets here" in notes
    agreeing = mode_notes(Recipe(mode=Mode.MAX_AUTOTUNE, options={"max_autotune": True}), a_profile())
    assert not any("overrides" in note for note in agreeing)


def test_an_option_for_another_device_is_noted() -> None:
    recipe = Recipe(options={"triton.max_tiles": 2, "cpp.min_chunk_size": 64})
    assert any("triton.max_tiles changes nothing for cpu:x86-64-v3" in note for note in mode_notes(recipe, a_profile()))
    gpu = a_profile(capability="cuda:sm_90", device=a_device())
    assert not any("changes nothing" in note for note in mode_notes(recipe, gpu))


def test_a_route_that_was_allowed_and_not_tried_is_noted() -> None:
    assert "route cache is allowed and was not tried: this version does not build it" in mode_notes(
        Recipe(), a_profile()
    )
    alone = mode_notes(Recipe(routes=(Route.PACKAGE,)), a_profile())
    assert not any("not tried" in note for note in alone)


def test_features_above_a_level_are_no_part_of_march() -> None:
    amx = a_profile(capability="cpu:x86-64-v4+amx_bf16+amx_int8+amx_tile+avx512_vnni")
    settings = inductor_settings(Recipe(), amx)
    assert (settings["cpp.march"], settings["cpp.simdlen"]) == ("x86-64-v4", 512)
    assert host_limits(amx)["ATEN_CPU_CAPABILITY"] == "avx512"
