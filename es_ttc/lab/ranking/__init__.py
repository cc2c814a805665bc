"""Ranking learned from judgements: the signals of judged queries, scored once, and what is fitted to them."""
