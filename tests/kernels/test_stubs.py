"""Every kernel that Python calls has a stub; ``.ci/run`` compares the stubs with the kernels, using stubtest."""

from __future__ import annotations

import re
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kbatch" / "kernels"


def test_every_kernel_with_python_functions_has_a_stub() -> None:
    kernels = {path.stem: path.read_text() for path in KERNELS.glob("*.pyx")}
    called = {name for name, text in kernels.items() if re.search(r"^(def|cpdef|class) ", text, re.MULTILINE)}
    stubs = {path.stem for path in KERNELS.glob("*.pyi")}
    assert called <= stubs <= set(kernels)
