"""The gateway: an ASGI application in front of an engine."""
