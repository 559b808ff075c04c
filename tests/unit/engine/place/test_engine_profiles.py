"""An answer names the throughput profile behind its speed if that is assumed."""

from tests.fakes.cluster import make_job
from tests.fakes.engine import ask_place, place, running_engine


async def test_a_placement_names_the_profile_that_its_speed_is_assumed_from() -> None:
    async with running_engine() as engine:
        (decided,) = (await ask_place(engine, place(make_job("a"), is_dry_run=True))).decisions
        assert decided.predicted_speed > 0
        assert decided.profile_model == "ResNet50@T4", "the nodes have V100"


async def test_a_declared_time_on_one_gpu_assumes_no_profile() -> None:
    async with running_engine() as engine:
        declared = make_job("a", single_gpu_s=100.0, total_epochs=10.0)
        (decided,) = (await ask_place(engine, place(declared, is_dry_run=True))).decisions
        assert (decided.predicted_speed, decided.profile_model) == (0.1, "")


async def test_a_repeated_answer_names_it_again_and_a_refusal_none() -> None:
    async with running_engine(nodes=1) as engine:
        asked = place(make_job("a"), make_job("large", workers=9), request_id="r")
        first, again = await ask_place(engine, asked), await ask_place(engine, asked)
        assert [each.profile_model for each in first.decisions] == ["ResNet50@T4", ""]
        assert again.meta.is_repeated
        assert [each.profile_model for each in again.decisions] == ["ResNet50@T4", ""]


async def test_asking_again_about_a_job_that_holds_its_place_names_none() -> None:
    async with running_engine() as engine:
        await ask_place(engine, place(make_job("a")))
        (held,) = (await ask_place(engine, place(make_job("a")))).decisions
        assert held.profile_model == "", "its speed is the one it reports"
