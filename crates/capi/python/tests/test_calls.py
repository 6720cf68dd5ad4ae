"""Every call, in the current directory, which is on ext4."""

import contextlib
import errno
import os
import pathlib
import signal
import threading
import time
import unittest
import unittest.mock

import extant
from extant import Preallocation, State, Status

MIB = 1 << 20


def states(file):
    bytes_of = {}
    for extent in extant.map(file):
        bytes_of[extent.state] = bytes_of.get(extent.state, 0) + extent.length
    return bytes_of


@contextlib.contextmanager
def interrupted(send):
    """Sends a signal soon, whose handler raises as that of Ctrl-C does."""

    def handle(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handle)
    timer = threading.Timer(0.5, send)
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


class Calls(unittest.TestCase):
    def setUp(self):
        self.path = pathlib.Path(f"{self.id()}.raw")
        self.addCleanup(lambda: self.path.unlink(missing_ok=True))

    def test_created_file_is_written_and_keeps_its_name(self):
        told = []
        report = extant.create(self.path, 8 * MIB, mode=0o600, progress=told.append)
        self.assertEqual(report.written_bytes, 8 * MIB)
        self.assertEqual(states(self.path), {State.WRITTEN: 8 * MIB})
        self.assertEqual(self.path.stat().st_mode & 0o7777, 0o600)
        self.assertTrue(all(p.done_bytes <= p.total_bytes for p in told) and told)
        with self.assertRaises(FileExistsError) as raised:
            extant.create(self.path, MIB)
        self.assertIsInstance(raised.exception, extant.ExtantError)
        self.assertIs(raised.exception.status, Status.ALREADY_EXISTS)
        self.assertEqual(raised.exception.filename, str(self.path))
        self.assertIn("file exists", str(raised.exception))

    def test_first_part_alone_is_allocated(self):
        report = extant.create(
            os.fsencode(self.path),
            8 * MIB,
            preallocation=Preallocation.FALLOC,
            allocation_bytes=2 * MIB,
        )
        self.assertEqual(report.allocation_bytes, 2 * MIB)
        self.assertEqual(states(self.path), {State.UNWRITTEN: 2 * MIB, State.HOLE: 6 * MIB})

    def test_share_of_the_background_has_a_range(self):
        background = extant.Pace.BACKGROUND
        extant.create(self.path, MIB, pace=background, background_percent=12.5)
        self.assertEqual(states(self.path), {State.WRITTEN: MIB})
        extant.materialize(self.path, pace=background, background_percent=0.1)
        for percent in (0, 0.05, 100.5):
            with self.assertRaises(ValueError):
                extant.materialize(self.path, pace=background, background_percent=percent)
        with self.assertRaises(extant.ExtantError) as raised:
            extant.materialize(self.path, background_percent=10)
        self.assertIs(raised.exception.status, Status.INVALID_ARGUMENT)

    def test_cancel_progress_and_exceptions_stop_and_leave_nothing(self):
        cancel = extant.Cancel()
        threading.Thread(target=cancel.cancel).start()
        with self.assertRaises(InterruptedError) as raised:
            extant.create(self.path, 64 * MIB, rate_bytes=MIB, cancel=cancel)
        self.assertIs(raised.exception.status, Status.CANCELLED)
        with self.assertRaises(InterruptedError):
            extant.create(self.path, 64 * MIB, progress=lambda _: True)

        def broken(_):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            extant.create(self.path, 64 * MIB, progress=broken)
        self.assertFalse(self.path.exists())

    def test_signal_on_the_main_thread_stops_a_call(self):
        to_thread = lambda: signal.raise_signal(signal.SIGUSR1)
        to_process = lambda: os.kill(os.getpid(), signal.SIGUSR1)
        for send in (to_thread, to_process):
            for progress in (None, lambda _: None):
                begin = time.monotonic()
                with interrupted(send), self.assertRaises(KeyboardInterrupt):
                    extant.create(self.path, 64 * MIB, rate_bytes=MIB, progress=progress)
                self.assertLess(time.monotonic() - begin, 20)
                self.assertFalse(self.path.exists())

    def test_progress_is_told_on_the_thread_of_the_call(self):
        told, raised = [], []

        def tell(_):
            told.append(threading.current_thread())
            raise KeyError("mine")

        def create():
            try:
                extant.create(self.path, 8 * MIB, progress=tell)
            except KeyError as exception:
                raised.append(exception)

        create()
        other = threading.Thread(target=create)
        other.start()
        other.join()
        self.assertEqual(told, [threading.main_thread(), other])
        self.assertEqual(len(raised), 2)

    def test_cancel_stops_only_the_operations_that_have_it(self):
        cancel = extant.Cancel()
        with self.assertRaises(InterruptedError):
            extant.create(self.path, 64 * MIB, cancel=cancel, progress=lambda _: True)
        extant.create(self.path, MIB, cancel=cancel)
        self.path.unlink()
        cancel.cancel()
        with self.assertRaises(InterruptedError):
            extant.create(self.path, 64 * MIB, cancel=cancel)

    def test_exception_in_a_visit_is_raised(self):
        self.path.write_bytes(b"data")
        with unittest.mock.patch("extant._files.Extent", side_effect=KeyError("mine")):
            with self.assertRaises(KeyError):
                extant.map(self.path)

    def test_thin_file_is_materialized_and_zeroed_with_its_data_kept(self):
        self.path.write_bytes(b"")
        os.truncate(self.path, 4 * MIB)
        with open(self.path, "r+b", buffering=0) as file:
            file.write(b"data")
            with self.assertRaises(BlockingIOError) as raised:
                extant.materialize(self.path)
            self.assertIs(raised.exception.status, Status.IN_USE)
            report = extant.materialize(file.fileno(), length=2 * MIB, shared_access=True)
            self.assertEqual(report.already_written_bytes + report.zeroed_bytes, 2 * MIB)
            self.assertEqual(states(file.fileno()), {State.WRITTEN: 2 * MIB, State.HOLE: 2 * MIB})
            self.assertEqual(os.pread(file.fileno(), 4, 0), b"data")
        extant.write_zeroes(self.path, 0, 5 * MIB)
        self.assertEqual(states(self.path), {State.WRITTEN: 5 * MIB})
        self.assertEqual(self.path.read_bytes()[:4], b"\0\0\0\0")
        self.assertEqual([e.length for e in extant.map(self.path, MIB, MIB)], [MIB])

    def test_full_disk_says_what_and_where(self):
        with self.assertRaises(OSError) as raised:
            extant.create(self.path, 1 << 40)
        self.assertEqual(raised.exception.errno, errno.ENOSPC)
        self.assertIs(raised.exception.status, Status.NO_SPACE)

    def test_wrong_arguments_are_refused_before_the_library_sees_them(self):
        with self.assertRaises(OverflowError):
            extant.create(self.path, -1)
        with self.assertRaises(ValueError):
            extant.create("a\0b", MIB)
        with self.assertRaises(TypeError):
            extant.create(1, MIB)
        for wrong in ({"mode": -1}, {"mode": 1 << 32}, {"rate_bytes": 1 << 64}):
            with self.assertRaises(OverflowError):
                extant.create(self.path, MIB, **wrong)
        with self.assertRaises(OverflowError):
            extant.create_image(self.path, MIB, qcow2=extant.Qcow2(cluster_bytes=(1 << 32) + 65536))
        with self.assertRaises(OverflowError):
            extant.map(1 << 32)
        self.assertFalse(self.path.exists())
        with self.assertRaises(FileNotFoundError):
            extant.map("none")

    def test_values_of_a_later_library_are_members(self):
        later = extant.Step(99)
        self.assertEqual((later, later.name), (99, "UNKNOWN_99"))
        self.assertIs(later, extant.Step(99))
        self.assertNotIn(later, list(extant.Step))
        self.assertEqual(extant._errors.error_of(99, errno.EIO, "later", None).status, 99)
        for wrong in (-1, "x"):
            with self.assertRaises(ValueError):
                extant.Step(wrong)

    def test_place_is_probed(self):
        report = extant.probe(".")
        self.assertEqual((report.filesystem, report.block_bytes), ("ext4", 4096))
        self.assertIsNot(report.way, extant.Way.NONE)
        self.assertRegex(extant.version(), r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
