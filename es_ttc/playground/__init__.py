"""The playground: a page, served by the gateway, to search, compare methods and judge results."""

from starlette.routing import BaseRoute

from es_ttc.playground.judging_api import JudgingApi
from es_ttc.playground.pages import page_routes
from es_ttc.serving.gateway import Gateway


def playground_routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes of the page and of what only the page uses; none where the setting `ui` is off."""
    if not gateway.settings.ui:
        return []
    return [*page_routes(), *JudgingApi(gateway).routes()]
