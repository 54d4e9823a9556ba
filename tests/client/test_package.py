import subprocess
import sys

import seqenc


def run(script):
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


def test_importing_starts_nothing_and_needs_nothing_of_the_server():
    script = (
        "import sys, threading, seqenc; "
        "assert threading.active_count() == 1; "
        "print([m for m in ('service', 'model', 'torch', 'onnxruntime') if m in sys.modules])"
    )
    assert run(script).strip() == "[]"


def test_importing_is_quick():
    script = "import time; start = time.process_time(); import seqenc; print(time.process_time() - start)"
    # 0.15 s of CPU on an idle machine; ten times that here, since this one may be busy.
    assert min(float(run(script)) for _ in range(3)) < 1.5


def test_all_that_is_exported_is_there():
    assert all(hasattr(seqenc, name) for name in seqenc.__all__)
