"""What is kept of a graph's kernels: those that a start uses, once, and torch finds them where it looks."""

import collections
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch._inductor.async_compile import CompiledTritonKernels
from torch._inductor.triton_bundler import TritonBundle, TritonBundler, TritonKernelArtifacts

from aot.capture.account import account
from aot.capture.bundled import slimmed
from aot.capture.capture import capture
from aot.capture.collect import Collected, collect, list_paths
from aot.capture.command import Ended
from aot.capture.interchange import export_saved
from aot.capture.kernels import kernels_of, keys_of
from aot.capture.megacache import split
from aot.capture.pickled import name_of, source_of, stripped
from aot.capture.restore import restore
from aot.capture.shapes import graphs_in
from aot.schema.recipe import Route
from tests.builders import altered, an_artifact, an_environment
from tests.inductor import (
    STAGES,
    a_graph,
    a_tuner,
    bundle_in,
    candidates_in,
    collected_by_torch,
    digest_of,
    kernels_in,
    key_of,
    on_a_card,
    write_choice,
    write_graph,
    write_kernels,
)

KERNELS = ("tried", "chosen", "single", "shared")
FILES = ("__grp__add.json", *(f"add.{stage}" for stage in STAGES))


def caches_of(
    directory: Path,
    *,
    kernels: tuple[str, ...] = KERNELS,
    tuned: tuple[str, ...] = KERNELS[:2],
    key: str = "fkey",
    **options: Any,
) -> tuple[Path, str]:
    """Caches with one graph of two tuned kernels and one more, and where the graph lies."""
    write_kernels(directory, kernels)
    tuners = (
        a_tuner("tuned", tuned, caches=directory, **options),
        a_tuner("single", ("single",), caches=directory, cache=False),
    )
    bundle = collected_by_torch(directory, (*kernels, kernels[0]), tuners)
    return directory, write_graph(directory, a_graph(bundle), key=key)


def entry_in(collected: Collected, *, key: str = "fkey") -> bytes:
    (entry,) = [entry for entry in collected.entries if entry.graph == key]
    content = collected.paths[entry.digest].read_bytes()
    assert entry.path.endswith(f"/{name_of(content)}") or entry.path.startswith("vllm")
    return content


def below(kernel: str, *, triton: str = "triton") -> frozenset[str]:
    return frozenset(f"{triton}/{key_of(kernel)}/{name}" for name in FILES)


def start(directory: Path, content: bytes) -> tuple[frozenset[str], list[str]]:
    """What torch finds in Triton's cache when it has loaded the graph, and the tuners that it can use."""
    with on_a_card(directory / "triton"):
        TritonBundler.read_and_emit(bundle_in(content))
    usable = sorted(CompiledTritonKernels._cache)
    CompiledTritonKernels.cache_clear()
    return frozenset(place.name for place in (directory / "triton").iterdir()), usable


def test_torch_bundles_every_kernel_that_was_tried_with_all_its_files(tmp_path: Path) -> None:
    """The builder is torch's own collecting: what the rest of this file is about."""
    caches, path = caches_of(tmp_path)
    content = (caches / path).read_bytes()
    assert kernels_in(content) == {key_of(kernel): tuple(sorted(FILES)) for kernel in KERNELS}
    assert len(bundle_in(content).kernel_artifacts) == len(KERNELS) + 1
    assert candidates_in(content) == [[digest_of("tried"), digest_of("chosen")], [digest_of("single")]]
    assert all(key_of(kernel) in keys_of(digest_of(kernel)) for kernel in KERNELS)


