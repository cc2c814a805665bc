"""NNN decoding over the whole corpus: the rescorer's problem with all documents as its dictionary."""

from es_ttc.retrievers.nnn.columns import CorpusSolution, SearchLimits, column_generation
from es_ttc.retrievers.nnn.retriever import NnnRetriever, NnnRetrieverParams

__all__ = ["CorpusSolution", "NnnRetriever", "NnnRetrieverParams", "SearchLimits", "column_generation"]
