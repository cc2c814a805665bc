"""Features of documents: find, read, cache and decode them, and score documents with them.

In the order of a search: ``encoding`` (the query's vectors), ``attached`` and ``keys`` (where the features are),
``store`` (the features, as columns), ``window`` (the whole way to the scores), ``scores`` (request and result). What
the ``cache`` lacks is read by ``reader`` within ``read_budget`` and decoded by ``decoding``; ``index_meta`` and
``field_types`` say what indices contain.
"""
