"""SQL over tokens."""

from datetime import datetime

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from registry.db.models import TokenRow

_QUIETLY = {"synchronize_session": False}


def find_token(digest: str, session: Session) -> TokenRow | None:
    return session.get(TokenRow, digest)


def add_token(row: TokenRow, session: Session) -> None:
    session.add(row)
    session.flush()


def has_label(label: str, session: Session) -> bool:
    return bool(session.scalar(select(exists().where(TokenRow.label == label))))


def list_lasting(session: Session) -> tuple[TokenRow, ...]:
    """Every token that belongs to no claim, the oldest first."""
    order = (TokenRow.created_at, TokenRow.hash)
    return tuple(session.scalars(select(TokenRow).where(TokenRow.build.is_(None)).order_by(*order)))


def delete_labelled(label: str, session: Session, *, but: str = "") -> None:
    """Remove every token of this label, except that of the hash `but`."""
    these = select(TokenRow.hash).where(TokenRow.label == label, TokenRow.hash != but)
    session.execute(delete(TokenRow).where(TokenRow.hash.in_(these.order_by(TokenRow.hash).with_for_update())))


def delete_expired(session: Session, *, before: datetime) -> int:
    """Return how many tokens that expired before then are gone."""
    # What somebody else removes at this moment is not waited for: he may wait for another of these.
    over = select(TokenRow.hash).where(TokenRow.expires_at < before).order_by(TokenRow.hash)
    held = over.with_for_update(skip_locked=True)
    return session.execute(delete(TokenRow).where(TokenRow.hash.in_(held)), execution_options=_QUIETLY).rowcount
