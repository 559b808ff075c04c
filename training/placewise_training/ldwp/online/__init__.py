"""LDWP's DQN learns on line: it follows a running service and publishes new bundles for its replicas."""
