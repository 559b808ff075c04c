"""Off-policy evaluation: what another policy's decisions would have earned, from the log of the policy in force.

The estimand, everywhere in this folder: the mean `reward_h` if *one* decision were the candidate's and all others the
logging policy's. It says nothing of JCT, which depends on every decision at once.
"""
