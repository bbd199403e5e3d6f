"""SQL over tokens."""

from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from registry.db.models import TokenRow


def find_token(digest: str, session: Session) -> TokenRow | None:
    return session.get(TokenRow, digest)


def add_token(row: TokenRow, session: Session) -> None:
    session.add(row)
    session.flush()


def delete_expired(session: Session, *, before: datetime) -> int:
    """Return how many tokens that expired before then are gone."""
    return session.execute(delete(TokenRow).where(TokenRow.expires_at < before)).rowcount
