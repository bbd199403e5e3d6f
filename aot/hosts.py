"""Hosts that are described instead of observed: `h100-sxm,driver=550,torch=2.12`, or a file of `aot doctor --json`.

Stands where `aot.environment` does in the pod's flow (design.md, section 5), for verdicts about machines that are
elsewhere. What a description does not say stays None, "not observed": nothing is guessed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from aot.errors import InvalidCapability, InvalidInput
from aot.schema.capability import Capability
from aot.schema.codec import Response, decode
from aot.schema.devices import CARDS, CPUS, Card, Cpu
from aot.schema.environment import ContainerFacts, Environment, Gpu, NodeFacts, ProcessFacts

NO_CARD = "no-gpu"
_SIZE = re.compile(r"(\d+)(|MiB|GiB|MB|GB)")
_UNITS = {"": 1, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
_CUDA_BUILD = re.compile(r"\+cu(\d\d)(\d)$")


class _Report(Response, kw_only=True):
    """As much of `aot doctor --json` as a verdict needs."""

    environment: Environment


def read_host(path: Path) -> Environment:
    """Return the environment in a file that `aot doctor --json` wrote, or in one that is an environment itself.

    Raises InvalidInput where the file cannot be read, MalformedDocument where it is neither.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="write it with `aot doctor --json`") from error
    try:
        keys = msgspec.json.decode(content, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        keys = frozenset[str]()  # the decoder below says what is wrong
    if "format" in keys and "environment" not in keys:
        return decode(content, Environment)
    return decode(content, _Report, what="host file").environment


def parse_host(text: str) -> Environment:
    """Return the host that `text` describes: names of cards and of one CPU, then `key=value`; or a path of a file.

    A name is one of `aot.schema.devices`, a level ("x86-64-v3"), or "no-gpu"; a card may be named twice. Where a card
    is named, `mig`, `sm_count` and `gpu_memory` are of every card. Raises InvalidInput naming what is not known, with
    what is near.
    """
    if "=" not in text and "," not in text and (text.endswith(".json") or "/" in text):
        return read_host(Path(text))
    described = _Described()
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = item.partition("=")
        if equals:
            described.put(name.strip(), value.strip())
        else:
            described.name(name)
    return described.environment()


@dataclass
class _Described:
    """What has been said so far."""

    cards: list[Card] = field(default_factory=list)
    cpu: Cpu | None = None
    no_card: bool = False
    said: dict[str, dict[str, Any]] = field(default_factory=lambda: {part: {} for part in _PARTS})

    def name(self, name: str) -> None:
        if name == NO_CARD:
            self.no_card = True
        elif name in CARDS:
            self.cards.append(CARDS[name])
        elif self.cpu is not None:
            raise InvalidInput(f"wanted one CPU, or a card, found {name!r} too", hint=_near(name, CARDS))
        else:
            self.cpu = CPUS.get(name) or _level(name)

    def put(self, key: str, value: str) -> None:
        if key not in _KEYS:
            raise InvalidInput(f"{key!r} is no fact of a host", hint=_near(key, _KEYS))
        part, read = _KEYS[key]
        if key in self.said[part]:
            raise InvalidInput(f"{key} is said twice")
        try:
            self.said[part][key] = read(value)
        except ValueError as error:
            raise InvalidInput(f"{key}={value} is not understood: {error}") from error

    def environment(self) -> Environment:
        if self.no_card and self.cards:
            raise InvalidInput(f"wanted cards or {NO_CARD}, found both")
        if self.said["gpu"] and not self.cards:
            raise InvalidInput(f"{', '.join(self.said['gpu'])} is of a card, and none is named", hint="name one first")
        node: dict[str, Any] = {"gpus": self._gpus()}
        if self.cpu is not None:
            node |= {
                "machine": self.cpu.machine,
                "cpu": Capability(f"cpu:{self.cpu.capability.level}"),
                "cpu_features": self.cpu.features,
                "sve_bits": self.cpu.sve_bits,
            }
        # A part of which nothing is said is left to its default, so that equal hosts have equal bytes.
        parts: dict[str, Any] = {"node": NodeFacts(**node | self.said["node"])}
        if self.said["container"]:
            parts["container"] = ContainerFacts(**_completed(self.said["container"]))
        if self.said["process"]:
            parts["process"] = ProcessFacts(**self.said["process"])
        return Environment(**parts)

    def _gpus(self) -> tuple[Gpu, ...] | None:
        if not self.cards:
            return () if self.no_card else None
        said = self.said["gpu"]
        if "mig" in said and not {"gpu_memory", "sm_count"} <= said.keys():
            raise InvalidInput(
                "a MIG slice has a part of the card's memory and multiprocessors, which are not said",
                hint="add gpu_memory=20GiB,sm_count=42, as `nvidia-smi mig -lgip` lists them",
            )
        return tuple(
            Gpu(
                capability=card.capability,
                sku=card.name,
                memory_bytes=said.get("gpu_memory", card.memory_bytes),
                sm_count=said.get("sm_count", card.multiprocessors),
                mig=said.get("mig"),
            )
            for card in self.cards
        )


def _level(name: str) -> Cpu:
    try:
        capability = Capability.parse(f"cpu:{name}")
    except InvalidCapability:
        capability = None
    if capability is None or not capability.is_known:
        raise InvalidInput(f"{name!r} is no known card, CPU or level", hint=_near(name, (*CARDS, *CPUS, NO_CARD)))
    return Cpu(capability, "a level, as it is named")


def _completed(container: dict[str, Any]) -> dict[str, Any]:
    """A release is spelled in full ("2.12" is 2.12.0), and a build for CUDA says which: "+cu128" is CUDA 12.8."""
    torch = container.get("torch")
    if torch is None:
        return container
    release, plus, local = torch.partition("+")
    release += ".0" * max(0, 2 - release.count("."))
    cuda = _CUDA_BUILD.search(torch)
    known = {"cuda": f"{cuda[1]}.{cuda[2]}"} if cuda else {}
    return known | container | {"torch": f"{release}{plus}{local}"}


def _near(name: str, known: Any) -> str:
    names = get_close_matches(name, known, n=5, cutoff=0.5) or sorted(known)
    return f"one of {', '.join(names)}"


def _size(value: str) -> int:
    found = _SIZE.fullmatch(value)
    if not found:
        raise ValueError("wanted a size, like 80GiB or 16000000000")
    return int(found[1]) * _UNITS[found[2]]


def _number(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("wanted a whole number")
    return int(value)


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("wanted true or false")
    return value == "true"


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in choices:
            raise ValueError(f"wanted {', '.join(choices)}")
        return value

    return read


def _version(value: str) -> str:
    if not re.fullmatch(r"\d+(\.[0-9A-Za-z]+)*(\+[0-9A-Za-z.]+)?", value):
        raise ValueError("wanted a version, like 550.54 or 2.12.0+cu130")
    return value


_PARTS = ("node", "gpu", "container", "process")
_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "machine": ("node", _one_of("x86_64", "aarch64")),
    "memory_bytes": ("node", _size),
    "kernel": ("node", str),
    "driver": ("node", _version),
    "amd_driver": ("node", _version),
    "sve_bits": ("node", _number),
    "gpu_memory": ("gpu", _size),
    "sm_count": ("gpu", _number),
    "mig": ("gpu", str),
    "torch": ("container", _version),
    "triton": ("container", _version),
    "cuda": ("container", _version),
    "hip": ("container", _version),
    "cxx11_abi": ("container", _flag),
    "python": ("container", _version),
    "libc": ("container", _version),
    "libstdcxx": ("container", _version),
    "threads": ("container", _number),
    "cores": ("container", _number),
    "deterministic": ("process", _flag),
    "matmul_precision": ("process", _one_of("highest", "high", "medium")),
    "conv_precision": ("process", _one_of("tf32", "ieee")),
    "default_dtype": ("process", str),
    "autocast": ("process", str),
    "grad": ("process", _flag),
    "world_size": ("process", _number),
    "rank": ("process", _number),
}
