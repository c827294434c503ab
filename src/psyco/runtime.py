"""What a deployed policy needs, and nothing else: it acts, and an episode is watched, with NumPy alone.

    policy = runtime.load_policy("policy.safetensors")
    monitor = runtime.Monitor("requirement.props", horizon=200)
    status = monitor.start()
    while not status.over:
        action = policy(observation)
        ...
        status = monitor.update({"distance": distance, "collisions": collisions})

Importing it loads neither JAX nor SciPy, Gymnasium or matplotlib. The same names are in `psyco`.
"""

from psyco._src.errors import PsycoError as PsycoError
from psyco._src.errors import RequirementError as RequirementError
from psyco._src.errors import RunError as RunError
from psyco._src.policy.file import Policy as Policy
from psyco._src.policy.file import load_policy as load_policy
from psyco._src.policy.guard import Guard as Guard
from psyco._src.policy.risk import Risk as Risk
from psyco._src.spec.online import ConstraintStatus as ConstraintStatus
from psyco._src.spec.online import Monitor as Monitor
from psyco._src.spec.online import Outlook as Outlook
from psyco._src.spec.online import Status as Status
