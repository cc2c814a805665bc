"""A process of `es-ttc serve` that answers requests; :mod:`~es_ttc.serving.supervisor` starts it."""

import pickle
import pkgutil
import socket
import sys
from contextlib import suppress

from es_ttc.common.parent_process import end_with_input
from es_ttc.errors import EsTtcError
from es_ttc.serving.app import create_app
from es_ttc.serving.http.raw_request import MAX_BODY
from es_ttc.serving.logs import configure_logs, log
from es_ttc.serving.process import WorkerProcess, open_states
from es_ttc.serving.server import server_of
from es_ttc.settings import GatewaySettings


def worker_settings(settings: GatewaySettings) -> GatewaySettings:
    """Return the settings of one of several workers: its part of all limits and budgets."""
    count = settings.workers
    parts = {
        "max_connections": max(1, settings.max_connections // count),
        "max_concurrent_requests": max(1, settings.max_concurrent_requests // count),
        "max_buffered_mb": max(MAX_BODY // 2**20, settings.max_buffered_mb // count),
        "feature_cache_mb": settings.feature_cache_mb // count,
        "on_demand_share": settings.on_demand_share / count,
        "on_demand_queue": max(1, settings.on_demand_queue // count),
    }
    return settings.model_copy(update=parts)


def main() -> None:
    """Answer requests, with the file descriptor of the socket and the place of the state; settings are the input."""
    listening, slot = map(int, sys.argv[1:])
    settings, _, further = pickle.load(sys.stdin.buffer)  # noqa: S301 - by the parent process
    end_with_input()
    configure_logs()
    own = worker_settings(settings)
    process = WorkerProcess(open_states(), slot, settings.workers)
    try:
        routes = pkgutil.resolve_name(further)
        app = create_app(own, wait_for_encoder=process.replaces_another, process=process, further=routes)
        server = server_of(app, own, process=process)
    except EsTtcError as error:
        log.error("worker cannot start", problem=str(error))
        sys.exit(1)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it has ended for
        server.run(sockets=[socket.socket(fileno=listening)])


if __name__ == "__main__":
    main()
