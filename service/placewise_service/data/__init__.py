"""Files shipped with the service: the cut of the Philly trace and the demo inventory. Their licences: README.md."""

from importlib.resources import files
from pathlib import Path

PHILLY_CUT = Path(str(files(__name__).joinpath("philly_cut.csv")))
DEMO_INVENTORY = Path(str(files(__name__).joinpath("demo.yaml")))
