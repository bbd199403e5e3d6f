"""The child that compares: reads the outputs that numerics left, and runs none of the source's code.

Apart from numerics so that whoever wrote the source does not also say whether it agrees, and apart from the parent so
that a long-lived worker never imports torch. Safetensors files hold plain tensors; nothing in them is executed.
"""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from aot.qualify.agreement import compare
from aot.qualify.job import Compared, Comparisons, ProofJob

if TYPE_CHECKING:
    from torch import Tensor

ROLES = ("eager", "compiled", "reference")


def compare_cases(job: ProofJob) -> Comparisons:
    """Return one verdict for each file of the job."""
    return Comparisons(compared=tuple(compare_file(Path(case)) for case in job.cases))


def compare_file(path: Path) -> Compared:
    """Compare compiled with eager, leaf by leaf, in one file. A file that cannot be read does not agree."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        return Compared(file=path.name, agrees=False, reason=f"the outputs cannot be read: {error}")
    leaves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        role, _, leaf = key.partition(".")
        leaves.setdefault(leaf, {})[role] = tensor
    if not leaves:
        return Compared(file=path.name, agrees=False, reason="there is no output")
    verdicts = [compare_leaf(path.name, leaf, found) for leaf, found in sorted(leaves.items())]
    refused = [verdict for verdict in verdicts if not verdict.agrees]
    worst = max(refused or verdicts, key=lambda verdict: verdict.max_error)
    return Compared(
        file=path.name,
        agrees=not refused,
        max_error=max(verdict.max_error for verdict in verdicts),
        eager_error=max(verdict.eager_error for verdict in verdicts),
        reason=worst.reason,
    )


def compare_leaf(file: str, leaf: str, found: dict[str, "Tensor"]) -> Compared:
    """Compare one output. `found` has a tensor for each role, or does not agree."""
    if missing := [role for role in ROLES if role not in found]:
        return Compared(file=file, agrees=False, reason=f"{leaf}: no {' and no '.join(missing)} output")
    verdict = compare(found["eager"], found["compiled"], found["reference"])
    return Compared(
        file=file,
        agrees=verdict.agrees,
        max_error=_number(verdict.max_error),
        eager_error=_number(verdict.eager_error),
        reason=f"{leaf}: {verdict.reason}" if verdict.reason else "",
    )


def _number(value: float) -> float:
    """JSON has no NaN and no infinity."""
    return value if isfinite(value) else 1e308
