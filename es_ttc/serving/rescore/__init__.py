"""The `rescore` hook: the first pass of a search put into a method's order.

From the request to the response: ``stage`` (a search with our section: taken apart, asked for, completed), ``window``
(a window of hits scored and put in order). Methods that look beyond the window are in :mod:`es_ttc.serving.adaptive`.
"""
