"""What a build's report says of its toolchain: of all artifacts together."""

from aot.compile.artifacts import toolchain_facts
from aot.schema.artifact import Artifact, ElfFacts
from tests.builders import a_toolchain, an_artifact


def asking(libc: str | None, *needed: str, isa: str = "avx2", libstdcxx: str | None = None) -> Artifact:
    elf = ElfFacts(machine="x86_64", needed=needed, libc_floor=libc, libstdcxx_floor=libstdcxx)
    return an_artifact(elf=elf, facts={"march": "x86-64-v3", "isa": isa})


def test_floors_are_the_highest_and_libraries_those_of_every_artifact() -> None:
    one, other = (
        asking("2.9", "libc.so.6", "libgomp.so.1"),
        asking("2.34", "libc.so.6", "libm.so.6", libstdcxx="3.4.30"),
    )
    facts = toolchain_facts(a_toolchain(), (one, other))
    assert facts["libc_floor"] == "2.34", "2.34 is later than 2.9, in either order"
    assert toolchain_facts(a_toolchain(), (other, one))["libc_floor"] == "2.34"
    assert facts["libstdcxx_floor"] == "3.4.30"
    assert facts["needed"] == "libc.so.6, libgomp.so.1, libm.so.6"
    assert (facts["march"], facts["isa"], facts["compiler"]) == ("x86-64-v3", "avx2", "g++ 12.2.0")


def test_artifacts_that_differ_are_all_named() -> None:
    assert toolchain_facts(a_toolchain(), (asking(None, isa="b"), asking(None, isa="a")))["isa"] == "a, b"


def test_a_report_without_an_artifact_has_the_toolchain_alone() -> None:
    assert set(toolchain_facts(a_toolchain(), ())) == {"torch", "compiler", "libc"}