def test_kernels_whose_files_are_entries_are_in_the_graph_by_name_alone(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches")
    found = collect(caches, scratch=tmp_path / "scratch")
    content = entry_in(found)
    assert kernels_in(content) == {key_of(kernel): () for kernel in KERNELS}
    assert len(bundle_in(content).kernel_artifacts) == len(KERNELS)
    assert candidates_in(content) == [[digest_of("tried"), digest_of("chosen")], [digest_of("single")]]
    restore(found.entries, found.paths, into=tmp_path / "other")
    assert start(tmp_path / "other", content) == (
        frozenset(map(key_of, KERNELS)),
        ["source of single", "source of tuned"],
    )


def test_a_kernel_that_was_not_used_is_neither_there_nor_a_candidate(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches")
    unused = below("tried") | below("shared")
    kept = list_paths(caches) - unused
    found = collect(caches, scratch=tmp_path / "scratch", only=kept, unused=unused)
    content = entry_in(found)
    assert kernels_in(content) == {key_of("chosen"): (), key_of("single"): ()}
    assert candidates_in(content) == [[digest_of("chosen")], [digest_of("single")]]
    restore(found.entries, found.paths, into=tmp_path / "other")
    there, usable = start(tmp_path / "other", content)
    assert there == {key_of("chosen"), key_of("single")} and usable == ["source of single", "source of tuned"]


def test_a_tuner_of_which_nothing_was_used_is_not_there(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches")
    unused = below("tried") | below("chosen")
    found = collect(caches, scratch=tmp_path / "scratch", only=list_paths(caches) - unused, unused=unused)
    assert candidates_in(entry_in(found)) == [[digest_of("single")]]
    assert kernels_in(entry_in(found)).keys() == {key_of("single"), key_of("shared")}


def test_a_tuner_that_searches_on_keeps_all_its_candidates_until_the_choice_is_known(tmp_path: Path) -> None:
    """It would begin its search again at each start, with one of them or with all: all is what torch would do."""
    caches, _ = caches_of(tmp_path / "caches", descends=True)
    unused = below("tried")
    found = collect(caches, scratch=tmp_path / "scratch", only=list_paths(caches) - unused, unused=unused)
    content = entry_in(found)
    assert candidates_in(content)[0] == [digest_of("tried"), digest_of("chosen")]
    assert kernels_in(content)[key_of("tried")] == tuple(sorted(FILES)) and kernels_in(content)[key_of("chosen")] == ()
    restore(found.entries, found.paths, into=tmp_path / "other")
    there, usable = start(tmp_path / "other", content)
    assert key_of("tried") in there and usable == ["source of single", "source of tuned"]


@pytest.mark.parametrize("descends", [False, True])
def test_what_tuning_chose_is_put_into_the_tuner(descends: bool, tmp_path: Path) -> None:
    """Torch looks for the choice below the directory where it compiled, and tunes again where that is gone."""
    caches, _ = caches_of(tmp_path / "caches", descends=descends)
    write_choice(caches, "tuned", 1, found_by_coordesc=descends)
    content = entry_in(collect(caches, scratch=tmp_path / "scratch", unused=None))
    assert candidates_in(content)[0] == [digest_of("chosen")]
    tuner = bundle_in(content).static_autotuners[0].kernel
    assert not tuner.inductor_meta["coordinate_descent_tuning"] and not tuner.inductor_meta["dynamic_scale_rblock"]
    assert (tuner.filename, tuner.save_cache_hook, tuner.precompile_time_taken_ns) == ("tu/tuned.py", None, 0)
    assert tuner.fn.file_name == "tu/tuned.py" and str(caches).encode() not in content
    assert kernels_in(content) == {key_of(kernel): tuple(sorted(FILES)) for kernel in KERNELS}  # a run will tell
    tuner.recheck_autotune_cache(lambda: pytest.fail("it is loaded from its source"))
    assert [result.kernel.hash for result in tuner.compile_results] == [digest_of("chosen")]


def test_where_there_is_nothing_to_choose_no_place_is_left_in_the_tuner(tmp_path: Path) -> None:
    """As of a template's kernel: with the further search it has a place for a choice, and never makes one."""
    write_kernels(tmp_path / "caches", ("one",))
    tuner = a_tuner("one", ("one",), caches=tmp_path / "caches", descends=True)
    write_graph(tmp_path / "caches", a_graph(collected_by_torch(tmp_path / "caches", ("one",), (tuner,))))
    content = entry_in(collect(tmp_path / "caches", scratch=tmp_path / "x"))
    assert candidates_in(content) == [[digest_of("one")]] and str(tmp_path).encode() not in content
    kept = bundle_in(content).static_autotuners[0].kernel
    assert kept.save_cache_hook is None and kept.inductor_meta["coordinate_descent_tuning"]


def test_a_choice_that_is_no_candidate_leaves_the_kernel_to_torch(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches", descends=True)
    write_choice(caches, "tuned", 5, found_by_coordesc=True)
    assert candidates_in(entry_in(collect(caches, scratch=tmp_path / "scratch"))) == [[digest_of("single")]]


@pytest.mark.parametrize(
    "more",
    [{"configs_hash": "of others"}, {"num_warps": "eight"}, {"extra_options": {"x": 1}}, {"found_by_coordesc": False}],
    ids=lambda more: next(iter(more)),
)
def test_a_choice_among_others_and_one_that_is_not_final_is_none(more: dict, tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches", descends="found_by_coordesc" in more)
    write_choice(caches, "tuned", 1, **more)
    found = candidates_in(entry_in(collect(caches, scratch=tmp_path / "scratch")))
    assert found == [[digest_of("tried"), digest_of("chosen")], [digest_of("single")]]


@pytest.mark.parametrize("choice", [b"", b"[1]", b"[" * 60_000, b"\xff"])
def test_a_damaged_choice_is_none(choice: bytes, tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches")
    (caches / write_choice(caches, "tuned", 1)).write_bytes(choice)
    assert len(candidates_in(entry_in(collect(caches, scratch=tmp_path / "scratch")))[0]) == 2


def test_files_that_are_no_entries_stay_in_the_graph(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches")
    some = frozenset({f"triton/{key_of('chosen')}/add.cubin"}) | below("single")
    found = collect(caches, scratch=tmp_path / "scratch", only=list_paths(caches) - some)
    content = entry_in(found)
    assert kernels_in(content) == {
        **{key_of(kernel): () for kernel in ("tried", "shared")},
        **{key_of(kernel): tuple(sorted(FILES)) for kernel in ("chosen", "single")},
    }
    assert candidates_in(content) == [[digest_of("tried"), digest_of("chosen")], [digest_of("single")]]


def test_no_tuner_points_at_a_kernel_that_is_nowhere(tmp_path: Path) -> None:
    """Torch would look for its machine code at the first call."""
    write_kernels(tmp_path / "caches", ("here",))
    tuners = [a_tuner("one", ("here", "gone")), a_tuner("two", ("here",)), a_tuner("three", ("gone",))]
    whole = a_tuner("four", ("gone",))
    whole.kernel.compile_results[0].kernel.cubin_raw = b"machine code"
    bundle = collected_by_torch(tmp_path / "caches", ("here",), (*tuners, whole))
    write_graph(tmp_path / "caches", a_graph(bundle))
    found = entry_in(collect(tmp_path / "caches", scratch=tmp_path / "scratch"))
    assert candidates_in(found) == [[digest_of("here")], [digest_of("gone")]]
    assert [tuner.cache_key for tuner in bundle_in(found).static_autotuners] == ["source of two", "source of four"]


@pytest.mark.parametrize("field", ["compile_results", "inductor_meta", "kernel", "hash"])
def test_a_tuner_that_is_not_understood_stays_with_every_kernel(field: str, tmp_path: Path) -> None:
    write_kernels(tmp_path, KERNELS)
    tuner = a_tuner("tuned", ("tried", "chosen"))
    if field == "hash":
        tuner.kernel.compile_results[0].kernel.hash = 7
    elif field == "kernel":
        object.__setattr__(tuner, "kernel", "another form")
    else:
        setattr(tuner.kernel, field, collections.UserDict())
    content = a_graph(collected_by_torch(tmp_path, KERNELS, (tuner,)))
    path = "inductor/fxgraph/ke/fkey/one"
    kept = list_paths(tmp_path) - below("tried")
    found = slimmed(content, path, chosen=lambda _: None, kernels=kernels_of(kept, below("tried")))
    assert len(bundle_in(found).static_autotuners) == 1
    assert kernels_in(found) == {key_of(name): () if name != "tried" else tuple(sorted(FILES)) for name in KERNELS}


def test_the_same_graph_of_two_directories_has_the_same_bytes_and_name(tmp_path: Path) -> None:
    contents = []
    for name, order in (("one", KERNELS), ("another-place", KERNELS[::-1])):
        caches, _ = caches_of(tmp_path / name, kernels=order)
        write_choice(caches, "tuned", 1)
        unused = below("tried") | below("shared")
        found = collect(caches, scratch=tmp_path / f"{name}-x", only=list_paths(caches) - unused, unused=unused)
        contents.append(entry_in(found))
        kernels = kernels_of(list_paths(caches) - unused, unused)
        again = slimmed(stripped(contents[-1]), "inductor/fxgraph/ke/fkey/x", chosen=lambda _: None, kernels=kernels)
        assert again == contents[-1] == stripped(contents[-1])
    assert contents[0] == contents[1]


def test_coverage_and_program_of_a_rewritten_entry_are_read_as_before(tmp_path: Path) -> None:
    caches, path = caches_of(tmp_path / "caches")
    found = collect(caches, scratch=tmp_path / "scratch")
    assert source_of(entry_in(found)) == source_of((caches / path).read_bytes()) is not None
    assert graphs_in(found) == ("fkey inference: unknown inputs",)


def test_what_was_restored_keeps_its_kernels_as_they_are(tmp_path: Path) -> None:
    """Old bundles, and those that a union is made with: their entries have digests."""
    caches, path = caches_of(tmp_path / "caches")
    found = collect(caches, scratch=tmp_path / "scratch", as_found=list_paths(caches), unused=below("tried"))
    assert path in {entry.path for entry in found.entries}
    assert entry_in(found) == (caches / path).read_bytes()


def test_a_server_that_moves_its_caches_finds_its_kernels_there(tmp_path: Path) -> None:
    root = "vllm/torch_compile_cache/hash/rank_0_0"
    for place in (f"{root}/triton_cache", "triton"):
        write_kernels(tmp_path / "caches", ("one",), triton=place)
    write_kernels(tmp_path / "caches", ("two",))
    content = a_graph(collected_by_torch(tmp_path / "caches", ("one", "two"), ()))
    path = write_graph(tmp_path / "caches", content, below=f"{root}/inductor_cache")
    unused = below("one", triton=f"{root}/triton_cache")
    kept = list_paths(tmp_path / "caches")
    emptied = slimmed(content, path, chosen=lambda _: None, kernels=kernels_of(kept, ()))
    dropped = slimmed(content, path, chosen=lambda _: None, kernels=kernels_of(kept - unused, unused))
    # What lies in Triton's own place is not where this server looks.
    assert kernels_in(emptied) == {key_of("one"): (), key_of("two"): tuple(sorted(FILES))}
    assert kernels_in(dropped) == {key_of("two"): tuple(sorted(FILES))}
    elsewhere = kernels_of(kept - unused, ())
    assert kernels_in(slimmed(content, path, chosen=lambda _: None, kernels=elsewhere)) == {
        key_of("one"): (),
        key_of("two"): (),
    }


def test_kernels_below_inductors_own_cache_are_found_by_their_card(tmp_path: Path) -> None:
    write_kernels(tmp_path, ("one",), triton="inductor/triton/0")
    content = a_graph(collected_by_torch(tmp_path, ("one",), (a_tuner("t", ("one",)),), triton="inductor/triton/0"))
    path, found = "inductor/fxgraph/ke/fkey/x", list_paths(tmp_path)
    slim = slimmed(content, path, chosen=lambda _: None, kernels=kernels_of(found, ()))
    assert kernels_in(slim) == {key_of("one"): ()} and candidates_in(slim) == [[digest_of("one")]]
    gone = slimmed(content, path, chosen=lambda _: None, kernels=kernels_of((), found))
    assert kernels_in(gone) == {} and candidates_in(gone) == []


@pytest.mark.parametrize(
    "content",
    [
        b"TritonKernelArtifacts",
        a_graph(TritonBundle([], [])) + b"TritonKernelArtifacts",
        pickle.dumps({"TritonKernelArtifacts": TritonBundle("TritonKernelArtifacts", None)}),
        pickle.dumps(["TritonKernelArtifacts", TritonBundle(["StaticallyLaunchedAutotuner"], [])]),
        pickle.dumps(["TritonKernelArtifacts", TritonBundle((TritonKernelArtifacts("AB", 0, []),), ("a", "b"))]),
        pickle.dumps(["TritonKernelArtifacts", TritonBundle([TritonKernelArtifacts("AB", 0, ("x",))], [])]),
        pickle.dumps(["TritonKernelArtifacts", a_graph]),
    ],
)
def test_other_bytes_and_other_forms_are_left_alone(content: bytes) -> None:
    kernels = kernels_of((), ())
    assert slimmed(content, "inductor/fxgraph/ke/fkey/x", chosen=lambda _: None, kernels=kernels) == content


def test_an_exported_mega_cache_has_each_kernel_as_torch_itself_would(tmp_path: Path) -> None:
    caches, path = caches_of(tmp_path / "caches")
    unused = below("tried") | below("shared")
    found = collect(caches, scratch=tmp_path / "x", only=list_paths(caches) - unused, unused=unused)
    artifact = altered(an_artifact(), route=Route.CACHE, files=tuple(entry.as_file() for entry in found.entries))
    exported = export_saved([artifact], lambda file: found.paths[file.digest].read_bytes())
    (saved,) = split(exported.content)
    assert (saved.key, exported.counts, exported.left_out) == ("fkey", {"inductor": 1}, ())
    wanted = {kernel.kernel_hash: kernel for kernel in bundle_in((caches / path).read_bytes()).kernel_artifacts}
    for kernel in bundle_in(saved.content).kernel_artifacts:
        whole = wanted[kernel.kernel_hash]
        assert kernel.artifacts == sorted(whole.artifacts, key=lambda file: file.filename)
    there, usable = start(tmp_path / "other", saved.content)
    assert there == {key_of("chosen"), key_of("single")} and usable == ["source of single", "source of tuned"]
    group = tmp_path / "other/triton" / key_of("chosen") / "__grp__add.json"
    assert all(Path(place).is_file() for place in json.loads(group.read_text())["child_paths"].values())


def test_an_export_of_kernels_that_are_not_in_the_bundle_is_what_the_bundle_has(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "caches")
    found = collect(caches, scratch=tmp_path / "x")
    files = tuple(entry.as_file() for entry in found.entries if not entry.path.startswith("triton/"))
    artifact = altered(an_artifact(), route=Route.CACHE, files=files)
    (saved,) = split(export_saved([artifact], lambda file: found.paths[file.digest].read_bytes()).content)
    assert saved.content == entry_in(found)


class Program:
    """A command: the first run compiles and tunes, the second starts on what it finds, as torch does."""

    def __init__(self, key: str = "fkey", **options: Any) -> None:
        self._options, self._key, self.runs = {"key": key, **options}, key, []

    def __call__(self, command: object, environ: Any) -> Ended:
        caches = Path(environ["TRITON_CACHE_DIR"]).parent
        self.runs.append(caches)
        if len(self.runs) == 1:
            caches_of(caches, **self._options)
            write_choice(caches, "tuned", 1, found_by_coordesc=self._options.get("descends", False))
            return Ended(0, 5.0)
        self.runs[0].rename(self.runs[0].with_name("out-of-sight"))  # as in a sandbox
        (graph,) = (caches / f"inductor/fxgraph/ke/{self._key}").iterdir()
        with on_a_card(caches / "triton"):
            bundle = bundle_in(graph.read_bytes())
            TritonBundler.read_and_emit(bundle)
            for tuner in bundle.static_autotuners:
                tuner.kernel.recheck_autotune_cache(lambda: pytest.fail("compiled again"))
                for result in tuner.kernel.compile_results:
                    result.reload_cubin_path()
                    Path(result.kernel.cubin_path).read_bytes()
        CompiledTritonKernels.cache_clear()
        return Ended(0, 1.0)


@pytest.mark.parametrize("descends", [False, True])
def test_a_capture_keeps_the_kernels_of_its_second_run_and_each_once(descends: bool, tmp_path: Path) -> None:
    program = Program(descends=descends)
    made = capture(["train"], environ={}, effective=an_environment(), scratch=tmp_path / "capture", run=program)
    assert made.second is not None and (made.second.found, made.second.compiled) == (1, 0)
    content = entry_in(made.collected)
    assert kernels_in(content) == {key_of("chosen"): (), key_of("single"): ()}
    assert candidates_in(content) == [[digest_of("chosen")], [digest_of("single")]]
    kernels = {entry.path for entry in made.collected.entries if entry.path.startswith("triton/")}
    assert kernels == below("chosen") | below("single")
    (second,) = program.runs[1:]
    assert len(content) < len((second / "inductor/fxgraph/ke/fkey").iterdir().__next__().read_bytes()) / 4
    restore(made.collected.entries, made.collected.paths, into=tmp_path / "node")
    there, usable = start(tmp_path / "node", content)
    assert there == {key_of("chosen"), key_of("single")} and usable == ["source of single", "source of tuned"]


def test_a_capture_on_a_base_keeps_its_entries_and_the_kernels_that_both_use_once(tmp_path: Path) -> None:
    caches, _ = caches_of(tmp_path / "old")
    base = collect(caches, scratch=tmp_path / "old-x", as_found=list_paths(caches))  # of a client that keeps all
    program = Program("other", kernels=("untried", "unchosen", "single"), tuned=("untried", "unchosen"))
    options: Any = {"environ": {}, "effective": an_environment(), "scratch": tmp_path / "capture"}
    made = capture(["train"], base=base, run=program, **options)
    assert {entry.path: entry.digest for entry in base.entries}.items() <= {
        entry.path: entry.digest for entry in made.collected.entries
    }.items()
    new = {entry.path for entry in made.collected.entries} - {entry.path for entry in base.entries}
    assert {path for path in new if path.startswith("triton/")} == below("unchosen")
    content = entry_in(made.collected, key="other")
    assert kernels_in(content) == {key_of("unchosen"): (), key_of("single"): ()}


def test_files_of_kernels_that_are_entries_of_the_bundle_already_are_not_sent_again(tmp_path: Path) -> None:
    caches, path = caches_of(tmp_path / "caches")
    beside = list_paths(caches) - {path}
    found = collect(caches, scratch=tmp_path / "x", only={path}, beside=beside)
    assert kernels_in(entry_in(found)) == {key_of(kernel): () for kernel in KERNELS}
    alone = collect(caches, scratch=tmp_path / "y", only={path})
    assert kernels_in(entry_in(alone)) == {key_of(kernel): tuple(sorted(FILES)) for kernel in KERNELS}


def test_a_capture_without_a_watch_keeps_every_kernel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.capture.watch._start", lambda: None)
    made = capture(["train"], environ={}, effective=an_environment(), scratch=tmp_path, run=Program())
    assert kernels_in(entry_in(made.collected)) == {key_of(kernel): () for kernel in KERNELS}
    assert len([entry for entry in made.collected.entries if entry.path.startswith("triton/")]) == 4 * len(FILES)


def test_a_graph_that_is_written_once_more_with_its_kernels_was_not_compiled(tmp_path: Path) -> None:
    """A program that loads saved artifacts writes the whole entry, kernels included, beside what was restored."""
    caches, path = caches_of(tmp_path / "caches")
    write_choice(caches, "tuned", 1)
    found = collect(caches, scratch=tmp_path / "scratch")
    restore(found.entries, found.paths, into=tmp_path / "node")
    before = list_paths(tmp_path / "node")
    whole = write_graph(tmp_path / "node", (caches / path).read_bytes())
    other = a_graph(bundle_in((caches / path).read_bytes()), guards_expr="s0 == 4")
    options: Any = {"bundle": before, "before": before, "opened": frozenset(), "seconds": 1.0}
    assert whole not in before
    assert account(tmp_path / "node", after=before | {whole}, **options).compiled == 0
    after = before | {write_graph(tmp_path / "node", other)}
    assert account(tmp_path / "node", after=after, **options).compiled == 1
