"""What tuning chose for each kernel of an artifact, as people and scripts read it."""

from collections.abc import Iterator
from typing import Any

from msgspec import structs, to_builtins

from aot.schema.artifact import Artifact, Kernel
from aot.schema.environment import Clocks
from aot.schema.measured import Candidates, Contest, Measured, candidates_of, clocks_of, contest_of, memory_of

# Below this, another run might have chosen the other one: timings of one kernel differ by as much from call to call.
NEAR_TIE = 1.03


def tuning_lines(artifact: Artifact) -> list[str]:
    """One line for each kernel whose candidates' times were recorded, then how many there are besides.

    Where the untuned build was the faster one, those that tuning measured for the other come last.
    """
    lines = [f"  tuned {line}" for line in _kernel_lines(artifact)]
    if others := len(artifact.kernels) - len(lines):
        # A pointwise kernel or reduction may have several configurations, which the compiler measures by itself, and
        # coordinate descent goes on from the best. It keeps what it chose, and no times.
        chosen = (
            ": the compiler chose their configurations, measured where the recipe tunes"
            if artifact.tuned is not False
            else ""
        )
        lines.append(f"  {others} kernel(s) without times of candidates{chosen}")
    if (contest := contest_of(artifact)) is not None:
        kept = "untuned" if contest.kept_untuned else "tuned"
        lines.append(
            f"  the {kept} build is kept: {contest.tuned_us:.1f} us a call tuned, {contest.untuned_us:.1f} us untuned"
        )
        lines += [f"  not kept: tuned {line}" for line in _kernel_lines(_rejected(artifact, contest))]
    return lines


def tuning_records(artifact: Artifact) -> list[dict[str, Any]]:
    """The kernels of the artifact that `tuning_lines` has a line each for, with `margin` and `near_tie` computed.

    `margin`: the next candidate's time over the best one's; None, as `near_tie`, where one of them was not measured.
    `clocks`, and `times_us` by candidate, where they are known.
    """
    return [
        {
            **to_builtins(kernel),
            **({"clocks": to_builtins(clocks)} if clocks is not None else {}),
            **({"times_us": candidates} if candidates else {}),
            "margin": margin_of(kernel),
            "near_tie": is_near_tie(kernel),
        }
        for kernel, clocks, candidates in _tuned(artifact)
    ]


def margin_of(kernel: Kernel) -> float | None:
    return kernel.next_us / kernel.best_us if kernel.best_us and kernel.next_us else None


def is_near_tie(kernel: Kernel) -> bool | None:
    margin = margin_of(kernel)
    return None if margin is None else margin <= NEAR_TIE


def _kernel_lines(artifact: Artifact) -> list[str]:
    return [f"{kernel.name}: {_words(kernel, clocks, candidates)}" for kernel, clocks, candidates in _tuned(artifact)]


def _tuned(artifact: Artifact) -> Iterator[tuple[Kernel, Clocks | None, Candidates]]:
    """Each tuned kernel with what is known besides: the clocks then, and every candidate's time."""
    clocks, candidates = clocks_of(artifact, Measured.TUNING), candidates_of(artifact)
    for number, kernel in enumerate(artifact.kernels):
        if kernel.candidates:
            yield kernel, clocks.get(str(number)), candidates.get(str(number), {})


def _rejected(artifact: Artifact, contest: Contest) -> Artifact:
    """The artifact with what tuning measured for the build that was not kept, in place of its own."""
    return structs.replace(artifact, kernels=contest.kernels, facts=dict(contest.facts))


def _words(kernel: Kernel, clocks: Clocks | None, candidates: Candidates) -> str:
    # The best comes first, and tells the configuration of what is known by a number else.
    label = next(iter(candidates), kernel.choice)
    words = [label if label == kernel.choice else f"{kernel.choice}{label[label.find(' (') :]}"]
    if kernel.best_us is not None:
        words.append(f"{kernel.best_us:.1f} us")
    words.append(f"best of {kernel.candidates}")
    if (margin := margin_of(kernel)) is not None:
        words.append(f"the next {100 * (margin - 1):.1f} % slower{' (a near tie)' if is_near_tie(kernel) else ''}")
    if kernel.reused:
        words.append("as measured by an earlier build")
    if clocks is not None:
        words.append(f"at {clock_words(clocks)}")
    return ", ".join(words)


def clock_lines(artifact: Artifact) -> list[str]:
    """The clocks of the card when the artifact had been compiled, and at each point whose speed was measured."""
    compiled, proof = clocks_of(artifact, Measured.COMPILED), clocks_of(artifact, Measured.PROOF)
    return [
        *(f"  clocks when it had been compiled: {clock_words(found)}" for found in compiled.values()),
        *(f"  clocks at {point or 'example'}: {clock_words(found)}" for point, found in proof.items()),
    ]


def measured_record(artifact: Artifact) -> dict[str, Any]:
    """What scripts get of it, points as `spell_point` has them; `graph_memory_bytes` by point as well.

    `contest` is None where the tuned build was not compared with an untuned one; its `rejected` are kernels as in
    `tuning_records`.
    """
    contest = contest_of(artifact)
    return {
        "contest": contest
        and {
            "kept": "untuned" if contest.kept_untuned else "tuned",
            "tuned_us": contest.tuned_us,
            "untuned_us": contest.untuned_us,
            "rejected": tuning_records(_rejected(artifact, contest)),
        },
        "clocks_compiled": to_builtins(clocks_of(artifact, Measured.COMPILED).get("")),
        "clocks": to_builtins(clocks_of(artifact, Measured.PROOF)),
        "graph_memory_bytes": memory_of(artifact),
    }


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
