"""The ``es-ttc`` command: one module a command, put together in :mod:`es_ttc.cli.app`."""

from es_ttc.cli.app import main

__all__ = ["main"]
