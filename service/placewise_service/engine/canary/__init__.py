"""A canary: a bundle that answers a share of the jobs, until it is promoted or a guard ends it."""
