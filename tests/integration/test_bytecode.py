"""Bytecode from an image to a registry, through a worker that compiles it again, to an image that has none."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aot.bytecode import spell_interpreter
from aot.client.connect import open_client
from aot.errors import BundleNotFound, InvalidInput, InvalidSpec, NotFound
from aot.keys import factors_of
from aot.pipeline.bytecode import bytecode_spec, choose_modules
from aot.schema.manifest import decode_manifest
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe, Route
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PushRequest
from aot.schema.wire.workers import Scope
from tests.builders import a_profile, a_spec, altered, manifest_text
from tests.commands import ROOT, Shell, a_shell
from worker.run import Bench, Ended, run_build

PROGRAM = "import toy, toy.box; print(toy.VALUE, toy.box.double(21))"


@dataclass(frozen=True)
class Image:
    """A shell in an image that holds one distribution, without bytecode."""

    shell: Shell
    site: Path
    scratch: Path

    def run_worker(self) -> Ended:
        token = self.shell.service.token(Scope.CLAIM)
        bench = Bench(
            name=Name("worker-1"),
            client=open_client(self.shell.url, token),
            profiles=(PROFILE,),
            scratch=self.scratch / "scratch",
            shared_caches=self.scratch / "toolchain",
            sandbox=None,
            trust_sources=frozenset({"default"}),
            stopping=threading.Event(),
        )
        return run_build(bench)

    def start(self, **variables: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-S", "-v", "-c", PROGRAM],
            env={"PYTHONPATH": str(self.site), **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout + ended.stderr


PROFILE = a_profile(packages={"toy-box": "1.2"})


def write_distribution(site: Path, *, value: str = "old", mark: str = "aaa") -> None:
    place = site / "toy"
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(f"VALUE = {value!r}\n")
    (place / "box.py").write_text("def double(x):\n    return 2 * x\n")
    (place / "unused.py").write_text("raise RuntimeError\n")
    info = site / "toy_box-1.2.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_box\nVersion: 1.2\n")
    rows = [f"toy/{name}.py,sha256={mark},1" for name in ("__init__", "box", "unused")]
    (info / "RECORD").write_text("\n".join(rows) + "\n")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    site = tmp_path / "site"
    write_distribution(site)
    monkeypatch.syspath_prepend(str(site))
    with a_shell(tmp_path) as shell:
        shell.service.register(PROFILE)
        yield Image(shell.with_environ(PYTHONPATH=f"{ROOT}:{site}", AOT_PROFILE=None), site, tmp_path)


def push(image: Image, *more: str) -> dict[str, str]:
    arguments = ("bytecode", "build", "toy:v1", "--distribution", "toy-box", "--profile", "cpu-v3", "--push", "--json")
    ran = image.shell.aot(*arguments, *more)
    assert ran.code == 0, ran.err
    return ran.json


def test_bytecode_is_made_proven_restored_and_read(image: Image) -> None:
    pushed = push(image, "--", sys.executable, "-S", "-c", PROGRAM)
    assert (pushed["state"], pushed["modules"]) == ("pending", {"toy-box": 2})
    assert image.shell.aot("pull", "toy:v1", "--bytecode").code != 0

    assert image.run_worker() is Ended.PUBLISHED
    ran = image.shell.aot("pull", "toy:v1", "--bytecode")
    assert ran.code == 0, ran.err
    variables = dict(line.split("=", 1) for line in ran.lines)
    assert set(variables) == {"PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"}
    assert "bytecode of 2 modules restored" in ran.err

    said = image.start(**variables)
    assert "old 42" in said
    assert f"# code object from {image.site}" not in said
    assert f"# code object from {image.site}" in image.start(PYTHONDONTWRITEBYTECODE="1")

    # Also where the cache cannot be written, with the registry gone, and never the old code.
    cache = Path(image.shell.environ["AOT_CACHE_DIR"])
    shutil.rmtree(cache / "incoming")
    (cache / "incoming").write_text("in the way")
    again = image.shell.aot("pull", "toy:v1", "--bytecode")
    assert (again.code, again.lines) == (0, ran.lines), again.err
    again = image.shell.with_environ(AOT_OFFLINE="1").aot("pull", "toy:v1", "--bytecode")
    assert again.lines == ran.lines and "stale" in again.err
    (image.site / "toy" / "__init__.py").write_text("VALUE = 'new'\n")
    assert "new 42" in image.start(**variables)


def test_a_command_runs_on_restored_bytecode_whatever_becomes_of_its_caches(image: Image) -> None:
    push(image)
    assert image.run_worker() is Ended.PUBLISHED
    command = (sys.executable, "-S", "-v", "-c", PROGRAM)
    ran = image.shell.aot("run", "absent:v1", "--bytecode", "toy:v1", "--", *command)
    assert (ran.code, ran.out.strip()) == (0, "old 42"), ran.err
    assert "bytecode of 3 modules restored" in ran.err
    assert f"# code object from {image.site}" not in ran.err
    without = image.shell.aot("run", "absent:v1", "--bytecode", "absent:v1", "--", *command)
    assert (without.code, without.out.strip()) == (0, "old 42"), without.err
    assert "no bytecode: " in without.err and f"# code object from {image.site}" in without.err


def test_a_bundle_of_bytecode_is_shown_and_fetched_like_any_other(image: Image) -> None:
    push(image)
    assert image.run_worker() is Ended.PUBLISHED
    shown = image.shell.aot("show", "toy:v1")
    assert f"model      default/toy (bytecode for {spell_interpreter()})" in shown.lines, shown.out
    pulled = image.shell.aot("pull", "toy:v1")
    assert pulled.code == 0 and "undecided: load decides" in pulled.out
    inside = image.shell.with_environ(AOT_OFFLINE="1").aot("pull", "toy:v1", "--bytecode")
    assert inside.code == 0, inside.err


def test_another_version_is_told_with_the_reason(image: Image) -> None:
    push(image)
    assert image.run_worker() is Ended.PUBLISHED
    write_distribution(image.site, mark="bbb")
    ran = image.shell.aot("pull", "toy:v1", "--bytecode")
    assert (ran.code, ran.out) == (4, "")
    assert "compiled from toy-box==1.2 sha256:" in ran.err and "this container has toy-box==1.2 sha256:" in ran.err


def test_what_an_image_brings_itself_is_not_restored(image: Image) -> None:
    push(image)
    assert image.run_worker() is Ended.PUBLISHED
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(image.site / "toy")], check=True)
    ran = image.shell.aot("pull", "toy:v1", "--bytecode")
    assert ran.code == 4
    assert "this image has bytecode of 3 of the 3 modules beside their sources: nothing to restore" in ran.err


def test_bytecode_that_its_sources_do_not_compile_to_is_rejected(image: Image) -> None:
    """What was planted before the push is found by the worker, which compiles for itself."""
    pushed = push(image)
    (image.site / "toy" / "box.py").write_text("def double(x):\n    return 3 * x\n")
    assert image.run_worker() is Ended.FAILED
    view = image.shell.service.call("get_bundle", digest=pushed["bundle"])
    assert view.state is BundleState.REJECTED
    assert "is not what its sources compile to: toy-box" in view.withdrawn_reason
    with pytest.raises(NotFound):
        image.shell.service.call("resolve", namespace="default", name="toy", target="v1")


def test_pushed_bytecode_is_used_by_nobody_before_it_was_made_again(image: Image) -> None:
    pushed = push(image)
    with pytest.raises(BundleNotFound):
        image.shell.service.call("resolve", namespace="default", name="toy", target=pushed["bundle"])


def test_a_bundle_on_disk_needs_no_registry(image: Image, tmp_path: Path) -> None:
    shell = image.shell.with_environ(AOT_URL=None, AOT_TOKEN=None)
    ran = shell.aot("bytecode", "build", "toy:v1", "--distribution", "toy-box", "--as-bundle", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    assert "3 modules of 1 distribution(s)" in ran.out
    manifest = decode_manifest((tmp_path / "out" / "manifest.json").read_bytes())
    [artifact] = manifest.artifacts
    assert (artifact.region, artifact.route, artifact.files[0].path) == (
        "toy-box",
        Route.BYTECODE,
        "bytecode/toy-box.tar",
    )
    assert shell.aot("inspect", str(tmp_path / "out")).code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("toy:v1", "--distribution", "toy-box"), "nothing would be kept"),
        (("toy@sha256:" + "0" * 64, "--distribution", "toy-box", "--push"), "named by a tag"),
        (("toy:v1", "--distribution", "absent", "--push", "--profile", "cpu-v3"), "absent is not installed"),
        (("toy:v1", "--push", "--profile", "cpu-v3"), "nothing to compile was named"),
        (("toy:v1", "--push", "--profile", "cpu-v3", "--", "/no/such/program"), "cannot be run"),
        (("toy:v1", "--push", "--profile", "cpu-v3", "--", "false"), "ended with 1"),
    ],
)
def test_what_cannot_be_built_is_said_before(image: Image, arguments: tuple[str, ...], text: str) -> None:
    ran = image.shell.aot("bytecode", "build", *arguments)
    assert ran.code == 2
    assert text in ran.err


def test_no_worker_is_asked_to_build_bytecode(image: Image) -> None:
    chosen = choose_modules(["toy-box"], environ={})
    spec = bytecode_spec(chosen, Name("cpu-v3"), namespace=Namespace("default"), name=Name("toy"))
    with pytest.raises(InvalidSpec, match="where its distributions are installed"):
        image.shell.service.submit(spec)
    with pytest.raises(InvalidSpec, match="do not fit the source"):
        image.shell.service.submit(a_spec(recipe=Recipe(routes=(Route.BYTECODE,))))
    assert spec.blobs == () and spec.source.requirements == ("toy-box==1.2",)


def test_the_key_holds_what_decides_the_bytes_and_nothing_else() -> None:
    chosen = choose_modules(["msgspec"], environ={})
    spec = bytecode_spec(chosen, Name("cpu-v3"), namespace=Namespace("default"), name=Name("toy"))
    names = [factor.name for factor in factors_of(spec, a_profile())]
    assert names == ["generation", "interpreter", "distribution:msgspec"]
    other = a_profile("v4", capability="cpu:x86-64-v4")
    assert factors_of(spec, other) == factors_of(spec, a_profile())
    fewer = altered(chosen[0], files=chosen[0].files[1:])
    changed = bytecode_spec([fewer], Name("cpu-v3"), namespace=Namespace("default"), name=Name("toy"))
    assert factors_of(changed, a_profile()) != factors_of(spec, a_profile())


def test_a_manifest_that_claims_its_own_proof_is_pushed_as_pending(image: Image, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pushed = push(image, "--as-bundle", str(out))
    manifest = decode_manifest((out / "manifest.json").read_bytes())
    claimed = altered(
        manifest, qualification=altered(manifest.qualification, numerics="rebuilt: equal bytes", profile="cpu-v3")
    )
    text, _ = manifest_text(claimed)
    reply = image.shell.service.call("push", PushRequest(manifest=text))
    # The same content as before, whatever it claims: the bundle that waits for its proof.
    assert (reply.state, reply.bundle) == (BundleState.PENDING, pushed["bundle"])
    with pytest.raises(InvalidInput, match="not sound"):
        bare = altered(manifest, artifacts=(altered(manifest.artifacts[0], host_guards=()),))
        text, _ = manifest_text(bare)
        image.shell.service.call("push", PushRequest(manifest=text))
