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

from psyco._src.core.errors import PsycoError as PsycoError
from psyco._src.core.errors import RequirementError as RequirementError
from psyco._src.core.errors import RunError as RunError
from psyco._src.logic.runtime_monitor import ConstraintStatus as ConstraintStatus
from psyco._src.logic.runtime_monitor import Monitor as Monitor
from psyco._src.logic.runtime_monitor import Outlook as Outlook
from psyco._src.logic.runtime_monitor import Status as Status
from psyco._src.policies.guard import Guard as Guard
from psyco._src.policies.risk import Risk as Risk
from psyco._src.policies.serialization import Policy as Policy
from psyco._src.policies.serialization import load_policy as load_policy
