"""Reranking under a budget: strategies, expensive rerankers, and the neighbour graph in memory and in the engine."""
