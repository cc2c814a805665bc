"""The `rescore` hook: the first pass of a search in a method's order.

In the order of a search: ``plan`` (the request, parsed), ``candidates`` (documents that join the window, over
:mod:`es_ttc.serving.candidates`), ``window`` (scores and order), ``page``, ``relevance`` and ``collapse`` (the page),
``two_requests`` (the page's hits in a second request), ``evidence`` (where hits match). Strategies are in
:mod:`es_ttc.serving.strategies`.
"""
