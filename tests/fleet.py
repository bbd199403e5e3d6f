"""A fleet against artifacts: the verdict on each of `ARTIFACTS` for every host file, as one table.

`python -m tests.fleet` writes `tests/hosts/fleet.txt` anew; a change there is a change of verdicts, to be reviewed.
"""

from collections.abc import Iterator
from pathlib import Path

from aot.rules import FRESH_PROCESS
from aot.rules.profile import profile_guards
from aot.schema.artifact import Artifact
from aot.schema.capability import Capability
from aot.schema.codec import decode
from aot.schema.decision import Accepted, Level, Verdict, reasons_of
from aot.schema.environment import Environment, ProcessFacts
from aot.schema.guard import HostGuard
from aot.schema.profile import Device, Profile
from aot.select import verdict_on
from tests.builders import a_profile, a_toolchain, altered, an_artifact

HOSTS = Path(__file__).parent / "hosts"
TABLE = HOSTS / "fleet.txt"
H100 = Device(sku="NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=80 << 30)
A100 = Device(sku="NVIDIA A100-SXM4-40GB", sm_count=108, memory_bytes=40 << 30)
A10 = Device(sku="NVIDIA A10G", sm_count=80, memory_bytes=24 << 30)
B200 = Device(sku="NVIDIA B200", sm_count=148, memory_bytes=180 << 30)
RTX = Device(sku="NVIDIA GeForce RTX 5090", sm_count=170, memory_bytes=32 << 30)


def built_for(capability: str, *, torch: str, machine: str = "x86_64", **more: object) -> Artifact:
    """What a build for this profile records."""
    device = more.get("device")
    cuda = str(more["cuda"]) if "cuda" in more else None
    profile = Profile(
        name=a_profile().name,
        capability=Capability.parse(capability),
        toolchain=a_toolchain(torch=torch, cuda=cuda),
        device=device if isinstance(device, Device) else None,
    )
    values = profile_guards(profile) | {
        "machine": machine,
        "libc": "2.34",
        "libstdcxx": "3.4.30",
        "deterministic": "false",
        "default_dtype": "float32",
        "matmul_precision": "highest high medium",
    }
    if profile.capability.family != "cpu":
        values["cpu"] = "cpu:x86-64-v2"
    guards = tuple(HostGuard(kind=kind, value=value) for kind, value in values.items())
    return an_artifact(capability=profile.capability, host_guards=guards, facts={"threads": "dynamic"})


ARTIFACTS: dict[str, Artifact] = {
    "cpu v2": built_for("cpu:x86-64-v2", torch="2.13.0+cpu"),
    "cpu v3": built_for("cpu:x86-64-v3", torch="2.13.0+cpu"),
    "cpu v4": built_for("cpu:x86-64-v4", torch="2.13.0+cpu"),
    "cpu amx": built_for("cpu:x86-64-v4+amx_bf16+amx_int8", torch="2.13.0+cpu"),
    "arm v8.2": built_for("cpu:armv8.2-a", torch="2.13.0+cpu", machine="aarch64"),
    "a10g 2.12 cu128": built_for("cuda:sm_86", torch="2.12.0+cu128", cuda="12.8", device=A10),
    "a100 2.12 cu126": built_for("cuda:sm_80", torch="2.12.0+cu126", cuda="12.6", device=A100),
    "h100 2.13 cu130": built_for("cuda:sm_90a", torch="2.13.0+cu130", cuda="13.0", device=H100),
    "h100 2.13 cu128": built_for("cuda:sm_90a", torch="2.13.0+cu128", cuda="12.8", device=H100),
    "h100 2.12 cu126": built_for("cuda:sm_90", torch="2.12.0+cu126", cuda="12.6", device=H100),
    "b200 2.13 cu128": built_for("cuda:sm_100a", torch="2.13.0+cu128", cuda="12.8", device=B200),
    "rtx5090 2.13 cu130": built_for("cuda:sm_120", torch="2.13.0+cu130", cuda="13.0", device=RTX),
}


def recorded_hosts() -> dict[str, Environment]:
    return {path.stem: decode(path.read_bytes(), Environment) for path in sorted(HOSTS.glob("*.json"))}


def as_a_fresh_process(environment: Environment) -> Environment:
    return environment if environment.process != ProcessFacts() else altered(environment, process=FRESH_PROCESS)


def rows() -> Iterator[str]:
    for host, environment in recorded_hosts().items():
        seen = as_a_fresh_process(environment)
        yield host
        for name, artifact in ARTIFACTS.items():
            yield f"  {name:20}{spell(verdict_on(artifact, seen))}"


def spell(verdict: Verdict) -> str:
    """The level, the kinds that stand against it, and the cards that it is for."""
    reasons = verdict.notes if isinstance(verdict, Accepted) else reasons_of(verdict)
    several = verdict.devices and isinstance(verdict, Accepted)
    cards = f" on card {', '.join(map(str, verdict.devices))}" if several else ""
    kinds = ", ".join(sorted({reason.kind for reason in reasons}))
    return f"{Level(verdict.level)}{cards}{': ' if kinds else ''}{kinds}"


def table() -> str:
    return "\n".join(rows()) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table())
