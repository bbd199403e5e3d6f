"""AMX for real, on a host without it: tiles come out where Inductor writes them, and nothing of it counts as run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.compile.isa import offences_in
from aot.environment import observe_environment, observe_node
from aot.errors import QualificationFailed
from aot.pipeline import here as pipeline
from aot.pipeline.build import Question, Staged, requalify_bundle
from aot.pipeline.profiles import observe_profiles
from aot.pipeline.publish import push_bundle
from aot.pipeline.source import fetch_source, pack_factory
from aot.proof import faults_of
from aot.schema.capability import Capability
from aot.schema.environment import host_cpu
from aot.schema.names import Name, Namespace
from aot.schema.profile import AMX, Profile
from aot.schema.recipe import Recipe
from aot.schema.spec import Spec
from aot.schema.state import BundleState
from tests.integration.compiled import LIMITS, sandbox, shared_headers
from tests.service import Service, a_service
from tests.transport import client_of

NAME = Name("cpu-x86-64-v4-amx")
V4 = Capability("cpu:x86-64-v4")
CPU = host_cpu(observe_node())
PRODUCT = """
import torch


def make():
    module = torch.nn.Linear(64, 64).to(torch.bfloat16)
    return {"module": module, "args": (torch.randn(32, 64, dtype=torch.bfloat16),)}
"""

pytestmark = [
    pytest.mark.torch,
    # The child maps what it has compiled, to read the names of its tensors.
    pytest.mark.skipif(CPU is None or not CPU.runs(V4) or CPU.runs(AMX), reason="needs x86-64-v4 without AMX"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with a_service(tmp_path_factory.mktemp("registry")) as service:
        service.register(*observe_profiles(observe_environment()))
        yield service


@pytest.fixture(scope="module")
def staged(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """What `aot build --here --profile cpu-x86-64-v4-amx` makes of one frozen bfloat16 product, and pushes."""
    import torch
    from safetensors.torch import save_file

    place = tmp_path_factory.mktemp("amx")
    (place / "tree").mkdir()
    (place / "tree" / "model.py").write_text(PRODUCT)
    weights = torch.nn.Linear(64, 64).to(torch.bfloat16).state_dict()
    save_file(dict(weights), str(place / "weights.safetensors"))
    packed = pack_factory(place / "tree", "model:make", into=place, weights=(place / "weights.safetensors",))
    spec = Spec(
        namespace=Namespace("default"),
        name=Name("product"),
        source=packed.source,
        profile=NAME,
        recipe=Recipe(freeze=True, options={"max_autotune_gemm_backends": "CPP"}),
        weights=packed.weights,
        limits=LIMITS,
    )
    return pipeline.build_here(
        client_of(service),
        spec,
        packed,
        scratch=place / "scratch",
        shared_caches=shared_headers(),
        on_event=lambda event: None,
    )


def library_of(staged: Staged) -> Path:
    [artifact] = staged.manifest.artifacts
    return staged.paths[next(file.digest for file in artifact.files if file.path == "lib/model.so")]


def test_tiles_are_in_the_code_and_in_what_it_asks_of_a_host(staged: Staged) -> None:
    [artifact] = staged.manifest.artifacts
    assert artifact.code is not None
    assert artifact.code.level == artifact.facts["isa_used"] == "x86-64-v4+amx_bf16+amx_tile"
    assert artifact.code.unread_bytes == 0
    guards = {guard.kind: guard.value for guard in artifact.host_guards}
    assert (guards["capability"], guards["kernel"]) == (AMX, "5.16")
    assert CPU is not None and not CPU.runs(artifact.capability)


def test_the_same_code_bound_to_v4_is_a_build_error(staged: Staged) -> None:
    profile = Profile(name=Name("cpu-x86-64-v4"), capability=V4, toolchain=staged.manifest.profile.toolchain)
    offences = offences_in(library_of(staged), profile)
    assert any("tdpbf16ps" in offence and "(amx_bf16)" in offence for offence in offences)
    assert offences_in(library_of(staged), staged.manifest.profile) == ()


def test_nothing_of_it_counts_as_run(service: Service, staged: Staged) -> None:
    proof = staged.manifest.qualification
    assert (proof.start, proof.agreements, proof.host_cpu) == (None, (), CPU)
    assert "only the instructions were read" in proof.not_run
    assert "no fresh process has loaded it" in faults_of(staged.manifest)
    reply = push_bundle(client_of(service), staged)
    assert reply.state is BundleState.PENDING
    assert service.call("get_bundle", digest=reply.bundle).waiting == "not run: no host with AMX"


def test_a_worker_that_only_says_it_has_amx_cannot_prove_it(service: Service, staged: Staged, tmp_path: Path) -> None:
    reply = push_bundle(client_of(service), staged)
    service.register(staged.manifest.profile, worker="worker-2")
    claim = service.claim(NAME, worker="worker-2", build=reply.build)
    assert claim.requalify == reply.bundle
    spec = claim.spec
    client = client_of(service, token=claim.token)
    with pytest.raises(QualificationFailed) as caught:
        requalify_bundle(
            Question(spec=spec, profile=claim.profile, build_key=claim.build_key, factors=claim.factors),
            fetch_source(client, spec, claim.links, into=tmp_path / "source"),
            digest=claim.requalify,
            client=client,
            scratch=tmp_path / "work",
            shared_caches=shared_headers(),
            sandbox=sandbox(),
            builder="worker-2",
            on_event=lambda event: None,
            should_stop=lambda: None,
        )
    # The verdict comes before a tile is touched: a reason, and no SIGILL.
    [reason] = caught.value.details["reasons"]
    assert f"generated for {AMX}" in reason
