"""Who runs a notebook: a reader, or a build."""

import os


def reads() -> bool:
    """Does a reader run this notebook, in JupyterLab, Colab or VS Code?

    For readers figures move, and a claim that does not hold, or an answer that a check refuses, is
    shown and the notebook goes on.
    Where it is not known to be so, it is a build.
    """
    if os.environ.keys() & {"JPY_SESSION_NAME", "COLAB_RELEASE_TAG"}:
        return True
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and "__vsc_ipynb_file__" in shell.user_ns
