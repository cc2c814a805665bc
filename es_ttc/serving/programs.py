"""Promoted programs in the gateway: read when it starts, run in processes of their own."""

from es_ttc.rescorers.programs import promoted
from es_ttc.sandbox.process_pool import ProgramLimits, ProgramProcessPool
from es_ttc.settings import GatewaySettings


def serve_programs(settings: GatewaySettings) -> ProgramProcessPool:
    """Serve the promoted programs of the settings, and return what runs them; nothing is started yet.

    Raises:
        ConfigurationError: A program is not what was promoted, or this machine cannot wall programs in.
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
