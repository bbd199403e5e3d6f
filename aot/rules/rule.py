"""What a rule is, and the comparisons that most of them are made of.

A rule takes a guard's value and the environment, and returns None when the guard holds, else the Reason. A Reason whose
`found` is None means that the fact was not observed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from aot.schema.decision import Reason
from aot.schema.environment import Environment


class Order(StrEnum):
    """MONOTONE: more of it is fine. EXACT: only the same will do. ADVISORY: a mismatch runs, tuned elsewhere."""

    MONOTONE = "monotone"
    EXACT = "exact"
    ADVISORY = "advisory"


class Change(IntEnum):
    """What has to change so that a guard which does not hold would hold; the dearer, the higher."""

    SETTING = 1  # a line of the program that loads
    IMAGE = 2  # another container
    SYSTEM = 3  # the node's driver or kernel
    HARDWARE = 4  # another CPU or card
    ARTIFACT = 5  # nothing on the host: the artifact must be built again


# What a Reason says where the host has no part in it.
A_RECORDED_VALUE = "a recorded value"  # `wanted`: the artifact does not record it
NOT_KNOWN = "not known"  # `found`: this version of aot cannot judge it

_LONGEST_VERSION = 64  # characters: it comes from a manifest, and int() raises for thousands of digits

Check = Callable[[str, Environment], Reason | None]


@dataclass(frozen=True)
class Rule:
    """`facts` are the fields of the environment that `check` reads; `of_card`: it asks about one card of the host, and
    sees an environment that has no other."""

    kind: str
    order: Order
    change: Change
    facts: tuple[str, ...]
    check: Check
    of_card: bool = False


def same(kind: str, wanted: str, found: str | None, text: str) -> Reason | None:
    """Hold when `found` is `wanted`. `text` says the mismatch, with {wanted} and {found}."""
    if found is None:
        return missing(kind, wanted)
    return None if found == wanted else against(kind, wanted, found, text)


def one_of(kind: str, wanted: str, found: str | None, text: str) -> Reason | None:
    """Hold when `found` is one of the values that `wanted` lists, separated by spaces."""
    if found is None:
        return missing(kind, wanted)
    return None if found in wanted.split() else against(kind, " or ".join(wanted.split()), found, text)


def floor(kind: str, wanted: str, found: str | None, text: str) -> Reason | None:
    """Hold when the dotted version `found` is `wanted` or newer. What is no version is not compared, and rejected."""
    if found is None:
        return missing(kind, wanted)
    have, least = version(found), version(wanted)
    if have is None or least is None:
        return against(kind, wanted, found, "{kind} {found} cannot be compared with {wanted}")
    width = max(len(have), len(least))
    if have + (0,) * (width - len(have)) >= least + (0,) * (width - len(least)):
        return None
    return against(kind, wanted, found, text)


def against(kind: str, wanted: str, found: str, text: str) -> Reason:
    return Reason(kind=kind, wanted=wanted, found=found, text=text.format(kind=kind, wanted=wanted, found=found))


def missing(kind: str, wanted: str) -> Reason:
    return Reason(kind=kind, wanted=wanted, found=None, text=f"{kind} of this host is not known, {wanted} is needed")


def unknown(what: str, value: str, *, kind: str | None = None) -> Reason:
    """Something that this version cannot judge, hence does not accept. `kind`: of the guard, where it is not `what`."""
    text = f"{what} {value} is not known to this version of aot"
    return Reason(kind=kind or what, wanted=value, found=NOT_KNOWN, text=text)


def version(text: str) -> tuple[int, ...] | None:
    """Return the numbers of "2.36"; None for what is no dotted version."""
    if len(text) > _LONGEST_VERSION:
        return None
    parts = text.split(".")
    # isdecimal is true for digits of every script, and int() reads them; a version has none of those.
    return tuple(int(part) for part in parts) if all(part.isascii() and part.isdecimal() for part in parts) else None


def spell(fact: bool | int | None) -> str | None:
    """Return a fact as guards spell it: "true", "false", "4"; None where it was not observed."""
    return None if fact is None else str(fact).lower()
