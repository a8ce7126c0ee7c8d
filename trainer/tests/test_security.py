"""Tokens between a trainer and its workers."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from unittest import mock

import feedmill
from feedmill import AccessDenied, ConfigError, WorkerRefused
from support import Worker, _direct, fleet, hashes, pipeline

OLD = "old-token-0123456789abcdef"
NEW = "new-token-0123456789abcdef"
SETTINGS: dict[str, Any] = {"dp_rank": 0, "dp_size": 1, "global_batch": 8, "micro_batch": 4, "max_steps": 2, "run": "test"}


class Guarded(unittest.TestCase):
    """A worker that wants a token."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.worker = Worker(pipeline(folder.name), "--token-file", self.file("tokens", NEW))
        self.addCleanup(self.worker.close)
        environment = mock.patch.dict(os.environ)
        environment.start()
        self.addCleanup(environment.stop)
        for name in ("FEEDMILL_TOKEN_FILE", "FEEDMILL_CA_FILE"):
            os.environ.pop(name, None)

    def file(self, name: str, content: str) -> str:
        path = self.folder / name
        path.write_text(content)
        return str(path)

    def loader(self, **settings: Any) -> feedmill.Loader:
        loader = feedmill.Loader(self.worker.url, timeout=60.0, **(SETTINGS | settings))
        self.addCleanup(loader.close)
        return loader

    def test_the_token_may_be_said_in_three_ways(self) -> None:
        with fleet(1) as workers, feedmill.Loader(workers[0].url, **SETTINGS) as free:
            expected = hashes(free)
        path = self.file("ours", f"# ours\n{NEW}\r\n{OLD}\n")
        self.assertEqual(hashes(self.loader(token=NEW)), expected)
        self.assertEqual(hashes(self.loader(token_file=Path(path))), expected)
        os.environ["FEEDMILL_TOKEN_FILE"] = path
        self.assertEqual(hashes(self.loader()), expected)
        # What is said goes before what the environment says.
        with self.assertRaises(AccessDenied):
            next(self.loader(token=OLD))

    def test_a_denial_names_worker_and_remedy_and_loses_nothing(self) -> None:
        for settings in ({}, {"token": OLD}):
            with self.subTest(settings), self.assertRaises(AccessDenied) as caught:
                self.loader(**settings).wait_ready()
            error = caught.exception
            self.assertIsInstance(error, WorkerRefused)
            self.assertEqual((error.rank, error.worker), (0, self.worker.url))
            self.assertIn("token", str(error))
            self.assertNotIn(OLD[:12], str(error))
        path = self.file("ours", OLD)
        loader = self.loader(token_file=path)
        with self.assertRaises(AccessDenied):
            next(loader)
        self.file("ours", NEW)
        self.assertEqual(sorted(hashes(loader)), list(range(16)))

    def test_a_token_that_expires_while_training_is_an_error_that_another_one_heals(self) -> None:
        theirs = self.file("ours", NEW)
        # An epoch after the other, until the worker's new tokens are in use.
        loader = self.loader(token_file=theirs, max_steps=None)
        ends = [next(loader).range[1]]
        self.file("tokens", OLD)
        with self.assertRaises(AccessDenied) as caught:
            for batch in loader:
                self.assertEqual(batch.range[0], ends[-1])
                ends.append(batch.range[1])
        self.assertEqual((caught.exception.rank, caught.exception.worker), (0, self.worker.url))
        self.assertNotIn(NEW[:12], str(caught.exception))
        consumed = loader.state_dict()["consumed"]
        self.file("ours", OLD)
        self.assertEqual(next(loader).range[0], ends[-1])
        # Whole global batches before it: what a checkpoint would have said.
        self.assertEqual(consumed, ends[-1] // SETTINGS["global_batch"] * SETTINGS["global_batch"])

    def test_what_cannot_be_a_token_is_a_setting(self) -> None:
        cases = [
            ({"token": "short"}, "16"),
            ({"token": f"{NEW} {OLD}"}, "character"),
            ({"token": ""}, "no token"),
            ({"token_file": self.file("empty", "\n")}, "no token"),
            ({"token_file": "/nowhere"}, "/nowhere"),
            ({"ca_file": self.file("ca", "no pem")}, "BEGIN CERTIFICATE"),
            ({"token": NEW, "token_file": "x"}, "one of them"),
        ]
        for settings, part in cases:
            with self.subTest(settings), self.assertRaises(ConfigError) as caught:
                self.loader(**settings).wait_ready()
            self.assertIn(part, str(caught.exception))
            self.assertNotIn(NEW[:12], str(caught.exception))
        with self.assertRaises(ConfigError) as caught:
            feedmill.Loader("pipeline.yaml", token=NEW, **SETTINGS)
        self.assertIn("pipeline's file", str(caught.exception))


@unittest.skipUnless(shutil.which("openssl"), "there is no program openssl")
class Encrypted(unittest.TestCase):
    """Batches over TLS, from a worker whose certificate an authority of the test's own has signed."""

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=self.folder)

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        for name in ("ours", "other"):
            self.openssl("req", "-x509", *new_key, "-subj", f"/CN={name}", "-days", "2", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        self.openssl("req", *new_key, "-subj", "/CN=worker", "-keyout", "worker.key", "-out", "worker.csr")
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n")
        authority = ["-CA", "ours.pem", "-CAkey", "ours.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        self.openssl("x509", "-req", "-in", "worker.csr", *authority, "-out", "worker.pem")
        (self.folder / "tokens").write_text(NEW)
        tls = ["--tls-cert", str(self.folder / "worker.pem"), "--tls-key", str(self.folder / "worker.key")]
        worker = Worker(pipeline(folder.name), "--token-file", str(self.folder / "tokens"), *tls)
        self.addCleanup(worker.close)
        self.source = worker.url.replace("http://", "https://")

    def test_batches_come_over_https_from_who_proves_itself(self) -> None:
        with fleet(1) as workers, feedmill.Loader(workers[0].url, **SETTINGS) as free:
            expected = hashes(free)
        settings: dict[str, Any] = {**SETTINGS, "token_file": self.folder / "tokens", "timeout": 60.0}
        with feedmill.Loader(self.source, ca_file=self.folder / "ours.pem", **settings) as loader:
            self.assertEqual(hashes(loader), expected)
        with mock.patch.dict(os.environ, FEEDMILL_CA_FILE=str(self.folder / "ours.pem")), feedmill.Loader(self.source, **settings) as loader:
            self.assertEqual(hashes(loader), expected)
        with feedmill.Loader(self.source, ca_file=self.folder / "other.pem", **settings) as loader:
            with self.assertRaisesRegex(AccessDenied, "certificate"):
                next(loader)


class NodeWorkers(unittest.TestCase):
    """Workers that a loader starts are its user's alone."""

    def test_they_want_a_token_that_only_this_user_can_read(self) -> None:
        with tempfile.TemporaryDirectory() as folder, feedmill.Loader(pipeline(folder), **SETTINGS) as loader:
            self.assertEqual(sorted(hashes(loader)), list(range(16)))
            node = loader._node
            assert node is not None
            about = os.stat(node.token_file)
            self.assertEqual((stat.S_IMODE(about.st_mode), about.st_uid), (0o600, os.getuid()))
            self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(node.token_file)).st_mode), 0o700)
            token = Path(node.token_file).read_text().strip()
            for address in node.addresses:
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    _direct.open(f"{address}/v1/plan", timeout=60)
                caught.exception.close()
                self.assertEqual(caught.exception.code, 401)
                shown = urllib.request.Request(f"{address}/v1/plan", headers={"authorization": f"Bearer {token}"})
                with _direct.open(shown, timeout=60) as answer:
                    self.assertEqual(answer.status, 200)
            for pid in node.pids:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
                self.assertIn(node.token_file.encode(), arguments)
                self.assertNotIn(token.encode(), arguments + Path(f"/proc/{pid}/environ").read_bytes())
