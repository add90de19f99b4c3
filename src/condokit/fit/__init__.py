"""From domains to a map: what "auto" stands for, one fit, its errors and its pull."""
