"""PSyCo: policy synthesis under probabilistic constraints.

>>> import psyco
>>> domain = psyco.make("particle-dance")
>>> result = psyco.synthesize(domain, "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98")
>>> print(result.certificate)
"""

from psyco.domain.base import Continuous, Discrete, Domain, Scene
from psyco.domain.catalogue import catalogue, make
from psyco.errors import DomainError, PsycoError, RequirementError, RunError
from psyco.learn.metrics import Metrics
from psyco.policy import Policy, load_policy
from psyco.rollout.device import record
from psyco.rollout.episodes import Episodes
from psyco.spec import Constraint, PathCheck, Requirement, check_path, parse, parse_formula
from psyco.synthesis import Result, Settings, synthesize
from psyco.verification.base import Guarantee, Verdict
from psyco.verification.certificate import Certificate, Finding
from psyco.verification.outcomes import verify_outcomes
from psyco.verification.verify import certify_candidates, verify
from psyco.version import __version__

__all__ = [
    "Certificate",
    "Constraint",
    "Continuous",
    "Discrete",
    "Domain",
    "DomainError",
    "Episodes",
    "Finding",
    "Guarantee",
    "Metrics",
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
    "load_policy",
    "make",
    "parse",
    "parse_formula",
    "record",
    "synthesize",
    "verify",
    "verify_outcomes",
]
