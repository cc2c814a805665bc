"""An OpenSearch node of the package's own: fetched once, started as a plain process, no container needed.

`process.start` gives a running node, `process.stop` ends one, `report.reports` tells which there are.
"""
