"""The search for a generated kernel's configuration, where an earlier build has ended it. No kernel runs here."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.compile.tuned import Measured

pytest.importorskip("triton")
pytestmark = pytest.mark.torch

META = {"kernel_name": "add", "coordinate_descent_tuning": True, "autotune_local_cache": True}
SOURCE = "ab/cabin.py"


def configured(block: int, warps: int = 4) -> Any:
    from torch._inductor.runtime.triton_compat import Config

    return Config({"XBLOCK": block}, num_warps=warps, num_stages=1)


def a_tuner() -> Any:
    """A kernel's tuner as a compile worker makes it: with all configurations, or with the one that was found."""
    import triton
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner, check_autotune_cache

    from tests.inductor import add

    card = DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32)
    filename, meta = str(Path(cache_dir()) / SOURCE), dict(META)
    configs, cache, _ = check_autotune_cache([configured(64), configured(128)], filename, meta)
    about = {"signature": {"in0": "*fp32"}, "constants": {}, "device": card}
    save = cache and cache.save
    return CachingAutotuner(
        triton.jit(add), about, configs, save, [], True, HeuristicType.POINTWISE, inductor_meta=meta, filename=filename
    )


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The configurations that a search was begun from; each ends with 1024 and eight warps, which torch writes down."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    begun: list[Any] = []

    def search(autotuner: Any, launcher: Any, *args: Any, **named: Any) -> Any:
        begun.append(launcher.config.kwargs)
        if autotuner.save_cache_hook is not None:
            autotuner.save_cache_hook(configured(1024, 8), 5, found_by_coordesc=True)
        return launcher

    def scale(autotuner: Any) -> None:
        autotuner.launchers = [*autotuner.launchers, *autotuner.added]

    monkeypatch.setattr(CachingAutotuner, "_coordinate_descent_tuning", search)
    monkeypatch.setattr(CachingAutotuner, "_dynamic_scale_rblock", scale)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "later"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))  # which a tuner would set for good
    return begun


def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, ended: bool) -> Measured:
    """What an earlier build has left of the kernel: the end of a search, or its best configuration before one."""
    from aot.compile.torch_tuned import collect_measured

    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "earlier"))
        best = configured(1024, 8) if ended else configured(128)
        a_tuner().save_cache_hook(best, 5, found_by_coordesc=ended)
        return collect_measured()


def made_ready(tuner: Any, launchers: list[Any], *, added: Any = None) -> None:
    """As torch leaves a tuner whose kernels are compiled, which need no card here; it adds `added` to them last."""
    tuner._precompile_worker = lambda: None
    tuner._make_launchers = lambda: setattr(tuner, "launchers", launchers)
    tuner.added = [] if added is None else [added]
    tuner.precompile()


def kept(tuner: Any) -> Any:
    """What a later build would find of the kernel."""
    return json.loads(Path(tuner.save_cache_hook.__self__.local_cache[1]).read_text())


def through_a_worker(config: Any) -> Any:
    return SimpleNamespace(config=pickle.loads(pickle.dumps(config)))


