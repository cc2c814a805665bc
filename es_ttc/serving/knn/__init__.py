"""The `knn` hook: kNN clauses with a text to encode or a `ttc` section.

In the order of a search: ``clauses`` (parse and replace them), ``retrieval`` (one clause: encoder, method, deadline,
fallback), ``retriever_search`` (the search interface of retrievers, over :mod:`es_ttc.serving.candidates`).
"""
