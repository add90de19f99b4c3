"""The pooled likelihood of a diagonal map: one law for reference and mapped query rows."""
