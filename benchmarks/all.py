"""The whole set, one after the other, on a machine that does nothing else; what it saw goes into records and page.

    python benchmarks/all.py                      everything, about 20 minutes on two cores
    python benchmarks/all.py peers                the packages beside ours, three repetitions: about 12 minutes
    python benchmarks/all.py round scale turn     some of the others, three repetitions of the short ones
    python benchmarks/all.py --prepare            only install what the peers need, so that no time is lost on it later

Options: `--cache DIR` (environments of the peers), `--dry` (only say what would be done).
What fails is named at the end, and the rest is done all the same.
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
STEPS = {
    "peers": (["peers.py tiny lenet public --repetitions 3 --cache {cache} --table"], 12.0),
    "round": (["round.py --record"] * 3, 1.5),
    "overlap": (["overlap.py --record"], 1.0),
    "turn": (["turn.py --record"] * 3, 2.0),
    "fedkf": (["fedkf.py --record"], 1.5),
    "message": (["message.py --record"], 1.0),
    "scale": (["scale.py --record"], 2.0),
    "trust": (["trust.py --record"], 0.2),
    "secrecy": (["secrecy.py --record"], 0.1),
    "audit": (["audit.py --record"], 2.0),
}
"""Commands, and the minutes that they take on two idle cores, roughly."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="what to run; nothing: everything")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fedstill-peers")
    parser.add_argument("--prepare", action="store_true", help="only install what the peers need")
    parser.add_argument("--dry", action="store_true", help="only say what would be done")
    asked = parser.parse_args()
    if asked.prepare:
        install(asked.cache)
        return
    failed = []
    for step in asked.steps or STEPS:
        commands, minutes = STEPS[step]
        print(f"== {step}: about {minutes:g} minutes", flush=True)
        for command in commands:
            words = shlex.split(command.format(cache=shlex.quote(str(asked.cache))))
            if asked.dry:
                print("   python", f"benchmarks/{shlex.join(words)}")
            elif not done([sys.executable, str(HERE / words[0]), *words[1:]]):
                failed.append(command)
    if not asked.dry and not done([sys.executable, str(HERE / "measured.py")]):
        failed.append("measured.py")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


def done(command: list[str]) -> bool:
    """Run a command and say how long it took; did it end well?"""
    began = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    print(f"   {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return code == 0


def install(cache: Path) -> None:
    """Make the peers' environments, where they are not there yet."""
    from peers import CONTESTANTS, python_for

    for name, contestant in CONTESTANTS.items():
        print(name, python_for(contestant, cache), flush=True)


if __name__ == "__main__":
    main()
