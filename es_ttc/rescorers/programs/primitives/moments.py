"""Statistics of a sample of queries, under the name that programs import."""

from es_ttc.vectors.moments import Moments

__all__ = ["Moments"]
