"""The `rescore` hook: the first pass of a search in a method's order.

In the order of a search: ``plan`` (the request, parsed), ``stage`` (the searches of a request), ``candidates``
(documents that join the window), ``window`` (scores and order), ``page`` and ``collapse`` (the page), ``two_requests``
(the page's hits in a second request), ``response`` (the result). Strategies are in :mod:`es_ttc.serving.adaptive`.
"""
