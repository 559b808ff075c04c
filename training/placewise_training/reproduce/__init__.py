"""`placewise reproduce PAPER`: every figure and table of a paper's evaluation, run here, beside the paper's claims.

How a reproduction is built
---------------------------
A *paper* is a set of *experiments* (one per figure or table) and a list of *claims* about their results.

* `design.Experiment` is a grid settings × methods. Its `trial(setting, method, seed)` does one run and returns an
  `Outcome`: numbers by metric name, and the curves of a figure. Trials of equal seed are paired: a trial must
  give every method the same jobs, noise and faults. A method that cannot run yet raises `NeedsBundleError`.
* `runner.run` goes over all experiments once per seed, so that an interruption leaves every figure with fewer seeds
  rather than half of the figures. The results of an interrupted run are marked partial.
* `results.Results` holds the outcomes: means with 95 % intervals over seeds (Student's t), and changes paired by seed.
* `claims.Claim` is one sentence of the paper with its number and a judge: a function of the results that returns a
  verdict (reproduced, partly, not reproduced, needs a bundle, not measured) with our number and the reason.
* `report` prints and `plots` draws from the JSON alone. `document` writes docs/reproduction.md: figures from the JSON,
  the words of claims and verdicts from the code.

How to add a paper
------------------
1. Write `reproduce/<name>.py` with `def paper(is_quick: bool) -> Paper`. Quick is the same grid, smaller: all of it
   must end within a minute on one core, so keep one round (all experiments, one seed) under 15 s.
2. Name it in `registry.PAPERS`.
3. Claims first: write down the paper's sentences, with their numbers, before there are results. A judge never sees more
   than the results, and `claims.judge_change` covers most: it calls a claim reproduced if the mean is at least as
   good as the paper's and the interval excludes no change, partly if only the direction is certain.
4. `placewise reproduce <name> --out docs/reproduction`, look at every plot, then `placewise reproduce docs`.

All judgements are made on the truth `judge` (sim/truths.py); policies only ever see the bundle's models.
"""
