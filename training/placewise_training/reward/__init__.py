"""Harmony's reward model: from the places of jobs to their speeds."""
