"""Joins the exported decisions with their outcomes in a bounded amount of memory."""
