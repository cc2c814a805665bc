"""Structured logs: JSON lines, or colours on a terminal. They contain no body, query string or credential."""

import logging
import os
import sys
from typing import TextIO

import structlog

log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("es_ttc.gateway")


class _WholeLines(logging.StreamHandler[TextIO]):
    """Writes a record by one call, so that records of several processes do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.flush()
            os.write(self.stream.fileno(), (self.format(record) + self.terminator).encode(errors="backslashreplace"))
        except (AttributeError, OSError, ValueError):  # no file, as in tests
            super().emit(record)


def configure_logs(level: int = logging.INFO) -> None:
    """Send all logs to standard error, from the lowest level that is logged: coloured on a terminal, else as JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _WholeLines()
    handler.setLevel(level)  # a library may have set its own logger to a lower level
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for client in (
        "elastic_transport",
        "opensearch",
    ):  # the command reports its requests' errors
        logging.getLogger(client).setLevel(max(level, logging.ERROR))
