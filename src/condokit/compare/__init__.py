"""Which confounder values are compared, and how much each counts."""
