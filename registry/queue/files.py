"""kombu's filesystem transport, with messages that appear whole.

kombu 5.7 creates a message under its final name and then writes it; a consumer that looks in between takes an empty
file and dies of it. Here the file is written under another name and renamed. The consumer's side is kombu's own.
"""

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps

KEEP_TAKEN_SECONDS = 3600.0


class Channel(filesystem.Channel):  # type: ignore[misc]
    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        folder = Path(self.data_folder_out)
        # Consumers read in the order of names: wall time, since the monotonic clock begins anew with the host.
        name = f"{time.time_ns()}_{uuid.uuid4()}"
        hidden = folder / f"{name}.writing"  # no queue ends like this, so no consumer takes it
        try:
            hidden.write_text(dumps(payload))
            hidden.rename(folder / f"{name}.{queue}.msg")
        except OSError as error:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            raise ChannelError(f"could not write a message into {folder}: {error}") from error
        self._forget_taken()

    def _forget_taken(self) -> None:
        """Remove the messages that consumers took long ago; kombu keeps them for ever."""
        with contextlib.suppress(OSError), os.scandir(self.processed_folder) as taken:
            for entry in taken:
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > KEEP_TAKEN_SECONDS:
                        os.unlink(entry.path)


class Transport(filesystem.Transport):  # type: ignore[misc]
    Channel = Channel
