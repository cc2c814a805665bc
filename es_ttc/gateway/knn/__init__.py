"""The `knn` hook: kNN clauses whose text we encode, and those whose retrieval is ours.

From the request to the answer: ``clauses`` (found in a body, read, replaced), ``rounds`` (searches of several
retrievals as one request), ``engine_search`` (the means to search that retrievers get), ``retrieving`` (one clause:
encoder, method, deadline, fallback), ``handler`` (requests and answers).
"""
