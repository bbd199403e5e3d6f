"""A RabbitMQ node of its own: name, ports, directories and epmd belong to it, and nothing beyond the loopback hears it.

    with RabbitMQ(folder) as node:
        CeleryQueue(node.url, data_dir=folder).send(...)
        node.restart()  # as after the loss of its disk

It is Debian's package or any other that puts `rabbitmq-server` in the path; no plugin, no management.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.certificates import certificate
from tests.faults.backends import Backend, free_port

# Debian's command in the path changes to a user of its own; this is the script behind it.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
# Characters that a URL must quote.
USER, PASSWORD, VHOST = "aot", "p@ss/w:rd", "team/builds"
START_SECONDS = 90.0
LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"
# Channels look every half second, instead of every minute, whether a message was held for too long. Clients that send
# heartbeats must send one a second.
CONF = """
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {root}/broker.pem
ssl_options.certfile = {root}/broker.pem
ssl_options.keyfile = {root}/broker.key
ssl_options.verify = verify_none
default_user = {user}
default_pass = {password}
default_vhost = {vhost}
heartbeat = 1
consumer_timeout = 86400000
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = info
"""
ADVANCED = "[{rabbit, [{channel_tick_interval, 500}]}].\n"


def find_script() -> Path | None:
    """What starts a node, or None where RabbitMQ is not installed."""
    if SCRIPT.exists():
        return SCRIPT
    found = shutil.which("rabbitmq-server")
    return Path(found) if found is not None else None


class Epmd(Backend):
    """The port mapper of Erlang's nodes. A node would start one that stays."""

    name = "epmd"

    def command(self) -> list[str]:
        return ["epmd", "-address", "127.0.0.1", "-port", str(self.port)]


class RabbitMQ(Backend):
    """Runs until the block ends, also where a test has stopped or killed it."""

    name = "rabbitmq"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.tls_port, self._dist_port = free_port(), free_port()
        self._epmd = Epmd(root)
        self._node = f"aot{os.getpid()}-{self.port}@localhost"
        self._numbers = itertools.count()
        self._folder = root
        certificate(root, owner="broker", host="localhost")

    def __enter__(self) -> Self:
        try:
            self._epmd.start()
            self._epmd.wait()
            self.start()
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return self.url_with()

    def url_with(
        self, *, scheme: str = "amqp", host: str = "127.0.0.1", password: str = PASSWORD, vhost: str = VHOST
    ) -> str:
        port = self.tls_port if scheme == "amqps" else self.port
        return f"{scheme}://{USER}:{quote(password, safe='')}@{host}:{port}/{quote(vhost, safe='')}"

    @property
    def authority(self) -> Path:
        """The certificate to trust; it names `localhost`, and no address."""
        return self.root / "broker.pem"

    def command(self) -> list[str]:
        script = find_script()
        assert script is not None, "RabbitMQ is not installed"
        # Erlang makes a table of as many files as may be open: where that is a billion, it takes minutes.
        return ["sh", "-c", 'ulimit -n 1024 && exec "$0"', str(script)]

    def options(self) -> dict[str, Any]:
        return {"env": self._environ(), "cwd": self._folder}

    def start(self) -> None:
        """Start with empty directories: no queue, no message."""
        self._folder = self.root / f"node-{next(self._numbers)}"
        (self._folder / "log").mkdir(parents=True)
        settings = {"port": self.port, "tls_port": self.tls_port, "root": self.root, "user": USER}
        (self._folder / "rabbitmq.conf").write_text(CONF.format(**settings, password=PASSWORD, vhost=VHOST))
        (self._folder / "advanced.config").write_text(ADVANCED)
        (self._folder / "enabled_plugins").write_text("[].\n")
        super().start()

    def wait(self) -> None:
        """Until it takes connections; it opens its ports when everything else is up."""
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            gone = self.process is None or self.process.poll() is not None
            assert not gone and time.monotonic() < deadline, f"no RabbitMQ: {self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def restart(self) -> None:
        """Kill it, and start another in its place that has nothing."""
        self.kill()
        self.start()
        self.wait()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """During the block the kernel still takes what is sent to it, and nobody answers."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def consumer_timeout(self, seconds: float) -> Iterator[None]:
        """For channels that are opened in the block."""
        before = self.call("application", "get_env", "[rabbit, consumer_timeout]").removeprefix("{ok,").rstrip("}")
        self.call("application", "set_env", f"[rabbit, consumer_timeout, {round(seconds * 1000)}]")
        try:
            yield
        finally:
            self.call("application", "set_env", f"[rabbit, consumer_timeout, {before}]")

    def call(self, module: str, function: str, arguments: str = "[]") -> str:
        """What this function of the node answers, as Erlang writes it."""
        ask = f"io:format(\"~0p\", [rpc:call('{self._node}', {module}, {function}, {arguments})]), halt()."
        name = f"asks{os.getpid()}-{time.monotonic_ns()}@localhost"
        command = ["erl", "-sname", name, "-hidden", "-noinput", *LOOPBACK.split(), "-eval", ask]
        answer = subprocess.run(command, env=self._environ(), capture_output=True, text=True, timeout=60, check=True)
        assert not answer.stdout.startswith("{badrpc"), answer.stdout
        return answer.stdout

    def close(self) -> None:
        super().close()
        self._epmd.close()

    def _answers(self) -> bool:
        # A stranger's greeting is answered with the protocol's own; an open port alone may be one that is not ready.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"GET / HT")
            connection.settimeout(5)
            return connection.recv(4) == b"AMQP"
        return False

    def _environ(self) -> dict[str, str]:
        folder = self._folder
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),  # Erlang's cookie is there
            "LANG": "C.UTF-8",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd.port),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, instead of its parent
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": LOOPBACK,
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
