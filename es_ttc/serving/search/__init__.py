"""`_search`, `_msearch` and the templates of both: one pipeline for every request with something of ours.

In reading order: ``request`` (a request decoded once into searches), ``templates`` (what a template renders to),
``stage`` (the interface of everything that we do to a search), ``pipeline`` (stages, the engine, the response),
``engine`` (what the engine is asked in the caller's name), ``response`` (what the caller gets), ``fallback`` (budgets,
and one path from a failure to the engine's own ranking).
"""
