"""How the YARN adapter, whose code is Java inside the ResourceManager, stands to each case of the conformance suite.

A case is shown by a test on a real YARN, in which a driver plays the ApplicationMasters and a spoilt way the service
(`make e2e-yarn`), or by one of the jar's own tests. The others have the reason for which there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

E2E, FAULTS, LIMITS = (f"tests/e2e/yarn/test_yarn_{name}.py" for name in ("e2e", "faults", "limits"))
_JARS = "clients/yarn/src/test/java/placewise/yarn"
BROKER = f"{_JARS}/BrokerTest.java"
BOOKS = f"{_JARS}/BooksTest.java"
ASKER = f"{_JARS}/ConformanceTest.java"
_UNDER_CONTENTION = f"{E2E}::test_mixed_gangs_run_as_decided_under_contention"
_KILLED = f"{E2E}::test_twenty_gangs_and_service_killed"
_DOWN = f"{E2E}::test_gangs_go_on_when_the_service_does_not"
_WRONG = f"{FAULTS}::test_a_wrong_answer_releases_the_new_gangs_alone"
_HUNG = f"{FAULTS}::test_service_that_hangs_three_times_releases_no_held_gang"
_RESTARTED = f"{FAULTS}::test_the_resource_manager_killed_between_decision_and_allocation"
_LOST = f"{FAULTS}::test_node_lost_while_gangs_run_and_wait"
_DRAINED = f"{FAULTS}::test_node_decommissioned_while_gangs_run_and_wait"
_MASTER = f"{FAULTS}::test_application_master_killed"
_CANCELLED = f"{FAULTS}::test_application_killed_while_held"

_INSIDE = "the adapter is part of the ResourceManager: it neither loses sight of it nor restarts without it"
_NO_UPDATE = "the adapter changes nothing at YARN: it refuses nodes, and a call in the same process is not lost"
_GATE = "the gate lets a container of a decided gang go to its decided node alone"

_SINGLY = "a dry run decides each gang and lets it go: those that start later say so one by one"

SHOWN: Mapping[str, str] = {
    "test_a_gang_runs_exactly_where_the_service_said": _UNDER_CONTENTION,
    "test_nothing_is_given_out_twice": _UNDER_CONTENTION,
    "test_a_gang_that_must_wait_waits_and_starts_when_it_is_admitted": _UNDER_CONTENTION,
    "test_a_job_that_ends_makes_room_at_once": _UNDER_CONTENTION,
    "test_other_jobs_are_reported_and_never_touched": _UNDER_CONTENTION,
    "test_service_away_releases_after_the_configured_time": _KILLED,
    "test_a_service_that_hangs_is_given_up_within_the_budget": _HUNG,
    "test_errors_of_the_service_never_end_the_adapter": _WRONG,
    "test_after_an_outage_the_service_is_told_everything_again": _KILLED,
    "test_outcomes_join_their_decision": _UNDER_CONTENTION,
    "test_cancelled_before_it_starts_frees_what_was_reserved": _CANCELLED,
    "test_a_node_drained_before_the_start_is_left_for_another": _DRAINED,
    "test_restart_leaves_running_jobs_alone_and_joins_their_end": _RESTARTED,
    "test_restart_tells_no_start_and_end_twice": _RESTARTED,
    "test_restart_tells_an_end_that_came_meanwhile": _RESTARTED,
    "test_restart_between_decision_and_start_keeps_the_decision": _RESTARTED,
    "test_dry_run_only_releases": f"{E2E}::test_a_dry_run_holds_nothing_and_agrees_seldom",
    "test_a_gang_that_is_queued_again_is_a_new_question": _MASTER,
    "test_a_node_that_is_lost_takes_no_gang_until_it_is_back": _LOST,
    "test_what_the_host_says_twice_is_reported_once": f"{FAULTS}::test_two_resource_managers_take_turns",
    "test_an_admission_without_a_place_for_every_task_starts_nothing": _WRONG,
    "test_a_gang_that_gets_no_place_with_its_admission_is_released_in_the_end": _WRONG,
    "test_a_place_on_a_node_that_the_host_does_not_have_is_decided_again": _WRONG,
    "test_a_gang_that_ran_as_decided_is_told_by_its_start_and_end": _UNDER_CONTENTION,
    "test_every_job_has_its_user": f"{BROKER}::aQuestionNamesTheUserOfTheApplication",
    "test_what_others_run_is_told_with_its_resources": _KILLED,
    "test_a_placement_that_is_taken_back_says_why": f"{BROKER}::aWithdrawnGangSaysWhy",
    "test_a_gang_that_is_left_to_the_host_says_why": f"{BOOKS}::containersOfAGangThatWasLeftToYarnSayWhy",
    "test_what_can_never_fit_is_left_to_the_host": f"{ASKER}::whatCanNeverFitIsLeftToYarn",
    "test_a_lost_answer_is_heard_again_and_not_decided_again": (
        f"{ASKER}::aLostAnswerForAGangThatIsHeldIsAskedForAgainByTheSameName"
    ),
    "test_a_lost_answer_for_a_job_less_is_another_question": f"{ASKER}::aLostAnswerForAGangLessIsAskedForWithoutIt",
    "test_a_lost_question_is_not_asked_again_for_a_released_job": (
        f"{ASKER}::aGangThatWasReleasedIsNotAskedAboutAgain"
    ),
    "test_a_job_the_service_cannot_read_holds_up_no_other": f"{ASKER}::aGangThatTheServiceCannotReadHoldsUpNoOther",
    "test_an_event_the_service_cannot_read_loses_no_other": f"{ASKER}::anEventThatTheServiceCannotReadLosesNoOther",
    "test_a_node_the_service_refuses_is_left_out_alone": f"{ASKER}::aNodeThatTheServiceCannotReadIsLeftOutAlone",
    "test_cancelled_while_the_service_decides_is_not_started": (
        f"{ASKER}::aGangThatIsCancelledWhileTheServiceDecidesIsNotStarted"
    ),
    "test_a_gang_that_shrinks_while_it_waits_is_decided_as_it_is_then": (
        f"{ASKER}::aGangThatShrinksWhileItWaitsIsDecidedAsItIsThen"
    ),
}

NOT_HERE: Mapping[str, str] = {
    "test_admission_by_fifo_and_place_are_one_question_and_an_admission_is_kept": (
        "admission and place are one question each time it asks (ConformanceTest): the service keeps an admission"
    ),
    "test_looking_again_changes_nothing": "it does not look: YARN tells it of each ask and each container once",
    "test_applying_twice_is_applying_once": _NO_UPDATE,
    "test_the_host_away_is_survived": _INSIDE,
    "test_what_somebody_took_since_the_decision_is_not_used_twice": (
        "YARN's own scheduler allocates each container, and never more than a node has"
    ),
    "test_restart_between_answer_and_apply_uses_the_reservation": _INSIDE,
    "test_a_job_that_ended_while_the_adapter_was_away_is_reported": _INSIDE,
    "test_a_gang_that_the_host_starts_elsewhere_is_reported_where_it_runs": _GATE,
    "test_a_start_elsewhere_says_so": _GATE,
    "test_a_gang_that_the_host_starts_while_it_waits_is_left_alone": _GATE,
    "test_a_running_gang_that_the_host_forgets_is_over": _INSIDE,
    "test_a_placed_gang_that_the_host_forgets_holds_nothing": _INSIDE,
    "test_news_that_did_not_come_are_seen_at_the_next_complete_look": _INSIDE,
    "test_a_start_and_an_end_between_two_looks_are_both_reported": _INSIDE,
    "test_what_cannot_be_read_holds_up_nothing_else": "YARN hands it objects of its own: it reads no text",
    "test_a_node_that_holds_more_than_it_has_takes_no_gang": (
        "YARN's own scheduler allocates each container, and never more than a node has"
    ),
    "test_a_change_that_the_host_refuses_is_decided_again": _NO_UPDATE,
    "test_a_change_whose_answer_is_lost_is_made_once": _NO_UPDATE,
    "test_a_gang_of_a_dry_run_is_told_as_the_host_ran_it": _SINGLY,
}
