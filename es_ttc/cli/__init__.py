"""The ``es-ttc`` command: one module for each command, combined in :mod:`es_ttc.cli.app`."""

from es_ttc.cli.app import main

__all__ = ["main"]
