"""Versions of what a policy did, done again in a model of its World (``simeval.fidelity``), and their names."""

RECORDED, SHUFFLED, STILL = "recorded", "shuffled", "still"
"""The actions of the World's episode; the same in another order; none (zero, or what is nearest)."""
VERSIONS = (RECORDED, SHUFFLED, STILL)


def player(policy: str, version: str) -> str:
    """The name under which the actions of ``policy`` are done again."""
    return f"{policy} ({version})"


def version_of(name: str) -> str | None:
    """Of a policy that does again what was done: which version; none of any other."""
    return next((version for version in VERSIONS if name.endswith(f" ({version})")), None)
