"""The one-call way: paired, recorded, gone on with."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from simeval import PolicyStep, Run, evaluate
from simeval.cli import main
from simeval.compare import compare
from simeval.errors import ConfigError, TraceError
from simeval.protocols import MonteCarlo, Setting
from simeval.score import score
from simeval.testing import ToyExpert, ToyGaussian, ToySimulator, toy_policies
from simeval.types import Start


def test_policies_are_evaluated_on_the_same_starts_and_noise() -> None:
    episodes = evaluate(ToySimulator(), toy_policies(), episodes=2, tasks=["reach-left"])
    assert [episode.rollout.policy for episode in episodes] == ["expert", "smoother", "gaussian"] * 2
    assert len({(episode.rollout.start, episode.rollout.seed) for episode in episodes}) == 2
    (one, *_) = evaluate(ToySimulator(), ToyExpert(), episodes=1, tasks=["reach-left"], horizon=3)
    assert (one.rollout.policy, one.length) == ("policy", 3)


def test_calling_again_with_more_episodes_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = evaluate(ToySimulator(), ToyExpert(), episodes=1, path=path)
    shards = sorted((path / "traces").iterdir())
    more = evaluate(ToySimulator(num_slots=2), ToyExpert(), episodes=2, path=path)
    assert {episode.id for episode in first} < {episode.id for episode in more} == set(Run(path).requested)
    assert set(shards) < set((path / "traces").iterdir())
    with pytest.raises(TraceError, match="policy 'policy'"):
        evaluate(ToySimulator(), ToyGaussian(), episodes=2, path=path)


class _Interrupted(ToyExpert):
    """Stopped by its user, as it were, when it has acted so often."""

    left = 60

    def act(self, *args: Any) -> PolicyStep:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().act(*args)


def test_an_interrupted_run_is_not_scored_as_if_it_were_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        evaluate(ToySimulator(), _Interrupted(), episodes=20, tasks=["reach-left"], path=path)
    run = Run(path)
    assert 0 < len(run) < 20
    assert run.unfinished == f"{len(run)} of 20 rollouts"
    assert score(run)["headline"].startswith(f"This run is not finished: {len(run)} of 20 rollouts are there")
    whole = tmp_path / "whole"
    evaluate(ToySimulator(), ToyExpert(), episodes=20, tasks=["reach-left"], path=whole)
    assert Run(whole).unfinished is None
    assert "unfinished" not in score(Run(whole))
    assert "go on by calling evaluate again with path=" in score(run)["headline"]
    assert set(compare(run, Run(whole))["unfinished"]) == {"a"}
    leftover = path / ".run.json.1.tmp"
    leftover.write_text("{")  # of a process that was killed while it wrote
    monkeypatch.setattr(_Interrupted, "left", 10**6)
    evaluate(ToySimulator(), _Interrupted(), episodes=20, tasks=["reach-left"], path=path)
    assert Run(path).unfinished is None
    assert not leftover.exists()


def test_two_runs_of_one_study_do_not_differ_in_when_and_how_long_they_ran(tmp_path: Path) -> None:
    for name, episodes in (("a", 1), ("b", 2)):
        evaluate(ToySimulator(), ToyExpert(), episodes=episodes, tasks=["reach-left"], path=tmp_path / name)
        (tmp_path / name / "run.json").write_text(
            (tmp_path / name / "run.json").read_text().replace('"ended": "2', f'"ended": "{episodes}')
        )
    assert compare(Run(tmp_path / "a"), Run(tmp_path / "b"))["differences"] == []


def test_a_policy_is_known_by_its_parameters(tmp_path: Path) -> None:
    assert ToyGaussian(0.4).fingerprint != ToyGaussian(0.5).fingerprint
    assert ToyGaussian(0.4).fingerprint == ToyGaussian(0.4).fingerprint
    evaluate(ToySimulator(), ToyGaussian(0.4), episodes=1, path=tmp_path / "run")
    with pytest.raises(TraceError, match=r"0\.4.*0\.5"):
        evaluate(ToySimulator(), ToyGaussian(0.5), episodes=1, path=tmp_path / "run")
    with pytest.raises(TraceError, match="horizon was None and is 20"):
        evaluate(ToySimulator(), ToyGaussian(0.4), episodes=1, path=tmp_path / "run", horizon=20)


def test_bad_arguments_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean push-left"):
        evaluate(ToySimulator(), ToyExpert(), episodes=1, tasks=["pushleft"], path=tmp_path / "run")
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(ToySimulator(), ToyExpert(), episodes=0, path=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_command_line_reads_such_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    path = str(tmp_path / "run")
    evaluate(ToySimulator(), toy_policies(), episodes=2, path=path)
    assert main(["score", path]) == 0
    assert main(["report", path, "--videos", "1"]) == 0
    assert "does not say how its World is built" in capsys.readouterr().out
    assert main(["export", path, "--to", "minari", "--output", "toy/run-v0"]) == 0


def test_starts_are_drawn_as_far_as_they_are_asked_for_and_no_further() -> None:
    world = ToySimulator(1)
    setting = Setting({"toy": world}, {"toy": ["expert"]}, 0)

    def begun(episodes: int) -> list[Start]:
        return [rollout.start for (rollout,) in islice(MonteCarlo(episodes, world.tasks[:1]).rounds(setting), 200)]

    assert begun(10**12) == begun(200) == world.starts(world.tasks[0], 200, 0)
