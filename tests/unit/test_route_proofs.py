"""What a proof must hold on the routes `bytecode` and `function`, and what a host is told of them."""

from aot.keys import factors_of
from aot.proof import faults_of
from aot.schema.decision import Accepted, Rejected, Undecided
from aot.schema.digest import Digest
from aot.schema.environment import ContainerFacts, Environment
from aot.schema.report import Qualification
from aot.select import verdict_on
from tests.builders import a_container, a_profile, a_qualification, a_start_proof, altered, an_environment
from tests.route_builders import (
    INTERPRETER,
    a_bytecode_artifact,
    a_bytecode_manifest,
    a_bytecode_spec,
    a_distribution,
    a_function_artifact,
    a_function_manifest,
)


def test_bytecode_is_proven_by_whoever_made_the_same_bytes() -> None:
    assert faults_of(a_bytecode_manifest()) == ()
    claimed = a_bytecode_manifest(qualification=a_qualification())
    assert faults_of(claimed) == ("nobody has compiled its sources again and found the same bytes",)
    nowhere = a_bytecode_manifest(qualification=Qualification(numerics="rebuilt: equal bytes"))
    assert any("proven on no profile" in fault for fault in faults_of(nowhere))


def test_a_function_may_import_the_compiler_and_start_nothing() -> None:
    start = a_start_proof(compiler_modules=("torch._dynamo",))
    assert faults_of(a_function_manifest(qualification=a_qualification(start=start))) == ()
    started = a_start_proof(processes=("/usr/bin/g++",))
    assert any(
        "started others" in one for one in faults_of(a_function_manifest(qualification=a_qualification(start=started)))
    )


def here(*distributions: str, bytecode: str | None = INTERPRETER) -> Environment:
    return Environment(container=ContainerFacts(bytecode=bytecode, distributions=distributions))


def test_bytecode_fits_an_interpreter_with_the_same_distribution_whatever_the_hardware() -> None:
    artifact, own = a_bytecode_artifact(), a_distribution().guard
    assert isinstance(verdict_on(artifact, here(own, "other==1 sha256:" + "0" * 64)), Accepted)
    assert isinstance(verdict_on(artifact, an_environment()), Undecided)
    for environment, kind in (
        (here(own, bytecode="cpython-312 cb0d0d0a"), "bytecode"),
        (here(a_distribution(version="1.3").guard), "distribution"),
        (here(a_distribution(record=Digest.of(b"patched")).guard), "distribution"),
        (here(), "distribution"),
    ):
        verdict = verdict_on(artifact, environment)
        assert isinstance(verdict, Rejected)
        assert [reason.kind for reason in verdict.reasons] == [kind]


def test_an_artifact_that_does_not_say_its_distribution_is_rejected() -> None:
    silent = a_bytecode_artifact(host_guards=a_bytecode_artifact().host_guards[:1])
    assert isinstance(verdict_on(silent, here(a_distribution().guard)), Rejected)


def test_a_function_is_for_the_very_release_of_python() -> None:
    artifact = a_function_artifact()
    assert isinstance(verdict_on(artifact, an_environment()), Accepted)
    verdict = verdict_on(artifact, an_environment(container=a_container(python="3.11.8")))
    assert isinstance(verdict, Rejected)
    assert [reason.kind for reason in verdict.reasons] == ["interpreter"]


def test_neither_hardware_nor_compiler_is_a_factor_of_bytecode() -> None:
    spec = a_bytecode_spec()
    assert factors_of(spec, a_profile("v4", capability="cpu:x86-64-v4")) == factors_of(spec, a_profile())
    other = altered(spec.source, interpreter="cpython-312 cb0d0d0a")
    assert factors_of(altered(spec, source=other), a_profile()) != factors_of(spec, a_profile())
