"""Proposers of programs: the grammar, a language model, or a recording."""
