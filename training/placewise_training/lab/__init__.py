"""Tools that every trainer shares: export, device, scalars, model cards, comparisons of policies."""
