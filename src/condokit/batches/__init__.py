"""Many batches: which can be compared, one map for each, and what to measure next."""
