"""The `knn` hook: kNN clauses with a text to encode or a `ttc` section.

In the order of a search: ``clauses`` (parse and replace them), ``retrieval`` (one clause: encoder, method, deadline,
fallback), ``searched_indices`` (the encoder, and side indices), ``engine_search`` (the search interface of retrievers),
``searches`` (bodies of kNN searches, and sending those of several retrievals in one `_msearch`).
"""
