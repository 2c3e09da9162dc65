"""Make the records that need a GPU: ``python -m studies --minutes 7``.

Run at the repository's root, with nothing of the project installed. A record
is written after each row; a later call goes on from it.
"""

import argparse
import sys

parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
parser.add_argument("only", nargs="*", metavar="NAME", help="all, if none")
parser.add_argument("--minutes", type=float, default=float("inf"))
options = parser.parse_args()

sys.path.insert(0, "src")
from book.evidence.records import StudyError, make_gpu_records  # noqa: E402

try:
    make_gpu_records(options.only, options.minutes)
except (StudyError, OSError) as error:
    sys.exit(f"\n{error}")
except KeyboardInterrupt:
    sys.exit("\nStopped; the same command goes on from the last row")
