"""The `knn` hook: kNN clauses with a text to encode or a `ttc` section.

In the order of a search: ``clauses`` (find, parse and replace them), ``search_client`` and ``batched_searches``
(searches of several retrievals in one `_msearch`), ``searched_indices`` (the encoder, and side indices),
``engine_search`` (the search interface of retrievers), ``side_index_search`` (the same for side indices), ``retrieval``
(one clause: encoder, method, deadline, fallback), ``ranked_documents`` (its result), ``stage`` (the searches of a
request).
"""
