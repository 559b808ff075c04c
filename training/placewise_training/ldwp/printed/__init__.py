"""LDWP's DQN as the paper prints it, for `ldwp-paper`: training, transfer to other nodes, export."""
