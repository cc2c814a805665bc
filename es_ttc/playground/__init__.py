"""The playground: a page, served by the gateway, to search, compare methods and judge results."""

from es_ttc.playground.routes import playground_routes

__all__ = ["playground_routes"]
