"""What tuning chose for each kernel of an artifact, as people read it."""

from aot.schema.artifact import Artifact, Kernel

# Below this, another run might have chosen the other one: timings of one kernel differ by as much from call to call.
NEAR_TIE = 1.03


def tuning_lines(artifact: Artifact) -> list[str]:
    """One line for each kernel that was tuned, then how many were generated without a choice."""
    tuned = [kernel for kernel in artifact.kernels if kernel.candidates]
    lines = [f"  tuned {kernel.name}: {_words(kernel)}" for kernel in tuned]
    if others := len(artifact.kernels) - len(tuned):
        lines.append(f"  {others} kernel(s) generated without a choice among candidates")
    return lines


def _words(kernel: Kernel) -> str:
    words = [kernel.choice]
    if kernel.best_us is not None:
        words.append(f"{kernel.best_us:.1f} us")
    words.append(f"best of {kernel.candidates}")
    if kernel.best_us and kernel.next_us:
        margin = kernel.next_us / kernel.best_us
        words.append(f"the next {100 * (margin - 1):.1f} % slower{' (a near tie)' if margin <= NEAR_TIE else ''}")
    if kernel.reused:
        words.append("as measured by an earlier build")
    return ", ".join(words)
