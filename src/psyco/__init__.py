"""PSyCo: policy synthesis under probabilistic constraints.

>>> import psyco
>>> domain = psyco.make("particle-dance")
>>> result = psyco.synthesize(domain, "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98")
>>> print(result.certificate)
"""

from psyco.domain.base import CompiledDomain, Continuous, Discrete, Domain, MultiBinary, MultiDiscrete, Scene
from psyco.domain.catalogue import catalogue, make
from psyco.domain.gym_env import GymDomain
from psyco.errors import DomainError, EpisodeError, PsycoError, RequirementError, RunError
from psyco.export import export_onnx
from psyco.foreign import ForeignPolicy, open_policy
from psyco.learn.metrics import Metrics
from psyco.policy import Policy, load_policy
from psyco.rollout.device import record
from psyco.rollout.episodes import Episodes
from psyco.spec import Constraint, PathCheck, Requirement, check_path, parse, parse_formula
from psyco.synthesis import Result, Settings, synthesize
from psyco.verification.base import Guarantee, Verdict
from psyco.verification.certificate import Certificate, Finding
from psyco.verification.exact import exact
from psyco.verification.outcomes import verify_outcomes
from psyco.verification.verify import certify_candidates, verify
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
