"""`aot explain`: verdicts on described hosts, the build that is missing, and what changed since a lock."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as altered
from typer.testing import CliRunner

from aot.cli import builds
from aot.cli.app import create_app
from aot.cli.explain import Explained, explain
from aot.cli.host import read_host, read_hosts
from aot.cli.missing import build_command
from aot.cli.since import Moved, changes_since, since_lines
from aot.config import Config
from aot.errors import InvalidInput, MalformedDocument, RegistryUnreachable, TagNotFound
from aot.hosts import parse_host
from aot.keys import factors_of, key_of
from aot.nearest import missing
from aot.runtime.fetch import remember
from aot.runtime.pod import LocalCache
from aot.schema.artifact import Coverage
from aot.schema.codec import encode
from aot.schema.devices import card_profile
from aot.schema.environment import ContainerFacts, Environment
from aot.schema.guard import HostGuard
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from aot.schema.profile import Profile
from aot.schema.recipe import Dimension, Mode, Randomness, Recipe, Regions
from aot.schema.spec import Commit, KernelSignature, KernelSource, Limits, Spec
from tests.builders import (
    a_blob,
    a_file,
    a_gpu_profile,
    a_manifest,
    a_node,
    a_profile,
    a_program,
    a_source,
    a_spec,
    a_toolchain,
    an_artifact,
    an_environment,
    host_guards,
    manifest_text,
)
from tests.simulator import RegistrySimulator

MINI = Reference.parse("mini")
CARD_HOST = "h100-sxm,driver=580.65.06,torch=2.13.0+cu130,x86-64-v3,machine=x86_64,libc=2.36,libstdcxx=3.4.30"


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def config(simulator: RegistrySimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("aot.client.connect.open_client", lambda *_, **__: simulator.client())
    monkeypatch.setattr("aot.cli.explain.open_client", lambda *_, **__: simulator.client())
    return Config(
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        url="http://registry.test",
        token="a-token",
        trusted_keys=(str(simulator.key.public),),
    )


def on(host: Environment | str, config: Config) -> Explained:
    return explain("mini", read_host(host) if isinstance(host, str) else host, config=config)


# The missing build


def test_nothing_is_missing_where_something_fits(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest())
    told = on(an_environment(), config).to_json()
    assert (told.bundle is not None, told.missing, told.nearest) == (True, None, None)


def test_the_command_names_the_registered_profile_that_would_serve_the_host(
    simulator: RegistrySimulator, config: Config
) -> None:
    simulator.add(a_manifest(a_spec(commit=Commit(revision="abc123"))))
    simulator.profiles = {one.name: one for one in (a_profile(), a_gpu_profile())}
    host = parse_host(CARD_HOST)
    told = on(altered(host, node=altered(host.node, machine="aarch64", cpu=None)), config).to_json()
    assert told.bundle is None and told.missing is not None
    assert told.missing.command == "aot build default/mini:latest --source SOURCE --entry model:make --profile h100"
    assert told.missing.placeholders == {"SOURCE": "the source tree, which no bundle holds; it was commit abc123"}
    assert told.missing.profile == "h100"


def test_without_a_fitting_profile_the_worker_that_is_needed_is_described(
    simulator: RegistrySimulator, config: Config
) -> None:
    simulator.add(a_manifest(profile=a_profile(toolchain=a_toolchain(torch="2.12.0+cpu"))))
    explained = on(an_environment(), config)
    told = explained.to_json().missing
    assert told is not None and told.profile is None and told.command.endswith(" --profile PROFILE")
    assert told.placeholders["PROFILE"].startswith(
        "no registered profile serves this host: start a worker for cpu:x86-64-v3, torch 2.13.0+cpu"
    )


def of_a_card(profile: Profile | None = None, **deviations: Any) -> Manifest:
    """A bundle that keeps its kernels, for an H100 where no other card is named."""
    profile = profile or a_gpu_profile()
    kept = a_file("kept/kernels.json.xz", b"kept")
    files = (a_file(), a_file("cubin/c1.cubin", b"cubin"))
    fields = {"capability": "cuda:sm_90a", "torch": profile.toolchain.torch, "files": files, "kept": kept}
    return a_manifest(profile=profile, artifacts=(an_artifact(**(fields | deviations)),))


def test_of_a_bundle_that_keeps_its_kernels_code_for_the_card_can_be_made(
    simulator: RegistrySimulator, config: Config
) -> None:
    simulator.add(of_a_card())
    a100 = CARD_HOST.replace("h100-sxm", "a100-sxm4-80gb")
    explained = on(parse_host(a100), config)
    told = explained.to_json().missing
    assert told is not None and told.profile is None
    command = "aot build default/mini:latest --here --from default/mini:latest --profile a100-sxm4-80gb"
    assert told.without_card == command
    assert explained.lines()[-3:] == [
        "or, untuned and pending until such a card has proven it, without one:",
        "",
        f"  {command}",
    ]
    for other in (a100.replace("2.13.0", "2.12.0"), "mi300x,torch=2.13.0+cu130", CARD_HOST):
        missing_build = on(parse_host(other), config).to_json().missing
        assert missing_build is None or missing_build.without_card is None


@pytest.mark.parametrize("deviations", [{"kept": None}, {"facts": {"cooperative_kernels": "true"}}])
def test_what_a_build_without_the_card_would_refuse_is_not_proposed(
    simulator: RegistrySimulator, config: Config, deviations: dict[str, Any]
) -> None:
    simulator.add(of_a_card(**deviations))
    told = on(parse_host(CARD_HOST.replace("h100-sxm", "a100-sxm4-80gb")), config).to_json().missing
    assert told is not None and told.without_card is None


def test_code_made_without_the_card_is_not_proposed_beside_what_was_built_on_it(
    simulator: RegistrySimulator, config: Config
) -> None:
    simulator.add(of_a_card())
    card = card_profile("a100-sxm4-80gb", a_gpu_profile().toolchain)
    guards = tuple(HostGuard(kind="libc", value="2.99") if one.kind == "libc" else one for one in host_guards())
    simulator.add(of_a_card(profile=card, capability="cuda:sm_80", host_guards=guards))
    told = on(parse_host(CARD_HOST.replace("h100-sxm", "a100-sxm4-80gb")), config).to_json().missing
    assert told is not None and told.without_card is None


def test_a_build_with_the_card_is_proposed_where_one_was_made_without_it(
    simulator: RegistrySimulator, config: Config
) -> None:
    card = a_gpu_profile()
    guards = host_guards("cuda:sm_90", torch=card.toolchain.torch)
    guards += (HostGuard(kind="driver", value="580.65.06"), HostGuard(kind="cuda", value="13.0"))
    simulator.add(of_a_card(tuned=False, capability="cuda:sm_90", host_guards=guards))
    simulator.profiles = {card.name: card}
    told = on(parse_host(CARD_HOST), config).to_json()
    assert told.bundle is not None and told.missing is not None
    assert (told.missing.profile, told.missing.without_card) == (card.name, None)


def test_a_profile_whose_build_the_host_cannot_use_is_not_proposed_again(
    simulator: RegistrySimulator, config: Config
) -> None:
    guards = tuple(HostGuard(kind="libc", value="2.99") if guard.kind == "libc" else guard for guard in host_guards())
    simulator.add(a_manifest(artifacts=(an_artifact(host_guards=guards),)))
    simulator.profiles = {a_profile().name: a_profile()}
    told = on(an_environment(), config).to_json()
    assert told.nearest is not None and told.nearest.steps == ("use an image with glibc 2.99 or newer",)
    assert told.missing is not None and told.missing.profile is None


def test_a_profile_whose_artifact_lacks_a_record_is_proposed_again(
    simulator: RegistrySimulator, config: Config
) -> None:
    guards = tuple(guard for guard in host_guards() if guard.kind != "libc")
    simulator.add(a_manifest(artifacts=(an_artifact(host_guards=guards),)))
    simulator.profiles = {a_profile().name: a_profile()}
    told = on(an_environment(), config).to_json()
    assert told.nearest is not None and told.nearest.change == "artifact"
    assert told.missing is not None and told.missing.profile == a_profile().name


def test_where_it_is_tuned_elsewhere_the_build_for_this_card_is_named(
    simulator: RegistrySimulator, config: Config
) -> None:
    guards = (
        *host_guards("cuda:sm_90", torch="2.13.0+cu130"),
        *(HostGuard(kind=kind, value=value) for kind, value in (("driver", "580.65"), ("cuda", "13.0"))),
        *(HostGuard(kind=kind, value=value) for kind, value in (("sku", "NVIDIA H200"), ("sm_count", "132"))),
    )
    profile = a_gpu_profile("h200")
    simulator.add(a_manifest(profile=profile, artifacts=(an_artifact(capability="cuda:sm_90", host_guards=guards),)))
    simulator.profiles = {"h100": a_gpu_profile()}  # type: ignore[dict-item]
    explained = on(CARD_HOST, config)
    told = explained.to_json()
    assert told.bundle is not None, explained.lines()
    assert told.missing is not None and told.missing.profile == "h100"
    assert any(line.startswith("to build one tuned for this host") for line in explained.lines())


RICH = Recipe(
    mode=Mode.DEFAULT,
    regions=Regions.AUTO,
    random=Randomness.UNCHECKED,
    dynamic=False,
    fullgraph=False,
    require_faster=True,
    freeze=True,
    dimensions=(
        Dimension(name="batch", low=1, high=32),
        Dimension(name="width", low=8, high=64, multiple_of=8),
        Dimension(name="length", buckets=(128, 512)),
        Dimension(name="heads", low=8, high=8),
        Dimension(name="tokens", low=2),
    ),
    options={"epilogue_fusion": True, "a.text": "one two", "number": "1", "none": None},
    environment={"HF_HUB_OFFLINE": "1", "WORDS": "a 'b'"},
)


@pytest.mark.parametrize("source", [a_source(requirements=("numpy==2.1.0",)), a_program()])
@pytest.mark.parametrize("recipe", [Recipe(), RICH])
def test_the_command_asks_for_the_same_recipe_when_a_shell_runs_it(
    source: Any, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (a_file("model.safetensors", b"weights"),)
    # Of these two one is what it would be without: somebody has set it.
    limits = Limits(memory_bytes=16 << 30, wall_seconds=7200.0)
    spec = a_spec(source=source, recipe=recipe, weights=weights, limits=limits)
    need = missing(an_environment(), profiles=[a_profile()])
    command = build_command(MINI, spec, need)
    asked: list[builds.Submission] = []
    monkeypatch.setattr(builds, "connected", lambda: None)
    monkeypatch.setattr(builds, "submit", lambda client, submission, *, priority: asked.append(submission))
    program, verb, *arguments = shlex.split(command.line)
    CliRunner().invoke(create_app(), ["submit", *arguments])
    assert (program, verb) == ("aot", "build")
    [submission] = asked
    assert (submission.recipe, submission.limits, submission.profile) == (recipe, spec.limits, "cpu-v3")
    assert submission.requirements == source.requirements
    assert [str(path) for path in submission.weights] == ["WEIGHTS/model.safetensors"]
    assert shlex.split(" ".join(line.rstrip("\\") for line in command.lines(60))) == shlex.split(command.line)


def test_a_kernel_is_built_for_the_hosts_card() -> None:
    signature = KernelSignature(name="f32", types={"x": "*fp32"})  # type: ignore[arg-type]
    spec = a_spec(source=KernelSource(tree=a_blob(), entry="kernels:add", signatures=(signature,)))
    command = build_command(MINI, spec, missing(parse_host(CARD_HOST)))
    assert command.line == (
        "aot kernel build default/mini:latest --source SOURCE --entry kernels:add --signatures SIGNATURES.toml "
        "--target cuda:sm_90"
    )
    unknown = build_command(MINI, spec, missing(Environment()))
    assert unknown.line.endswith("--target TARGET") and "TARGET" in unknown.placeholders


def test_what_no_option_can_say_is_told() -> None:
    from aot.schema.recipe import Route

    command = build_command(MINI, a_spec(recipe=Recipe(routes=(Route.CACHE,))), missing(an_environment()))
    assert command.placeholders["NOT IN THE COMMAND"] == "routes cache: no option says it"


def test_the_route_of_a_function_is_an_option_of_the_command() -> None:
    from aot.schema.recipe import Route

    command = build_command(MINI, a_spec(recipe=Recipe(routes=(Route.FUNCTION,))), missing(an_environment()))
    assert "--route function" in command.line
    assert "NOT IN THE COMMAND" not in command.placeholders


# What a terminal shows


def test_no_line_is_wider_than_the_terminal_and_no_reason_is_lost(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(), an_artifact(capability="cuda:sm_90", torch="2.11.0+cu130"))))
    explained = on(an_environment(node=a_node(machine="aarch64")), config)
    whole = explained.lines()
    for width in (80, 160):
        lines = explained.lines(width=width)
        assert max(map(len, lines)) <= width
        words = " ".join(lines).split()
        for reason in explained.selection.reasons:
            assert set(reason.partition(": ")[2].split()) <= set(words), reason
    assert whole[0].split() == ["bundle", "profile", "weights", "region", "coverage", "verdict", "why"]
    assert explained.lines(width=80)[0].split() == ["bundle", "profile", "weights", "region", "coverage"]


# Without the registry


def test_a_node_that_holds_the_manifest_explains_offline(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest())
    first = on(an_environment(node=a_node(machine="aarch64")), config)
    remember(first.resolved, LocalCache(config.cache_dir, limit_bytes=config.cache_bytes))
    simulator.unreachable = True
    for away in (config, replace(config, url=None), replace(config, offline=True)):
        again = on(an_environment(node=a_node(machine="aarch64")), away)
        assert again.selection.decisions == first.selection.decisions
        assert again.to_json().stale
        assert again.command is not None


def test_what_neither_registry_nor_cache_knows_is_an_error_with_a_next_step(
    simulator: RegistrySimulator, config: Config
) -> None:
    with pytest.raises(TagNotFound):
        on(an_environment(), config)
    with pytest.raises(RegistryUnreachable) as caught:
        on(an_environment(), replace(config, offline=True))
    assert caught.value.hint


# Hosts


def test_a_host_is_a_file_or_a_description(tmp_path: Path) -> None:
    path = tmp_path / "h100"  # neither slash nor suffix tells that it is a file
    path.write_bytes(encode(an_environment()))
    assert read_host(str(path)) == an_environment()
    assert read_host("no-gpu,torch=2.12.0") == Environment(
        node=altered(Environment().node, gpus=()), container=ContainerFacts(torch="2.12.0")
    )


@pytest.mark.parametrize("text", ["h1000-sxm", "h100-sxm,color=red", "nowhere/host.json", ".", "x" * 5000])
def test_a_host_that_cannot_be_read_names_the_next_step(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_host(text)
    assert caught.value.hint


def test_of_many_host_files_the_damaged_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(encode(an_environment()))
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(MalformedDocument, match=r"b\.json") as caught:
        read_hosts([str(tmp_path)])
    assert caught.value.hint


def test_a_directory_without_a_host_and_two_hosts_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no host file"):
        read_hosts([str(tmp_path)])
    with pytest.raises(InvalidInput, match="two hosts"):
        read_hosts(["no-gpu", "no-gpu"])


# Since a lock


def a_lock(tmp_path: Path, *manifests: Manifest, factors: bool = True, keys: tuple[str, ...] = ()) -> Path:
    entries = tuple(
        LockEntry(
            reference=MINI,
            profile=one.profile.name,
            bundle=manifest_text(one)[1],
            build_key=one.build_key,
            factors=one.factors if factors else (),
        )
        for one in manifests
    )
    path = tmp_path / "aot.lock"
    path.write_bytes(encode_lock(Lock(entries=entries, trusted_keys=keys)))
    return path


def of_torch(torch: str, spec: Spec | None = None) -> Manifest:
    return a_manifest(spec, profile=a_profile(toolchain=a_toolchain(torch=torch)))


def test_every_factor_that_changed_is_said_in_words(
    simulator: RegistrySimulator, config: Config, tmp_path: Path
) -> None:
    lock = a_lock(tmp_path, of_torch("2.12.0+cpu", a_spec(recipe=Recipe(environment={"A": "1"}))))
    simulator.add(of_torch("2.13.0+cpu", a_spec(recipe=Recipe(options={"x": 2}))))
    [changed] = changes = changes_since("mini", lock, config=config)
    assert changed.moved is Moved.CHANGED
    lines = since_lines(changes)
    assert lines[0] == "default/mini:latest on cpu-v3: another build key"
    assert lines[2:] == [
        "  torch was 2.12.0+cpu, is 2.13.0+cpu",
        "  variable A is gone; it was 1",
        "  option x is new: 2",
    ]


def test_the_same_bundle_the_same_key_and_lost_factors_are_told_apart(
    simulator: RegistrySimulator, config: Config, tmp_path: Path
) -> None:
    now = a_manifest()
    simulator.add(now)
    rebuilt = altered(now, artifacts=(an_artifact(coverage=Coverage(kind=now.artifacts[0].coverage.kind)),))
    for before, factors, moved in (
        (now, True, Moved.SAME),
        (rebuilt, True, Moved.REBUILT),
        (of_torch("2.12.0+cpu"), False, Moved.UNKNOWN),
    ):
        [one] = changes_since("mini", a_lock(tmp_path, before, factors=factors), config=config)
        assert one.moved is moved, moved


def test_profiles_that_came_and_went_are_told(simulator: RegistrySimulator, config: Config, tmp_path: Path) -> None:
    old = a_profile("cpu-v2", capability="cpu:x86-64-v2")
    lock = a_lock(tmp_path, a_manifest(profile=old), keys=config.trusted_keys)
    simulator.add(a_manifest())
    # The lock's own keys are trusted.
    changes = changes_since("mini", lock, config=replace(config, trusted_keys=()))
    assert [(one.profile, one.moved) for one in changes] == [("cpu-v2", Moved.GONE), ("cpu-v3", Moved.ADDED)]


def test_a_lock_that_does_not_hold_the_reference_is_bad_input(config: Config, tmp_path: Path) -> None:
    for reference, lock in (("other", a_lock(tmp_path, a_manifest())), ("mini", tmp_path / "none.lock")):
        with pytest.raises(InvalidInput) as caught:
            changes_since(reference, lock, config=config)
        assert caught.value.hint


def test_a_text_that_was_cut_does_not_pretend_that_nothing_changed() -> None:
    long = Recipe(options={"x": "a" * 300})
    before, after = (
        factors_of(a_spec(recipe=one), a_profile()) for one in (long, Recipe(options={"x": "a" * 300 + "b"}))
    )
    assert key_of(before) != key_of(after)
    from aot.cli.since import in_words
    from aot.keys import changes_between

    [change] = changes_between(before, after)
    assert in_words(change) == "option x changed beyond the first 200 characters, which are the same"


def test_a_text_that_is_deeper_than_python_goes_is_told_as_it_is() -> None:
    from aot.cli.since import in_words
    from aot.schema.factor import FactorChange

    deep = in_words(FactorChange(name="torch", before="[" * 100_000, after='"2.13.0"'))
    assert deep.startswith("torch was [[[") and deep.endswith("[..., is 2.13.0")


@pytest.mark.parametrize(("torch", "capability"), [("2.12", "cuda:sm_90"), ("2.12.0+cpu", "cpu:x86-64-v3")])
def test_a_torch_that_does_not_say_what_it_is_for_may_use_the_card(torch: str, capability: str) -> None:
    assert missing(parse_host(f"h100-sxm,x86-64-v3,torch={torch}")).capability == capability
