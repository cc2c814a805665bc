"""Features of documents: find, read, cache and decode them, and score documents with them.

In the order of a search: ``encoding`` (the query's vectors), ``attached`` and ``keys`` (where the features are),
``reader`` (the features, from the ``cache`` or from the engine), ``columns``, ``window`` (the whole way to the scores),
``scores`` (request and result). Reads are bounded by ``read_budget`` and decoded by ``decoding``; ``index_meta`` and
``field_types`` say what indices contain.
"""
