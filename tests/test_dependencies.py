"""The direction of dependencies, read from the imports: who may import whom is the table below, and nothing else."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = {
    "simeval": set(),
    "envs": {"simeval"},
    "learning": {"simeval"},
    "worldmodels": {"simeval", "learning"},
    "policies": {"simeval", "learning"},
    "judges": {"simeval", "learning"},
}
"""Package -> the packages of this project that it may import beside itself; configs and tests are nobody's."""

LAYERS = {
    # layer of simeval: its modules                                        layers it may import beside itself
    "data": ("errors declared noise codec conventions types settings versions", ""),
    "numbers": ("metrics stats latency interaction agreement", "data"),
    "contract": ("world wrappers simulator policy matching perturbation axes", "data"),
    "trace": (
        "content heap tape episode index shard shard_reader shard_source trace reader provenance folder store video "
        "films judge verdicts",
        "data numbers",
    ),
    "scores": (
        "arms audit outcomes summaries pairing score compare differences verdict wording timing tables "
        "matched_analysis matched_words matched_tables recovery_analysis fidelity_analysis judge_analysis judge_tables",
        "data numbers trace",
    ),
    "engine": ("schedule lane guard stage rollout", "data numbers contract trace"),
    "designs": ("protocols filming evaluation matched allocation recovery fidelity", "data contract trace engine"),
    "outside": ("vector sb3", "data contract"),
    "learning": ("training", "data contract trace"),
    "host": ("host", "data contract"),
    "serving": ("serve", "data contract"),
    "testing": ("testing", "data numbers contract trace engine designs"),
    "report": ("report export", "data numbers trace scores"),
    "face": ("__init__", "data numbers contract trace scores engine designs outside host"),
    "cli": (
        "cli __main__",
        "data numbers contract trace scores engine designs outside learning host serving testing report face",
    ),
}

NEVER = {
    *("torch", "mujoco", "robosuite", "metaworld", "diffusers", "libero"),
    *("gymnasium_robotics", "dm_control", "ogbench", "gym_pusht"),
}
"""What simeval never imports."""

ONLY_IN = {"hydra": "cli", "omegaconf": "cli", "stable_baselines3": "sb3"}
"""What one module of simeval imports, and no other."""

ONLY_IN_FUNCTIONS = {"pandas", "jinja2", "plotly", "cv2", "imageio_ffmpeg", "minari", "pyarrow", "rich", "websockets"}
"""What simeval, outside its command line, loads where it is used."""

HEAVY = sorted({"pandas", "jinja2", "plotly", "cv2", "hydra", "omegaconf", "rich", "stable_baselines3"} | NEVER)


@dataclass(frozen=True)
class Import:
    """One imported module, and whether a function (or a type checker) alone imports it."""

    module: str
    line: int
    lazy: bool


def imports(path: Path) -> Iterator[Import]:
    yield from _imports(ast.parse(path.read_text()), False)


def _imports(node: ast.AST, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (Import(f"{child.module}.{alias.name}", child.lineno, lazy) for alias in child.names)
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        )
        yield from _imports(child, lazy or deferred)


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """The first part below simeval: ``report/page.py`` belongs to ``report``."""
    return path.relative_to(ROOT / "simeval").parts[0].removesuffix(".py")


LAYER_OF = {module: layer for layer, (modules, _) in LAYERS.items() for module in modules.split()}


def part_of(imported: Import) -> str:
    """The module of simeval that an import of ``simeval.…`` reaches: its own public face for what it defines itself."""
    parts = imported.module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYER_OF else "__init__"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_meet_only_in_simeval(package):
    ours = {*PACKAGES, "configs", "assets", "tests", "benchmarks", "examples"}
    for path in sources(package):
        for imported in imports(path):
            top = imported.module.split(".")[0]
            assert top not in ours or top in PACKAGES[package] | {package}, f"{path}:{imported.line} imports {top}"


def test_every_module_of_simeval_is_in_the_table():
    unknown = {module_of(path) for path in sources("simeval")} - LAYER_OF.keys()
    assert not unknown, f"say in the table of {Path(__file__).name} which layer these belong to: {unknown}"


def test_imports_inside_simeval_run_one_way():
    for path in sources("simeval"):
        layer = LAYER_OF[module_of(path)]
        allowed = {layer, *LAYERS[layer][1].split()}
        for imported in imports(path):
            if imported.module.split(".")[0] == "simeval":
                reached = LAYER_OF[part_of(imported)]
                assert reached in allowed, (
                    f"{path}:{imported.line}, of layer {layer}, imports {imported.module} ({reached})"
                )


def test_the_table_itself_has_no_cycle():
    order: list[str] = []
    while len(order) < len(LAYERS):
        ready = [n for n, (_, below) in LAYERS.items() if n not in order and set(below.split()) <= set(order)]
        assert ready, f"these layers import one another: {set(LAYERS) - set(order)}"
        order += ready


def test_simeval_imports_no_simulator_and_no_torch():
    for path in sources("simeval"):
        for imported in imports(path):
            assert imported.module.split(".")[0] not in NEVER, f"{path}:{imported.line} imports {imported.module}"


def test_heavy_packages_load_where_they_are_used():
    for path in sources("simeval"):
        module = module_of(path)
        for imported in imports(path):
            top = imported.module.split(".")[0]
            where = f"{path}:{imported.line} imports {imported.module}"
            assert ONLY_IN.get(top, module) == module, where
            assert imported.lazy or top not in ONLY_IN_FUNCTIONS or module == "cli", f"{where} outside a function"


def test_importing_simeval_loads_nothing_heavy():
    program = f"import simeval, simeval.testing, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_begins_without_the_statistics_that_its_end_needs():
    program = "import simeval.cli.run_command, simeval.cli.read_commands, sys; print('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_walk_sees_imports_wherever_they_stand(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import a.b\nif x:\n    from simeval import world\ndef f():\n    class C:\n        import c as d\n")
    found = {(imported.module, imported.line, imported.lazy) for imported in imports(path)}
    assert found == {("a.b", 1, False), ("simeval.world", 3, False), ("c", 6, True)}
    assert part_of(Import("simeval.world", 3, False)) == "world"
    assert part_of(Import("simeval.report.page.build", 1, False)) == "report"
    assert part_of(Import("simeval.World", 1, False)) == "__init__"
