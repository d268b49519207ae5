"""Compare two policies on the same starts and the same noise, and say what can be concluded."""

from envs.tabletop import Tabletop
from policies.noisy import ActionNoise
from policies.tabletop import TabletopExpert
from simeval import Paired, Setting, run
from simeval.stats import PairedCounts, mcnemar, paired_difference

world = Tabletop(task=["reach", "push"], num_slots=16)
policies = {"expert": TabletopExpert(), "noisy": ActionNoise(TabletopExpert(), sigma=0.3)}
setting = Setting({"world": world}, {"world": list(policies)}, seed=0)
episodes = run(Paired(episodes=10).protocol(setting), world, policies)
world.close()

expert, noisy = ([e.succeeded for e in episodes if e.rollout.policy == name] for name in policies)
counts = PairedCounts.of(expert, noisy)
difference = paired_difference(counts)
print(f"expert {sum(expert)}, noisy expert {sum(noisy)} of {counts.n} starts")
print(f"difference {difference.estimate:+.2f} (95 % interval {difference.low:+.2f} to {difference.high:+.2f})")
print(f"exact McNemar p = {mcnemar(counts.only_first, counts.only_second).p:.4f}")