def test_what_a_worker_brings_has_lost_that_its_search_has_ended(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Why there is anything to mend: with a Triton that keeps the mark, torch asks for no search."""
    from aot.compile.torch_tuned import seeded

    with seeded(measured(monkeypatch, tmp_path, ended=True)):
        (found,) = a_tuner().configs
    assert found.found_by_coordesc and found.kwargs == {"XBLOCK": 1024}
    assert not hasattr(through_a_worker(found).config, "found_by_coordesc")


def test_a_kernel_is_not_searched_again(searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from aot.compile.torch_tuned import seeded

    known = measured(monkeypatch, tmp_path, ended=True)
    with seeded(known) as taken:
        tuner = a_tuner()
        launcher = through_a_worker(tuner.configs[0])
        assert tuner.coordinate_descent_tuning(launcher) is launcher
        assert launcher.config.found_by_coordesc  # or torch would ask at every call
    assert not searched
    assert taken == set(known.configurations) and len(taken) == 1
    tuner.coordinate_descent_tuning(through_a_worker(tuner.configs[0]))
    assert searched == [{"XBLOCK": 1024}]  # outside, torch does what it does


@pytest.mark.parametrize("bring", [through_a_worker, lambda config: SimpleNamespace(config=config)])
@pytest.mark.parametrize("adds", [False, True])
def test_a_kernel_is_taken_as_found_wherever_it_was_compiled_and_nothing_is_tried_beside_it(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bring: Any, adds: bool
) -> None:
    """A worker's is marked again; one that this process compiled is still marked, and torch asks for no search.

    Torch 2.11 adds a neighbour to a configuration that was found, and torch 2.13 chooses the parts of a combined kernel
    again: either would write over the end.
    """
    from aot.compile.torch_tuned import seeded

    known = measured(monkeypatch, tmp_path, ended=True)
    with seeded(known) as taken:
        tuner = a_tuner()
        found = bring(tuner.configs[0])
        made_ready(tuner, [found], added=bring(configured(512, 8)) if adds else None)
    assert tuner.launchers == [found]
    assert found.config.found_by_coordesc and found.config.found_by_combo_autotune
    assert taken == set(known.configurations) and not searched


def test_what_a_search_was_begun_from_is_none_for_later_builds_where_it_never_ended(searched: list[Any]) -> None:
    from aot.compile.torch_tuned import seeded

    with seeded(Measured()):
        a_tuner().save_cache_hook(configured(128), 5, found_by_coordesc=True)
        for name, text in (("other", "[]"), ("broken", "{")):
            Path(a_tuner().save_cache_hook.__self__.local_cache[1]).with_name(f"{name}.best_config").write_text(text)
    assert kept(a_tuner())["XBLOCK"] == 128 and not kept(a_tuner())["found_by_coordesc"]


def test_where_no_search_has_ended_torch_adds_what_it_will(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from aot.compile.torch_tuned import seeded

    with seeded(measured(monkeypatch, tmp_path, ended=False)) as taken:
        tuner = a_tuner()
        made_ready(tuner, [through_a_worker(tuner.configs[0])], added=through_a_worker(configured(512, 8)))
    assert len(tuner.launchers) == 2 and not taken


def test_an_end_that_was_written_over_is_kept_for_later_builds(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from aot.compile.torch_tuned import seeded

    with seeded(measured(monkeypatch, tmp_path, ended=True)):
        tuner = a_tuner()
        tuner.save_cache_hook(configured(1024, 8), 5)
        assert not kept(tuner)["found_by_coordesc"]
        tuner.coordinate_descent_tuning(through_a_worker(configured(1024, 8)))
    assert not searched and kept(tuner)["found_by_coordesc"]


def test_what_a_search_is_begun_from_is_no_end_though_it_is_written_as_one(searched: list[Any]) -> None:
    """As torch 2.13 writes it, between the choice and the search."""
    from aot.compile.torch_tuned import seeded

    with seeded(Measured()) as taken:
        tuner = a_tuner()
        tuner.save_cache_hook(configured(128), 5, found_by_coordesc=True)
        tuner.coordinate_descent_tuning(through_a_worker(configured(128)))
    assert searched == [{"XBLOCK": 128}] and not taken


@pytest.mark.parametrize("ended", [True, False])
def test_a_kernel_is_searched_from_what_is_no_end(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: bool
) -> None:
    """The best of those that are offered, whether or not a search from elsewhere has ended."""
    from aot.compile.torch_tuned import seeded

    with seeded(measured(monkeypatch, tmp_path, ended=ended)) as taken:
        a_tuner().coordinate_descent_tuning(through_a_worker(configured(128)))
    assert searched == [{"XBLOCK": 128}] and not taken


def test_a_kernel_that_nothing_is_kept_of_is_searched(searched: list[Any]) -> None:
    """As where a recipe turns that cache off."""
    from aot.compile.torch_tuned import seeded

    tuner = a_tuner()
    tuner.save_cache_hook = None
    with seeded(Measured()):
        tuner.coordinate_descent_tuning(through_a_worker(configured(128)))
    assert searched == [{"XBLOCK": 128}]


def test_a_torch_that_searches_by_another_name_is_left_alone(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from aot.compile.torch_tuned import seeded

    monkeypatch.delattr(CachingAutotuner, "coordinate_descent_tuning")
    with seeded(Measured()) as taken:
        assert taken == set()
    assert not hasattr(CachingAutotuner, "coordinate_descent_tuning")


@pytest.mark.parametrize("before", [None, {"configs_hash": "of another choice"}, {}])
def test_what_this_build_has_searched_itself_is_not_told_as_an_earlier_ones(
    searched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: dict[str, str] | None
) -> None:
    """Nor searched for a second kernel that is equal; with no earlier end at its place, one of another choice, or one
    that the search did not begin from and has come to again.
    """
    from aot.compile.torch_tuned import seeded

    known = Measured()
    if before is not None:
        ((place, text),) = measured(monkeypatch, tmp_path, ended=True).configurations.items()
        known = Measured(configurations={place: json.dumps({**json.loads(text), **before})})
    with seeded(known) as taken:
        a_tuner().coordinate_descent_tuning(through_a_worker(configured(128)))
        a_tuner().coordinate_descent_tuning(through_a_worker(configured(1024, 8)))
    assert searched == [{"XBLOCK": 128}] and not taken
