"""Receipts: what processes selected, loaded, ran and fell back from."""

from datetime import datetime

from sqlalchemy.orm import Session

from aot.schema.wire.workers import Receipt, Scope
from registry.clock import sortable_id
from registry.db import fleet as rows
from registry.db.fleet_models import ReceiptRow
from registry.services.tokens import Principal

MOST_REASONS = 100
REASON_CHARACTERS = 1000
HIGHEST_COUNT = 2**63 - 1


def keep(receipt: Receipt, *, by: Principal, now: datetime, session: Session) -> None:
    """Keep the account as it was told; a bundle that does not exist here may be named. Raises Forbidden."""
    reference = receipt.reference
    by.require(Scope.READ, reference.namespace)
    rows.add_receipt(
        ReceiptRow(
            id=sortable_id(now),
            received_at=now,
            namespace=reference.namespace,
            name=reference.name,
            reference=reference,
            bundle=receipt.bundle,
            outcome=receipt.outcome,
            environment=receipt.environment,
            reasons=tuple(reason[:REASON_CHARACTERS] for reason in receipt.reasons[:MOST_REASONS]),
            counters={name: min(count, HIGHEST_COUNT) for name, count in receipt.counters.items()},
            stale_tag=receipt.stale_tag,
            load_seconds=receipt.load_seconds,
        ),
        session,
    )
