"""What version 0.1.0 reads of a manifest as a card's build writes it: all but the fields that are listed here.

A document refuses fields that it does not know, so a bundle that sets one of `LATER` is read by no client and no
registry of 0.1.0: they are upgraded before the workers that set it (docs/deploy.md). A test that fails here has found
a field more of that kind. What is told of a measurement belongs into `Artifact.facts`, which every version reads.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot.schema.artifact import Artifact, CodeFacts, Kernel, KernelFacts, Latency, Speed, Throughput, Winner
from aot.schema.capability import Capability
from aot.schema.codec import encode
from aot.schema.environment import Clocks
from aot.schema.manifest import Manifest, encode_manifest
from aot.schema.measured import Measured, clocks_of, write_clocks, write_memory
from aot.schema.report import CompileReport, Provenance, Qualification
from aot.schema.spec import Commit, CommitTeller
from tests.builders import (
    a_file,
    a_gpu_profile,
    a_latency,
    a_manifest,
    a_qualification,
    a_report,
    a_spec,
    altered,
    an_artifact,
)
from tests.recorded import FROZEN

WHEEL = FROZEN / "aot_registry-0.1.0-py3-none-any.whl"

# Fields, and values of fields, that a build on a card sets and 0.1.0 does not know.
LATER = {
    "Artifact.binaries",
    "Artifact.code",
    "Artifact.kept",
    "Artifact.tuned",
    "CompileReport.refused_routes",
    "Kernel.reused",
    "Latency.throughput",
    "Provenance.commit_told_by",
    "Qualification.not_run",
    "Spec.commit",
    "Speed.graphs",
    "Winner.graphs",
}
# Fields that a card's build does not set.
NOT_OF_A_CARD = {
    "Artifact.launch",
    "Artifact.program_guards",  # of the route `function`, which makes no code for a card
    "Qualification.host_cpu",
    "Qualification.emulation",
}
RICH = (Artifact, Kernel, Speed, Latency, CompileReport, Qualification, Provenance)

OLD_READER = """
import sys
import aot
assert aot.__file__.startswith(sys.argv[1]) and aot.__version__ == "0.1.0", aot.__file__
import enum
import msgspec
from aot.schema.codec import Document
from aot.schema.manifest import decode_manifest

def below(kind):
    for one in kind.__subclasses__():
        yield one
        yield from below(one)

known = [f"{one.__name__}.{name}" for one in below(Document) for name in one.__struct_fields__]
known += [f"{one.__name__}.{value.value}" for one in below(enum.StrEnum) for value in one]
told = []
for text in msgspec.json.decode(sys.stdin.buffer.read()):
    try:
        told.append(decode_manifest(text.encode()).artifacts[0].facts)
    except Exception as error:
        told.append(str(error))
