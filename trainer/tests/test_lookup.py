"""What was trained on, looked up afterwards with the command: no server, only what a training left behind."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import feedmill
from support import Worker, fleet, pipeline


def setUpModule() -> None:
    logging.getLogger("feedmill").setLevel(logging.ERROR)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([os.environ["FEEDMILL_COMMAND"], *arguments], capture_output=True, text=True)


@unittest.skipUnless(os.environ.get("FEEDMILL_COMMAND"), "FEEDMILL_COMMAND does not say where the command is")
class LookUp(unittest.TestCase):
    def test_a_plan_beside_a_checkpoint_is_told_from_another(self) -> None:
        with tempfile.TemporaryDirectory() as folder, fleet(1) as ours, fleet(1, **{"seed: 42": "seed: 43"}) as others:
            plans = []
            for name, workers in (("ours", ours), ("others", others)):
                os.mkdir(os.path.join(folder, name))
                with feedmill.Loader(workers[0].url, dp_rank=0, dp_size=1, global_batch=8, micro_batch=4, run=name) as loader:
                    plans.append(loader.save_plan(os.path.join(folder, name)))
            # "it was changed": the order within facts was another one than the digest's.
            same = command("diff", plans[0], ours[0].url)
            self.assertEqual(same.returncode, 0, same.stdout + same.stderr)
            for other in (plans[1], others[0].url):
                differs = command("diff", plans[0], other)
                self.assertEqual(differs.returncode, 1, differs.stdout + differs.stderr)
                self.assertIn("seed", differs.stdout)

    def test_a_step_of_the_ledger_is_the_step_that_the_command_gets(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path, ledger = pipeline(folder), os.path.join(folder, "ledger.jsonl")
            worker = Worker(path)
            self.addCleanup(worker.close)
            settings = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 8, "max_steps": 4, "skips": [(8, 13)]}
            with feedmill.Loader(worker.url, ledger=ledger, run="lookup", **settings) as loader:
                batches = list(loader)
            lines = [json.loads(line) for line in Path(ledger).read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
            for line, batch in zip(lines, batches):
                made = command("get", "--step", str(line["step"]), "--global-batch", str(line["global_batch"]), "--skip", "8-13", path)
                self.assertEqual(made.returncode, 0, made.stderr)
                start, end = line["position"], line["position"] + line["global_batch"]
                self.assertEqual(batch.range, (start, end))
                self.assertIn(f"{start}-{end}", made.stdout)
                self.assertEqual(hashes_in(made.stdout), [row["hash"] for row in batch.info])


def hashes_in(text: str) -> list[str]:
    return re.findall(r"\b[0-9a-f]{32}\b", text)


if __name__ == "__main__":
    unittest.main()
