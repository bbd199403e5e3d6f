"""One submission for several profiles: one build each, one line each, one tag for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.cli.many import parse_profiles
from aot.errors import InvalidInput, InvalidName
from aot.schema.codec import decode
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildView, FailRequest
from aot.schema.wire.errors import ErrorBody
from tests.builders import a_profile
from tests.commands import Shell, a_shell, end, interrupt

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
PROFILES = tuple(a_profile(f"cpu-{level}", capability=f"cpu:{level}") for level in LEVELS)
NAMES = tuple(profile.name for profile in PROFILES)
LIST = "cpu-x86-64-v2,v3,v4"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with a_shell(tmp_path_factory.mktemp("many")) as shell:
        shell.service.register(*PROFILES)
        yield shell


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "src"
    tree.mkdir()
    (tree / "model.py").write_text(f"def make(): ...  # {tmp_path.name}\n")
    return tree


def arguments(tree: Path, name: str, profiles: str = LIST) -> tuple[str, ...]:
    return (name, "--source", str(tree), "--entry", "model:make", "--profile", profiles)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (LIST, NAMES),
        (",".join(NAMES), NAMES),
        ("cpu-x86-64-v3, v2", ("cpu-x86-64-v3", "cpu-x86-64-v2")),
        ("cpu-x86-64-v3,h100-sxm,v2", ("cpu-x86-64-v3", "h100-sxm", "v2")),
        ("gpu,v3", ("gpu", "v3")),
        ("cpu-x86-64-v3,v4,v4-amx,v2", ("cpu-x86-64-v3", "cpu-x86-64-v4", "cpu-x86-64-v4-amx", "cpu-x86-64-v2")),
        ("cpu-x86-64-v3", ("cpu-x86-64-v3",)),
    ],
)
def test_a_mere_level_stands_for_the_name_before_it(text: str, names: tuple[str, ...]) -> None:
    assert parse_profiles(text) == names


def test_no_list_names_nothing() -> None:
    assert parse_profiles(None) == ()


@pytest.mark.parametrize("text", ["", "cpu-x86-64-v2,,v3", "v2,"])
def test_a_list_with_holes_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_profiles(text)


def test_a_profile_named_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cpu-x86-64-v3 is named twice"):
        parse_profiles("cpu-x86-64-v3,v3")


def test_one_build_for_each_profile_is_followed_and_the_tag_goes_to_all(shell: Shell, tree: Path) -> None:
    process = shell.start("build", *arguments(tree, "fleet:prod"), "--tag", "also")
    claims = [shell.claim(process, name) for name in NAMES]
    bundles = {claim.spec.profile: shell.service.publish(claim).bundle for claim in reversed(claims)}
    ran = end(process)
    assert ran.code == 0
    assert ran.lines == [f"published\tdefault/fleet\t{name}\t{bundles[name]}" for name in NAMES]
    assert len({claim.spec.source.tree.digest for claim in claims}) == 1  # type: ignore[union-attr]
    for tag in ("prod", "also"):
        found = shell.service.call("resolve", namespace="default", name="fleet", target=tag).bundles
        assert {one.digest for one in found} == set(bundles.values()), tag


def test_json_is_one_document_for_each_build(shell: Shell, tree: Path) -> None:
    submitted = shell.aot("submit", *arguments(tree, "documents"), "--json")
    views = [decode(line, BuildView) for line in submitted.lines]
    assert (submitted.code, tuple(view.profile for view in views)) == (0, NAMES)
    for name in NAMES:
        shell.service.publish(shell.service.claim(name))
    again = shell.aot("build", *arguments(tree, "documents"), "--json")
    built = [decode(line, BuildView) for line in again.lines]
    assert [(view.id, view.state) for view in built] == [(view.id, BuildState.PUBLISHED) for view in views]


def test_one_that_fails_costs_the_others_nothing(shell: Shell, tree: Path) -> None:
    process = shell.start("build", *arguments(tree, "halved", "cpu-x86-64-v2,v3"))
    first, second = (shell.claim(process, name) for name in NAMES[:2])
    error = ErrorBody(code="backend-failed", message="g++ said no", hint="")
    shell.service.call("fail", FailRequest(error=error), token=first.token, build=first.build)
    bundle = shell.service.publish(second).bundle
    ran = end(process)
    assert ran.code == 3
    assert ran.lines == [
        f"failed\tdefault/halved\t{NAMES[0]}\t{first.build}",
        f"published\tdefault/halved\t{NAMES[1]}\t{bundle}",
    ]
    assert "g++ said no" in ran.err


def test_a_profile_that_nobody_is_submits_nothing(shell: Shell, tree: Path) -> None:
    ran = shell.aot("submit", *arguments(tree, "unknown", "cpu-x86-64-v3,v9"))
    assert (ran.code, ran.out) == (2, "")
    assert "no worker has registered the profile cpu-x86-64-v9, so nothing was submitted" in ran.err
    assert shell.service.ask(*NAMES).claim is None


def test_as_bundle_writes_one_bundle(shell: Shell, tree: Path, tmp_path: Path) -> None:
    ran = shell.aot("build", *arguments(tree, "one"), "--here", "--as-bundle", str(tmp_path / "out"))
    assert (ran.code, "--as-bundle writes one bundle, found 3 profiles" in ran.err) == (2, True)


def test_ctrl_c_says_which_builds_go_on(shell: Shell, tree: Path) -> None:
    process = shell.start("build", *arguments(tree, "interrupted"))
    claims = [shell.claim(process, name) for name in NAMES]
    assert process.stderr is not None
    for name in NAMES:  # each is told once its answer has come
        assert process.stderr.readline().startswith(f"{name}: ")
    ran = interrupt(process)
    assert (ran.code, ran.out) == (130, "")
    assert f"builds {', '.join(claim.build for claim in claims)} go on" in ran.err
    for claim in claims:
        shell.service.publish(claim)
