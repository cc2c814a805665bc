"""The `knn` hook: kNN clauses whose text we encode, and those whose retrieval is ours.

From the request to the answer: ``clauses`` (found in a body, read, replaced), ``rounds`` and ``asking`` (searches of
several retrievals as one request), ``ground`` (what a clause searches), ``engine_search`` (the means to search that
retrievers get), ``attached_search`` (the same over side indices), ``retrieving`` (one clause: encoder, method,
deadline, fallback), ``stage`` (the searches of a request).
"""
