"""Other placements of a decision: its alternatives and the decision of a shadow. On copies of a view."""
