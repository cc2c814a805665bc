"""Features of documents: find, read, cache and decode them, and score documents with them.

In the order of a search: ``encoding`` (the query's vectors), ``attached`` (where the features are), ``index_encoders``
(the window's encoder), ``store`` and ``decoding`` (the features, read within ``read_budget``), ``columns`` (as arrays),
``scoring`` (the method), ``scores`` (request and result).
"""
