"""Canaries tell one physics from another, in plain words."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simeval.cli import main
from simeval.cli.canary import Canary, compare, play, play_apart, read, shipped, write
from simeval.errors import ConfigError, MissingPackageError, SimevalError

TABLETOP = next(canary for canary in shipped() if canary.name == "tabletop")


def off(canary: Canary, gap: float) -> Canary:
    first, *rest = canary.state
    return replace(canary, state=(first + gap, *rest))


def test_every_canary_that_ships_was_played_to_its_end() -> None:
    assert {"tabletop", "metaworld", "robosuite", "gymnasium"} <= {canary.name for canary in shipped()}
    names = {"robotics", "dm_control", "ogbench", "pusht", "libero", "balls", "arm"}
    assert names <= {canary.name for canary in shipped()}
    for canary in shipped():
        assert len(canary.state) > 5
        assert "mujoco" in canary.versions or canary.name in ("pusht", "balls")


def test_the_physics_tested_is_the_one_recorded() -> None:
    finding = compare(TABLETOP)
    assert finding.verdict in ("same", "rounding"), finding.text


def test_a_canary_is_a_function_of_its_settings() -> None:
    assert play(TABLETOP) == play(TABLETOP) == play_apart(TABLETOP)
    assert play(replace(TABLETOP, steps=TABLETOP.steps - 1)).state != play(TABLETOP).state


def test_equal_versions_that_behave_otherwise_are_said_to_be_equal() -> None:
    played = play(TABLETOP)
    assert "the versions are the same" in compare(off(played, 1.0), lambda _: played).text


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "same"), (1e-12, "rounding"), (1e-6, "slight"), (1e-4, "differs")])
def test_a_gap_is_named_for_what_it_is(gap: float, verdict: str) -> None:
    played = play(TABLETOP)
    theirs = replace(played, versions=f"{played.versions.replace('mujoco=', 'mujoco=0.')} _Settings(robots=None)")
    finding = compare(off(theirs, gap), lambda _: played)
    assert finding.verdict == verdict
    if verdict == "differs":
        assert "recorded with mujoco 0." in finding.text
        assert "Scores made here compare with scores made here only" in finding.text
    if verdict == "slight":
        assert "exact and repeatable here" in finding.text
    if verdict != "same":
        assert "_Settings" not in finding.text
        assert "_Settings" in finding.detail


@pytest.mark.parametrize(("gap", "code", "mark"), [(1e-6, 0, "≈"), (0.5, 1, "✗")])
def test_doctor_marks_a_slight_deviation_in_the_middle_and_dumps_internals_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gap: float, code: int, mark: str
) -> None:
    played = replace(TABLETOP, versions=f"{TABLETOP.versions} _Settings(robots=None)")
    monkeypatch.setattr("simeval.cli.doctor.shipped", lambda: [off(played, gap)])
    monkeypatch.setattr("simeval.cli.doctor.compare", lambda canary: compare(canary, lambda _: played))
    monkeypatch.setattr("simeval.cli.doctor._ITEMS", ())
    monkeypatch.setattr("simeval.cli.doctor._renders", lambda: (True, ""))
    for debug in (False, True):
        assert main(["doctor", *["--debug"] * debug]) == code
        (row,) = [line for line in capsys.readouterr().out.partition("physics")[2].split("\n\n") if "tabletop" in line]
        assert mark in row
        assert ("_Settings" in row) == debug


def test_other_observations_and_broken_or_absent_simulators_are_told_apart() -> None:
    def breaks(canary: Canary) -> Canary:
        raise SimevalError("it fell over")

    def lacks(canary: Canary) -> Canary:
        raise MissingPackageError("a suite", "simeval[suite]")

    assert compare(replace(TABLETOP, state=(1.0, 2.0)), play).verdict == "differs"
    assert compare(TABLETOP, breaks).verdict == "broken"
    absent = compare(TABLETOP, lacks)
    assert absent.verdict == "absent"
    assert "pip install simeval[suite]" in absent.text


def test_an_interpreter_that_was_not_made_is_absent_and_says_how_to_make_it() -> None:
    finding = compare(replace(TABLETOP, settings=("world=libero", "world.host.python=/nowhere/python")))
    assert finding.verdict == "absent"
    assert "make libero" in finding.text


def test_a_simulator_that_takes_its_process_along_breaks_its_canary_alone(tmp_path: Path) -> None:
    finding = compare(replace(TABLETOP, settings=("world=tabletop", "world._target_=os.abort")))
    assert finding.verdict == "broken"


@pytest.mark.slow
def test_doctor_compares_with_a_file_of_another_installation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "theirs.json"
    write(path, [off(play(TABLETOP), 0.5)])
    assert main(["doctor", "--canaries", str(path)]) == 1
    assert "the physics of this installation differs" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    own = tmp_path / "ours.json"
    assert main(["doctor", "--canaries", str(path), "--record", str(own)]) == 0
    assert read(own) == [play(TABLETOP)]
    assert main(["doctor", "--canaries", str(path), "--record", str(own)]) == 2  # nothing is overwritten


@pytest.mark.parametrize("text", ["", "{}", '{"format": "simeval-canaries/1", "canaries": [{"name": "x"}]}', "[1]"])
def test_a_file_that_holds_no_canaries_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "canaries.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="canar"):
        read(path)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("name", 3),
        ("task", None),
        ("versions", ["mujoco"]),
        ("steps", "many"),
        ("state", "0.5"),
        ("state", [[1.0]]),
        ("settings", "world=tabletop"),
        ("more", 1),
    ],
)
def test_a_canary_with_an_entry_of_another_type_is_refused(tmp_path: Path, entry: str, value: object) -> None:
    path = tmp_path / "canaries.json"
    write(path, [TABLETOP])
    content = json.loads(path.read_text())
    content["canaries"][0][entry] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="a canary cannot be read"):
        read(path)


def test_canaries_survive_their_file(tmp_path: Path) -> None:
    write(tmp_path / "c.json", [TABLETOP])
    assert read(tmp_path / "c.json") == [TABLETOP]
    assert json.loads((tmp_path / "c.json").read_text())["canaries"][0]["task"] == TABLETOP.task
