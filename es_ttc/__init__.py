"""es-ttc: better ranking for an Elasticsearch or OpenSearch index, by test-time compute on a frozen encoder."""

from importlib.metadata import version

__version__ = version("es-ttc")
