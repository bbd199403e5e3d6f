"""Tell the registry what became of one load: which bundle, on what host, how it ran and what it fell back from.

Imported once it is told, some seconds after the load or at the process's end: never on the way to a first output.
"""

import logging

from aot.errors import AotError
from aot.runtime.compiled import CompiledModel
from aot.runtime.late_client import LateClient
from aot.schema.environment import Environment
from aot.schema.wire.workers import Receipt

MOST_REASONS = 20

log = logging.getLogger("aot")


def graph_counters(model: CompiledModel) -> dict[str, int]:
    """Sizes that run as CUDA graphs, those that were refused, and the bytes held; empty where no call may be replayed.

    They stand beside the counters of calls in a receipt.
    """
    if not (graphs := model.graphs):
        return {}
    reports = [report for found in graphs.values() for report in found]
    refused = sum(bool(report.reason) for report in reports)
    return {
        "graphs": len(reports) - refused,
        "graphs_refused": refused,
        "graph_memory_bytes": model.graph_memory_bytes,
    }


def send_receipt(
    client: LateClient, model: CompiledModel, environment: Environment, *, stale: bool, seconds: float
) -> None:
    """Send the receipt of `model`, whose load took `seconds`; one that cannot be sent is lost, and logged."""
    assert model.reference is not None
    missed = (f"a call ran eagerly: {model.last_miss}",) if model.last_miss else ()
    receipt = Receipt(
        reference=model.reference,
        bundle=model.bundle,
        environment=environment,
        outcome=model.outcome,
        reasons=(*model.reasons, *missed)[:MOST_REASONS],
        counters=model.counters | graph_counters(model),
        stale_tag=stale,
        load_seconds=seconds,
    )
    try:
        client.send_receipt(receipt)
    except AotError as error:
        log.info("receipt not sent: %s", error.message)
