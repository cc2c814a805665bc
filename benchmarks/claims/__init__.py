"""The claims of the five papers, each with a verdict and what it rests on.

``spectral``, ``nnn``, ``programs``, ``sira`` and ``rgs`` list the claims of one paper each; ``model`` has their form;
``page`` renders them. `python -m benchmarks.reproduce` runs them.
"""
