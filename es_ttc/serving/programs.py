"""Promoted programs in the gateway: they are read when it starts, and run in separate processes."""

from es_ttc.rescorers.programs import promoted
from es_ttc.sandbox.process_pool import ProgramLimits, ProgramProcessPool
from es_ttc.settings import GatewaySettings


def serve_programs(settings: GatewaySettings) -> ProgramProcessPool:
    """Serve the promoted programs of the settings, and return the pool that runs them; no process is started yet.

    Raises:
        ConfigurationError: A program differs from the promoted one, or this machine has no sandbox for programs.
    """
    host = ProgramProcessPool(
        ProgramLimits(
            seconds=settings.programs_seconds,
            memory_mb=settings.programs_memory_mb,
            processes=settings.programs_processes,
            filtered=not settings.programs_unfiltered,
        )
    )
    promoted.serve_from(settings.programs, host.program)
    if promoted.promoted():
        host.require()
    return host
