"""The schema is made by the migrations alone; nothing calls `create_all`.

A migration's id is a number of four digits, one more than that of the migration before it, so whoever reads the id that
a database was left at can say which is later, also of one that he does not know. The first digit counts what cannot be
served across: `0004` only adds to `0003`, and both versions run on either; a migration that takes away what an older
version uses begins the next thousand. So a registry serves a database that a later version has migrated, as long as the
first digits are the same: replicas go on while a release rolls out, and while one is rolled back.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from aot.errors import StorageUnavailable
from registry.db.session import Sessions, hold_turn, translated

MIGRATIONS = Path(__file__).parents[2] / "migrations"
REVISION = re.compile(r"\d{4}")
log = structlog.get_logger()


class Standing(StrEnum):
    """How a database's schema stands to this version's."""

    SAME = "same"
    OLDER = "older"  # this version's migrations are missing
    NEWER = "newer"  # a later version has added to it: all that this one uses is there
    OTHER = "other"  # changed beyond what this version can serve, or by something else


@dataclass(frozen=True)
class Schema:
    """A database's last migration (None: it has none), this version's, and what that means."""

    found: str | None
    head: str
    standing: Standing

    @property
    def serves(self) -> bool:
        return self.standing in (Standing.SAME, Standing.NEWER)

    @property
    def text(self) -> str:
        """One line for people, after "the database "."""
        match self.standing:
            case Standing.SAME:
                return f"is at migration {self.head}"
            case Standing.OLDER:
                return f"is at migration {self.found or 'none'}, this version needs {self.head}"
            case Standing.NEWER:
                return f"is at migration {self.found} of a newer version, which adds to {self.head} of this one"
            case Standing.OTHER:
                return f"is at {self.found}, which this version, at {self.head}, cannot serve"

    @property
    def hint(self) -> str:
        match self.standing:
            case Standing.OLDER:
                return "run `python -m registry migrate` first"
            case Standing.OTHER:
                return "run the registry version that migrated it, or a newer one"
            case Standing.SAME | Standing.NEWER:
                return ""


def migrate(sessions: Sessions, *, revision: str = "head") -> Schema:
    """Bring the database to `revision`, and return how it stands. Nothing happens where it is there, or beyond head.

    Of several that migrate at once one does, and the others find it done. Raises StorageUnavailable, also for a
    database that this version cannot serve.
    """
    config = configuration()
    with translated(), sessions.writing_engine.begin() as connection:
        hold_turn(connection, "migrate")
        schema = standing_of(MigrationContext.configure(connection).get_current_revision(), known_revisions())
        if schema.standing is Standing.NEWER:
            log.warning("database-newer", found=schema.found, head=schema.head)
            return schema
        require(schema, also=Standing.OLDER)
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return find_schema(sessions)


def find_schema(sessions: Sessions) -> Schema:
    """Raises StorageUnavailable."""
    return standing_of(revision_of(sessions), known_revisions())


def require_served(sessions: Sessions) -> None:
    """Raises StorageUnavailable as `require` does; a newer database is served, and the log says so."""
    schema = find_schema(sessions)
    require(schema)
    if schema.standing is Standing.NEWER:
        log.warning("database-newer", found=schema.found, head=schema.head)


def require(schema: Schema, *, also: Standing | None = None) -> None:
    """Raises StorageUnavailable, with what to do, unless this version can serve the database or it stands as `also`."""
    if not schema.serves and schema.standing is not also:
        raise StorageUnavailable(f"the database {schema.text}", hint=schema.hint)


def standing_of(found: str | None, known: tuple[str, ...]) -> Schema:
    """`known`: this version's migrations, the newest first. Pure."""
    head = known[0]
    if found == head:
        standing = Standing.SAME
    elif found is None or found in known:
        standing = Standing.OLDER
    elif REVISION.fullmatch(found) and found[0] == head[0] and found > head:
        standing = Standing.NEWER
    else:
        standing = Standing.OTHER
    return Schema(found, head, standing)


def revision_of(sessions: Sessions) -> str | None:
    """The last migration that the database has had. Makes no database. Raises StorageUnavailable."""
    if is_absent(sessions):
        return None
    with translated(), sessions.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def is_absent(sessions: Sessions) -> bool:
    """Whether the database is a file that is not there: to look into it would make it."""
    place = sessions.engine.url
    file = place.database or ":memory:"
    return place.get_backend_name() == "sqlite" and not file.startswith((":", "file:")) and not Path(file).exists()


def known_revisions() -> tuple[str, ...]:
    """Every migration of this version, the newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions())


def configuration() -> Config:
    config = Config()
    # ConfigParser reads "%" as its own.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
