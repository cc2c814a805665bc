"""What an agent may ask, as a server of the Model Context Protocol over standard input and output or over HTTP.

The tools list indices, search, read documents, and explain a document's rank. Every request is a standard one to the
gateway, with the caller's credentials, and only reads.
"""

from es_ttc.agents.server import make_server

__all__ = ["make_server"]
