"""What a program leaves in the caches of its compilers, for tests, and a host without a card that has such caches."""

import json
from pathlib import Path

from aot.schema.capability import Capability
from tests.builders import a_node, an_environment

GRAPH = "inductor/fxgraph/ab/key/one"
KERNEL = "triton/KEY/add.cubin"
GROUP = "triton/KEY/__grp__add.json"


def write(directory: Path, **files: bytes) -> Path:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def caches(directory: Path) -> Path:
    """What a program left: one graph with its code, and one kernel of Triton's."""
    group = json.dumps({"child_paths": {"add.cubin": f"{directory}/{KERNEL}"}}).encode()
    files = {GRAPH: b"graph", "inductor/cd/code.cpp": b"source", "inductor/cd/code.so": b"code"}
    return write(directory, **files, **{KERNEL: b"cubin", GROUP: group})


def host(level: str = "x86-64-v4", *features: str) -> object:
    cpu = Capability(f"cpu:{level}")
    return an_environment(node=a_node(cpu=cpu, cpu_features=features, gpus=()))
