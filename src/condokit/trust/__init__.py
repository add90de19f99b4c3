"""Whether the domains can be compared, what was changed, and how sure we are."""
