"""Placement policies: one file per policy, behind the Protocol in policy.py; `registry.py` names them."""
