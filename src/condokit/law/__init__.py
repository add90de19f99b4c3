"""The default of diagonal maps: one law given the confounders, and a map for each domain."""
