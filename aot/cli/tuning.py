"""What tuning chose for each kernel of an artifact, as people and scripts read it."""

from typing import Any

from msgspec import to_builtins

from aot.schema.artifact import Artifact, Kernel
from aot.schema.environment import Clocks

# Below this, another run might have chosen the other one: timings of one kernel differ by as much from call to call.
NEAR_TIE = 1.03


def tuning_lines(artifact: Artifact) -> list[str]:
    """One line for each kernel whose candidates' times were recorded, then how many there are besides."""
    tuned = [kernel for kernel in artifact.kernels if kernel.candidates]
    lines = [f"  tuned {kernel.name}: {_words(kernel)}" for kernel in tuned]
    if others := len(artifact.kernels) - len(tuned):
        # A pointwise kernel or reduction may have several configurations, which the compiler measures by itself, and
        # coordinate descent goes on from the best. It keeps what it chose, and no times.
        chosen = (
            ": the compiler chose their configurations, measured where the recipe tunes"
            if artifact.tuned is not False
            else ""
        )
        lines.append(f"  {others} kernel(s) without times of candidates{chosen}")
    return lines


def tuning_records(artifact: Artifact) -> list[dict[str, Any]]:
    """The kernels that `tuning_lines` has a line each for, with `margin` and `near_tie` computed.

    `margin`: the next candidate's time over the best one's; None, as `near_tie`, where one of them was not measured.
    """
    return [
        {**to_builtins(kernel), "margin": margin_of(kernel), "near_tie": is_near_tie(kernel)}
        for kernel in artifact.kernels
        if kernel.candidates
    ]


def margin_of(kernel: Kernel) -> float | None:
    return kernel.next_us / kernel.best_us if kernel.best_us and kernel.next_us else None


def is_near_tie(kernel: Kernel) -> bool | None:
    margin = margin_of(kernel)
    return None if margin is None else margin <= NEAR_TIE


def _words(kernel: Kernel) -> str:
    words = [kernel.choice]
    if kernel.best_us is not None:
        words.append(f"{kernel.best_us:.1f} us")
    words.append(f"best of {kernel.candidates}")
    if (margin := margin_of(kernel)) is not None:
        words.append(f"the next {100 * (margin - 1):.1f} % slower{' (a near tie)' if is_near_tie(kernel) else ''}")
    if kernel.reused:
        words.append("as measured by an earlier build")
    if kernel.clocks is not None:
        words.append(f"at {clock_words(kernel.clocks)}")
    return ", ".join(words)


def clock_lines(artifact: Artifact) -> list[str]:
    """The clocks of the card at each point whose speed was measured."""
    return [
        f"  clocks at {', '.join(f'{name} {size}' for name, size in speed.point.items()) or 'example'}:"
        f" {clock_words(speed.clocks)}"
        for speed in artifact.speeds
        if speed.clocks is not None
    ]


def clock_words(clocks: Clocks) -> str:
    """Of the multiprocessors and the memory, each beside the most that there is, and what the driver was told."""
    words = [
        f"{name} {now} MHz{f' of {most}' if most else ''}{f', set to {told}' if told else ''}"
        for name, now, most, told in (
            ("SM", clocks.sm_mhz, clocks.most_sm_mhz, clocks.application_sm_mhz),
            ("memory", clocks.memory_mhz, clocks.most_memory_mhz, clocks.application_memory_mhz),
        )
        if now is not None
    ]
    return "; ".join(words) or "clocks that the driver did not tell"
