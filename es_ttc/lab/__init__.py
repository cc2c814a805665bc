"""Research on real collections: evaluation, training, the search for programs, and the demo."""
