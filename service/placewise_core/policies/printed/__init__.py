"""Learned policies as their papers print them, from the papers' inputs alone."""
