"""Placement policies: one file per policy, behind the Protocol in gang/policy.py; `registry.py` names them."""