sys.stdout.buffer.write(msgspec.json.encode((known, told)))
"""

CARD = Capability("cuda:sm_90")
CLOCKS = Clocks(sm_mhz=1755, memory_mhz=2619, most_sm_mhz=1980, most_memory_mhz=2619)


def a_card_manifest() -> Manifest:
    """With every field that a build on a card may set."""
    latency = altered(a_latency(), peak_memory_bytes=5, throughput=(Throughput(threads=2, calls_per_second=9.0),))
    speed = Speed(point={"batch": 4}, eager=latency, compiled=latency, winner=Winner.GRAPHS, graphs=latency)
    facts = {
        "cuda_graphs": "capture",
        **write_clocks(Measured.TUNING, {"0": CLOCKS}),
        **write_clocks(Measured.COMPILED, {"": CLOCKS}),
        **write_clocks(Measured.PROOF, {"batch 4": CLOCKS}),
        **write_memory({"batch 4": 35_000_000}),
    }
    artifact = an_artifact(
        capability=CARD,
        code=CodeFacts(level="x86-64-v3"),
        binaries=(KernelFacts(name="mm", path="cubin/mm.cubin", capability=CARD, size_bytes=5),),
        kernels=(Kernel(name="mm", choice="mm", candidates=9, best_us=4.0, next_us=5.0, reused=True),),
        speeds=(speed,),
        winner=Winner.GRAPHS,
        tuned=True,
        facts=facts,
        kept=a_file("kept/kernels.zip", b"kept"),
        region="layer",
        instances=("layers.0",),
    )
    spec = a_spec(profile="h100", commit=Commit(revision="0" * 40, dirty=True, told_by=CommitTeller.CI))
    return a_manifest(
        spec,
        profile=a_gpu_profile(),
        artifacts=(artifact,),
        qualification=a_qualification(
            recompiles=1, numerics="unchecked", left_out=("batch 32",), not_run="compiled without the card"
        ),
        compile_report=a_report(
            toolchain={"torch": "2.13.0"}, options={"a": "b"}, warnings=("c",), refused_routes={"package": "d"}
        ),
        provenance=Provenance(
            builder="w", commit="0" * 40, dirty=True, commit_told_by="ci", aot_version="1", built_at="2026-01-01"
        ),
    )


def documents(value: Any) -> Iterator[msgspec.Struct]:
    match value:
        case msgspec.Struct():
            yield value
            for name in value.__struct_fields__:
                yield from documents(getattr(value, name))
        case tuple():
            for one in value:
                yield from documents(one)
        case dict():
            yield from documents(tuple(value.values()))


def written(manifest: Manifest) -> set[str]:
    """The fields and names of states that the canonical bytes have."""
    found = set()
    for one in documents(manifest):
        for name in msgspec.json.decode(encode(one)).keys() & set(one.__struct_fields__):  # a union's tag is none
            found.add(f"{type(one).__name__}.{name}")
            if isinstance(getattr(one, name), Winner):
                found.add(f"Winner.{getattr(one, name)}")
    return found


def without_later(value: Any) -> Any:
    """The same with the defaults for what is listed."""
    match value:
        case msgspec.Struct():
            kind = type(value)
            kept = {
                field.name: without_later(getattr(value, field.name))
                for field in msgspec.structs.fields(kind)
                if f"{kind.__name__}.{field.name}" not in LATER
            }
            return kind(**kept)
        case Winner():
            return Winner.COMPILED if f"Winner.{value}" in LATER else value
        case tuple():
            return tuple(without_later(one) for one in value)
        case _:
            return value


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], list[Any]]:
    """What 0.1.0 knows, and what it says of the manifest: as it is, and without what is listed."""
    place = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(place)
    manifests = (a_card_manifest(), without_later(a_card_manifest()))
    ran = subprocess.run(
        [sys.executable, "-c", OLD_READER, str(place)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        input=msgspec.json.encode([encode_manifest(one)[0].decode() for one in manifests]),
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    known, answers = msgspec.json.decode(ran.stdout)
    return set(known), answers


def test_the_manifest_sets_every_field_that_a_build_on_a_card_may_set() -> None:
    every = {f"{kind.__name__}.{name}" for kind in RICH for name in kind.__struct_fields__}
    assert every - written(a_card_manifest()) == NOT_OF_A_CARD


def test_what_0_1_0_does_not_know_of_a_cards_manifest_is_listed_by_name(told: tuple[set[str], list[Any]]) -> None:
    known, _ = told
    kinds = {name.partition(".")[0] for name in known}
    of_known_kinds = {name for name in written(a_card_manifest()) if name.partition(".")[0] in kinds}
    assert of_known_kinds - known == LATER


def test_0_1_0_reads_all_else_and_keeps_the_facts_of_measurements(told: tuple[set[str], list[Any]]) -> None:
    whole, facts = told[1]
    assert "unknown field" in whole
    assert facts == a_card_manifest().artifacts[0].facts
    assert clocks_of(an_artifact(facts=facts), Measured.TUNING) == {"0": CLOCKS}


def test_the_documentation_names_what_is_listed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    assert [name for name in sorted(LATER) if f"`{name}`" not in text] == []
