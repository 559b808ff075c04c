"""What schedulers call: kube-scheduler's extender and Volcano's."""
