"""Documents from outside the hits of a query: the nearest to some vectors, in a target, under the query's filters.

``filters`` (what such a document must match), ``targets`` (the encoder of a target's vectors, and its side indices),
``nearest`` (the search itself), ``batches`` (searches that are sent together). The ``knn`` hook, the candidates of a
window, the walk over a graph, and :mod:`es_ttc.serving.library` use it.
"""
