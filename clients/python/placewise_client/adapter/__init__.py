"""One skeleton for every scheduler adapter: watch → ask → apply → report.

A new adapter implements `NativeScheduler` and runs `AdapterLoop`; one that is called by its scheduler (an extender)
holds a `Decider` and an `OutcomeReporter` and has no loop of its own. Both run the same conformance suite.
"""
