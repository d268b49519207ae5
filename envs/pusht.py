"""PushT, as gym-pusht has it, with a coverage that is the same in every run; importing this registers ``PushT-v0``."""

import gymnasium
from gym_pusht.envs.pusht import PushTEnv, pymunk_to_shapely


class PushT(PushTEnv):
    """The package's environment. Its coverage adds up the T's two bars in the order of a set, which is that of their
    addresses, so that low bits of the reward change from episode to episode; here it is the order of construction.
    """

    def _get_coverage(self) -> float:
        goal = pymunk_to_shapely(self.get_goal_pose_body(self.goal_pose), self._block_shapes)
        block = pymunk_to_shapely(self.block, self._block_shapes)
        return goal.intersection(block).area / goal.area


gymnasium.register("PushT-v0", f"{__name__}:{PushT.__name__}", max_episode_steps=300)
