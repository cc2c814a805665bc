"""Judgements of searches: pools of documents, grades by people and models, agreement, and what they say of methods."""
