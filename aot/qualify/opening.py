"""Opens the source under proof as the compile child did: the same seed, the same weights, the same device."""

from pathlib import Path

from aot.compile.program import Program, open_factory, place_program
from aot.qualify.job import ProofJob


def open_source(job: ProofJob) -> Program:
    """Return the program of the job. Raises the families CompileFailed and InvalidInput."""
    import torch

    torch.manual_seed(job.seed)
    if job.program:
        from aot.compile.strip import open_program

        program = open_program(Path(job.program), seed=job.seed)
    else:
        program = open_factory(Path(job.tree), job.entry)
    if job.weights:
        from aot.compile.weights import load_weights

        load_weights(program.module, [Path(file) for file in job.weights])
    return place_program(program, job.device)
