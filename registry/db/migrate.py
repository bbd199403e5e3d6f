"""The schema is made by the migrations alone; nothing calls `create_all`."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from registry.db.session import Sessions, translated

MIGRATIONS = Path(__file__).parents[2] / "migrations"


def migrate(sessions: Sessions, *, revision: str = "head") -> None:
    """Bring the database to `revision`. Nothing happens when it is there. Raises StorageUnavailable."""
    config = configuration()
    with translated(), sessions.writing_engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def at_head(sessions: Sessions) -> bool:
    """True when the database has every migration that this version knows. Raises StorageUnavailable."""
    wanted = ScriptDirectory.from_config(configuration()).get_current_head()
    return revision_of(sessions) == wanted


def revision_of(sessions: Sessions) -> str | None:
    """The last migration that the database has had. Raises StorageUnavailable."""
    with translated(), sessions.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def known_revisions() -> tuple[str, ...]:
    """Every migration of this version, the newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions())


def configuration() -> Config:
    config = Config()
    # ConfigParser reads "%" as its own.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
