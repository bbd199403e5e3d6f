"""Exit 0 when the registry in this container is ready, else 1 with the reason: the health check of its images.

Every endpoint needs a token, and kubelet's own HTTP probe cannot read one from a file: this reads the one that `serve`
makes for it at its start, in its data directory. Standard library only, since it runs every few seconds.
"""

import http.client
import os
import sys
from pathlib import Path

TIMEOUT_SECONDS = 4


def main() -> int:
    port = int(os.environ.get("AOT_PORT") or 8750)
    try:
        token = (Path(os.environ["AOT_DATA_DIR"]) / "probe-token").read_text().strip()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        connection.request("GET", "/v1/ready", headers={"authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        body = reply.read(2000).decode(errors="replace")
    except (KeyError, OSError, http.client.HTTPException) as error:
        print(f"not ready: {type(error).__name__}: {error}")
        return 1
    if reply.status != 200:
        print(f"not ready: {reply.status} {body}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
