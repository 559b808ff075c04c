"""LDWP's DQN as the paper prints it, for the service: training, transfer to other nodes, export. Serves `ldwp-paper`."""
