"""Rankings of several signals: `blend`, the default method, and `hybrid`, the fusion of words and vectors alone."""

from es_ttc.rescorers.blend.hybrid import HybridRescorer
from es_ttc.rescorers.blend.rescorer import BlendRescorer

__all__ = ["BlendRescorer", "HybridRescorer"]
