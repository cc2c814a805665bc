"""Learning from an index's query log: adapters of the encoder, taught by judgements, clicks or blend's own rankings."""
