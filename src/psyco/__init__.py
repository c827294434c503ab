"""PSyCo: policy synthesis under probabilistic constraints.

>>> import psyco
>>> domain = psyco.make("particle-dance")
>>> result = psyco.synthesize(domain, "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98")
>>> print(result.certificate)
"""

from psyco._src.certify.certificate import Certificate, Finding
from psyco._src.certify.outcomes import verify_outcomes
from psyco._src.certify.verify import certify_candidates, verify
from psyco._src.domain.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.domain.base import CompiledDomain, Domain, Scene
from psyco._src.domain.catalogue import catalogue, make
from psyco._src.domain.gym_env import GymDomain
from psyco._src.errors import DomainError, EpisodeError, PsycoError, RequirementError, RunError
from psyco._src.exact.answers import exact
from psyco._src.learn.metrics import Metrics
from psyco._src.policy.file import Policy, load_policy
from psyco._src.policy.foreign import ForeignPolicy, open_policy
from psyco._src.policy.onnx import export_onnx
from psyco._src.rollout.device import record
from psyco._src.rollout.episodes import Episodes
from psyco._src.smc.base import Guarantee, Verdict
from psyco._src.spec import Constraint, PathCheck, Requirement, check_path, parse, parse_formula
from psyco._src.synthesis.problem import Result, Settings, synthesize
from psyco.version import __version__

__all__ = [
    "Certificate",
    "CompiledDomain",
    "Constraint",
    "Continuous",
    "Discrete",
    "Domain",
    "DomainError",
    "EpisodeError",
    "Episodes",
    "Finding",
    "ForeignPolicy",
    "Guarantee",
    "GymDomain",
    "Metrics",
    "MultiBinary",
    "MultiDiscrete",
    "PathCheck",
    "Policy",
    "PsycoError",
    "Requirement",
    "RequirementError",
    "Result",
    "RunError",
    "Scene",
    "Settings",
    "Verdict",
    "__version__",
    "catalogue",
    "certify_candidates",
    "check_path",
    "exact",
    "export_onnx",
    "load_policy",
    "make",
    "open_policy",
    "parse",
    "parse_formula",
    "record",
    "synthesize",
    "verify",
    "verify_outcomes",
]
