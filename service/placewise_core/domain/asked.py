"""Questions about jobs as the decision log links them: which decision admitted a job, which Place was first."""

import enum

from placewise_core.basics.frozen import frozen


class Asked(enum.StrEnum):
    ADMITTED = "admit"
    WAITS = "wait"
    PLACED = "place"


@frozen
class AskedJob:
    """One answer about a job, by a decision. `refusal` stands for all that a WAIT says about its jobs and why."""

    kind: Asked
    job: str
    decision: str
    refusal: str = ""


@frozen
class JobLinks:
    """Decisions about a job: the AdmitOrWait that admitted it, the first Place that asked about it, the last WAIT if it
    said the same, the first AdmitOrWait that asked about it before; "" for none."""

    admit_decision: str
    first_place: str
    refused: str = ""
    first_admit: str = ""
