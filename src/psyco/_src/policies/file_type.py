"""Files that are often taken for a policy: what they are, and what to do with them. Nothing in them is loaded."""

from __future__ import annotations

from pathlib import Path


def recognized(path: Path) -> str | None:
    """What a file seems to be, with the remedy, to follow `FILE is`; None for what is not known."""
    if path.suffix in (".pkl", ".pickle"):
        return (
            "a pickle, which runs code when it is loaded, so PSyCo does not read it; "
            "if you trust it, load it in Python and give psyco.verify the object"
        )
    import zipfile  # only here, where something went wrong

    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except Exception:  # a damaged archive may go wrong anywhere
        return None
    if "data" in names:
        return f"a model of Stable-Baselines3; write sb3:{path}"
    inside = {name.partition("/")[2] for name in names}  # PyTorch puts all in a folder of the file's name
    if "data.pkl" in inside and "constants.pkl" not in inside:  # TorchScript has both
        return (
            "a state_dict or a pickled object of PyTorch, not a TorchScript module; load it into its network in Python "
            "and give psyco.verify that torch.nn.Module, or save it with torch.jit.script(network).save(...)"
        )
    return None
