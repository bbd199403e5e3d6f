"""Captures that a project names, and what their runs write back: pinned by a lock, joined, and never smaller."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import worker.run
from aot.client.connect import open_client
from aot.environment import observe_environment
from aot.pipeline.build import Staged
from aot.pipeline.profiles import observe_profiles
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Name, Reference
from aot.schema.profile import Profile
from aot.schema.state import BundleState
from aot.schema.wire.workers import Scope
from registry.db.models import BundleRow
from tests.commands import Ran, Shell, a_shell, end
from worker.attempt import Attempt
from worker.run import Bench, Ended, run_build

PROGRAM = Path(__file__).with_name("graph_writer.py")
COMMAND = ("python3", "-S", PROGRAM.name)
PROJECT = """
[[models]]
name = "graphs"
command = ["python3", "-S", "graph_writer.py", "one", "two"]
profiles = ["{profile}"]
tags = ["v1"]
"""


@dataclass(frozen=True)
class Fleet:
    shell: Shell
    tree: Path
    project: Path
    profile: Profile
    scratch: Path

    def run(self, *arguments: str, node: str = "node", **environ: str) -> Ran:
        """`aot run` of one pod: each node has a cache of its own."""
        shell = self.shell.with_environ(AOT_CACHE_DIR=str(self.scratch / node), **environ)
        return end(shell.start("run", *arguments, cwd=self.tree))

    def work(self, name: str = "worker-1") -> Ended:
        bench = Bench(
            name=Name(name),
            client=open_client(self.shell.url, self.shell.service.token(Scope.CLAIM)),
            profiles=(self.profile,),
            scratch=self.scratch / name,
            shared_caches=self.scratch / "toolchain",
            sandbox=None,
            trust_sources=frozenset({"default"}),
            stopping=threading.Event(),
        )
        return run_build(bench)

    def ensure(self) -> Ran:
        process = self.shell.start("ensure", "-f", "aot.toml", "--lock", "aot.lock", cwd=self.project)
        while process.poll() is None:
            self.work()
        return end(process)

    def live(self) -> Manifest:
        client = open_client(self.shell.url, self.shell.service.admin)
        [signed] = client.resolve(Reference.parse("graphs:v1"))
        return decode_manifest(signed.manifest.encode())

    def graphs(self) -> set[str]:
        return {file.path.split("/")[-2] for file in self.live().artifacts[0].files}

    def reasons(self) -> list[str]:
        with self.shell.service.deps.sessions.reading() as session:
            rows = session.query(BundleRow).filter(BundleRow.state == BundleState.REJECTED).all()
            return [row.withdrawn_reason for row in rows]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A registry with one live capture, which a project asked for and its CI step has pinned."""
    scratch = tmp_path_factory.mktemp("unions")
    project = scratch / "project"
    tree = project / "src"
    tree.mkdir(parents=True)
    (tree / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    profile = observe_profiles(observe_environment())[0]
    text = PROJECT.format(profile=profile.name).replace("command", 'source = "src"\ncommand')
    (project / "aot.toml").write_text(text)
    with a_shell(scratch) as shell:
        for name in ("worker-1", "worker-2"):
            shell.service.register(profile, worker=name)
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        shell = shell.with_environ(PATH=path, AOT_PROFILE=None, PYTHONDONTWRITEBYTECODE="1")
        found = Fleet(shell, tree, project, profile, scratch)
        ensured = found.ensure()
        assert ensured.code == 0 and ensured.out.startswith("built\t"), ensured.err
        yield found


def test_a_command_runs_on_what_a_lock_of_the_ci_step_pins(fleet: Fleet) -> None:
    lock = str(fleet.project / "aot.lock")
    ran = fleet.run("--lock", lock, "--", *COMMAND, "one", "two")
    assert (ran.code, ran.out) == (0, "one two\n")
    assert "aot: 2 graphs: 2 from the bundle, 0 compiled" in ran.err
    # Pinned: offline and on a node that has it, with no word to a registry.
    again = fleet.run("--lock", lock, "--", *COMMAND, "one", "two", AOT_OFFLINE="1", AOT_URL="http://127.0.0.1:9")
    assert "aot: 2 graphs: 2 from the bundle, 0 compiled" in again.err
    assert fleet.ensure().out.startswith("present\t")


def test_two_pods_write_back_at_once_and_nothing_of_either_is_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_back(word: str) -> Ran:
        return fleet.run("graphs:v1", "--write-back", "--", *COMMAND, "one", word, node=word)

    with ThreadPoolExecutor(2) as pods:
        assert all("aot: written back: sha256:" in ran.err for ran in pods.map(write_back, ("left", "right")))
    # Neither is published before both are proven, so each was proven on the bundle that both pods ran on.
    proven, publish, published = threading.Barrier(2, timeout=60), worker.run._publish, []

    def publish_together(attempt: Attempt, staged: Staged) -> None:
        if len(published) < 2:
            published.append({file.path.split("/")[-2] for file in staged.manifest.files})
            proven.wait()
        publish(attempt, staged)

    monkeypatch.setattr("worker.run._publish", publish_together)
    with ThreadPoolExecutor(2) as workers:
        assert set(workers.map(fleet.work, ("worker-1", "worker-2"))) == {Ended.PUBLISHED}
    assert sorted(map(sorted, published)) == [["left", "one", "two"], ["one", "right", "two"]]
    assert fleet.graphs() == {"one", "two", "left", "right"}
    ran_on = fleet.run("graphs:v1", "--", *COMMAND, "one", "two", "left", "right", node="third")
    assert "aot: 4 graphs: 4 from the bundle, 0 compiled" in ran_on.err
    # The CI step keeps what its capture has grown to.
    assert fleet.ensure().out.startswith("present\t") and fleet.graphs() == {"one", "two", "left", "right"}


def test_what_only_other_traffic_makes_stays_out_with_the_reason(fleet: Fleet) -> None:
    before = fleet.live()
    script = "import os, sys; sys.argv += [os.environ.get('TRAFFIC', 'one')]; exec(open('graph_writer.py').read())"
    ran = fleet.run("graphs:v1", "--write-back", "--", "python3", "-S", "-c", script, node="busy", TRAFFIC="asked")
    assert "aot: written back: sha256:" in ran.err
    assert fleet.work() is Ended.FAILED
    assert any("is live already" in reason for reason in fleet.reasons())
    assert fleet.live() == before
