"""Which installed distributions a program's classes come from, and whether the source pins them.

Requirements are factors of the build key; what a worker merely happens to have installed is none. A module tree with
classes of an unpinned distribution would be another program after an upgrade of it, under the same key: the registry
would answer with the old bundle, and no pod with the new version could use it.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aot.errors import InvalidSpec

if TYPE_CHECKING:
    from torch.nn import Module

# Part of every profile's toolchain, and so of every key.
_PINNED_BY_PROFILE = frozenset({"torch", "triton"})
_NAMED = 5


def refuse_unpinned(module: "Module", requirements: Sequence[str]) -> None:
    """Raises InvalidSpec when a class of the module tree belongs to a distribution that `requirements` do not pin."""
    pinned = {_normalized(requirement.partition("==")[0]) for requirement in requirements}
    found = {
        name: version for name, version in sorted(distributions_of(module).items()) if _normalized(name) not in pinned
    }
    if not found:
        return
    pins = [f"{name}=={version}" for name, version in list(found.items())[:_NAMED]]
    raise InvalidSpec(
        f"the module has classes of {', '.join(pins)}, which the source does not pin: another version is another "
        "program, and must have another build key",
        hint=f"add to the requirements: {', '.join(pins)}",
        details={"requirements": pins},
    )


def distributions_of(module: "Module") -> dict[str, str]:
    """Return name and version of each installed distribution that a class of the module tree is defined in.

    Torch is left out, and so is what is installed in editable form, whose version says nothing of its code.
    """
    from importlib.metadata import packages_distributions, version

    tops = {type(part).__module__.partition(".")[0] for part in module.modules()}
    tops -= {*sys.stdlib_module_names, *_PINNED_BY_PROFILE}
    if not tops:
        return {}
    # Reading what is installed takes a tenth of a second; most trees are torch's and the source's own.
    owners = packages_distributions()
    return {name: version(name) for top in tops for name in owners.get(top, ()) if _holds(name, top)}


def _holds(distribution: str, top: str) -> bool:
    """Whether the imported package `top` is this distribution's, and not a source's own module of the same name."""
    from importlib.metadata import files
    from pathlib import Path

    place = getattr(sys.modules.get(top), "__file__", None)
    if place is None:  # a namespace package may be anybody's
        return True
    return any(Path(str(file.locate())) == Path(place) for file in files(distribution) or () if file.name in place)


def _normalized(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")
