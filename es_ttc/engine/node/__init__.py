"""An embedded OpenSearch node: downloaded once, started as a process, without a container.

`process.start` returns a running node, `process.stop` ends one, `report.reports` lists them.
"""
