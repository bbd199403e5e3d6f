"""Alembic's entry: runs the versions on the connection that `registry.db.migrate` hands over."""

from alembic import context

from registry.db.models import Row

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Row.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
