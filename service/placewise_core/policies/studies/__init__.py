"""What else a decision might have placed: alternatives, and the decision of a shadow. On copies of a view."""
