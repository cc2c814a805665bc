"""What the playground adds to a gateway."""

from starlette.routing import BaseRoute

from es_ttc.playground.pages import page_routes
from es_ttc.serving.app import Services
from es_ttc.settings import GatewaySettings


def playground_routes(settings: GatewaySettings, services: Services) -> list[BaseRoute]:  # noqa: ARG001
    """Return the routes of the page and of what only the page uses; none where the setting `ui` is off.

    Args:
        settings: The gateway's settings.
        services: What the gateway's parts share: the engine, encoders, metrics.
    """
    if not settings.ui:
        return []
    return [*page_routes()]
