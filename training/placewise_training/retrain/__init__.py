"""From the log of a running cluster to a judged candidate bundle, or to the reasons why there is none."""
