"""PSyCo: policy synthesis under probabilistic constraints.

>>> import psyco
>>> result = psyco.synthesize("particle-dance", "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98")
>>> print(result.certificate)

Everything public is listed in `__init__.pyi`, and imported when it is used: `import psyco` alone costs no time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
