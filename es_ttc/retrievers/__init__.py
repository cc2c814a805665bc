"""Retrievers: methods that find documents in the whole corpus by kNN searches; ``base`` has the contract."""
