"""The pooled conditional likelihood of diagonal maps, and priors that features share."""
