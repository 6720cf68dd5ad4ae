"""Images, pools and jobs, in the current directory."""

import contextlib
import ctypes
import io
import os
import pathlib
import subprocess
import tempfile
import textwrap
import unittest

import extant
from extant import ImageFormat, ImagePreallocation, JobOptions, JobState, Pool, Status
from extant._handle import Handle

MIB = 1 << 20
SLOW = JobOptions(rate_bytes=2 * MIB)


class InDirectory(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(dir=".")
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)


class Images(InDirectory):
    def test_image_is_created_converted_materialized_and_described(self):
        thin, full, copy = (self.place / name for name in ("thin.qcow2", "full.qcow2", "copy.raw"))
        extant.create_image(thin, 8 * MIB, preallocation=ImagePreallocation.OFF)
        self.assertEqual(extant.image_info(thin).preallocation, ImagePreallocation.OFF)
        told = []
        shape = extant.Qcow2(cluster_bytes=128 << 10, compression=extant.Compression.ZSTD)
        report = extant.create_image(full, 8 * MIB, qcow2=shape, progress=told.append)
        self.assertEqual(report.capacity_bytes, 8 * MIB)
        self.assertTrue(told and report.written_bytes >= 8 * MIB)
        info = extant.image_info(full)
        self.assertEqual((info.format, info.cluster_bytes), (ImageFormat.QCOW2, 128 << 10))
        self.assertIs(info.compression, extant.Compression.ZSTD)
        self.assertIsNone(info.backing_file)

        report = extant.convert_image(full, copy, preallocation=ImagePreallocation.FULL)
        self.assertEqual(report.size_bytes, 8 * MIB)
        self.assertEqual(copy.read_bytes(), bytes(8 * MIB))
        self.assertEqual(extant.materialize_image(thin).capacity_bytes, 8 * MIB)
        self.assertEqual(extant.image_info(thin).preallocation, ImagePreallocation.FULL)

    def test_backing_file_is_read_only_with_permission(self):
        base, top, copy = (self.place / name for name in ("base.qcow2", "top.qcow2", "copy.raw"))
        extant.create_image(base, MIB)
        over = extant.Qcow2(backing_file="base.qcow2", backing_format=ImageFormat.QCOW2)
        extant.create_image(top, MIB, qcow2=over)
        info = extant.image_info(top)
        self.assertEqual((info.backing_file, info.backing_format), (b"base.qcow2", "qcow2"))
        with self.assertRaises(extant.ExtantError) as raised:
            extant.convert_image(top, copy)
        self.assertIs(raised.exception.status, Status.INVALID_ARGUMENT)
        self.assertNotIn("--", str(raised.exception))
        extant.convert_image(top, copy, open_named_files=True)
        self.assertEqual(copy.stat().st_size, MIB)

    def test_errors_are_those_of_python(self):
        path = self.place / "x.qcow2"
        with self.assertRaises(FileNotFoundError):
            extant.image_info(path)
        with self.assertRaises(InterruptedError):
            extant.create_image(path, 64 * MIB, progress=lambda _: True)
        self.assertFalse(path.exists())
        extant.create_image(path, MIB)
        with self.assertRaises(FileExistsError) as raised:
            extant.create_image(path, MIB)
        self.assertEqual(raised.exception.filename, str(path))


class Pools(InDirectory):
    def setUp(self):
        super().setUp()
        self.defined = self.place / "defined"
        self.pool = Pool.define("vms", self.place / "vms", definitions=self.defined)
        self.addCleanup(self.pool.close)

    def path(self, name):
        return self.place / "vms" / name

    def test_pool_has_volumes_and_limits(self):
        self.pool.create("a.raw", 2 * MIB).run()
        with self.pool.create("b.qcow2", 4 * MIB, preallocation=ImagePreallocation.OFF) as job:
            job.run()
        self.assertEqual([volume.name for volume in self.pool.volumes()], ["a.raw", "b.qcow2"])
        volume = self.pool.volume("a.raw")
        self.assertEqual((volume.capacity_bytes, volume.written_bytes), (2 * MIB, 2 * MIB))
        self.assertEqual((volume.mode, volume.preallocation), (0o600, None))
        self.assertIs(self.pool.volume("b.qcow2").preallocation, ImagePreallocation.OFF)
        info = self.pool.info()
        self.assertEqual((info.name, info.volumes, info.jobs), ("vms", 2, 0))
        with self.assertRaises(OSError) as raised:
            self.pool.create("big.raw", 1 << 60)
        self.assertIs(raised.exception.status, Status.NO_SPACE)
        self.assertEqual([entry.name for entry in extant.pools(self.defined)], ["vms"])
        with Pool("vms", self.defined) as again:
            self.assertEqual(len(again.volumes()), 2)
        with self.assertRaises(ValueError):
            again.info()
        extant.undefine_pool("vms", self.defined)
        with self.assertRaises(FileNotFoundError):
            Pool("vms", self.defined)
        with Pool(self.place / "vms") as directory:
            self.assertIsNone(directory.info().name)

    def test_volume_is_resized_cloned_materialized_and_transferred(self):
        source = self.place / "source.raw"
        source.write_bytes(b"data" + bytes(MIB - 4))
        self.pool.upload("a.raw", source).run()
        self.pool.resize("a.raw", 2 * MIB, preallocation=ImagePreallocation.OFF).run()
        self.assertLess(self.pool.volume("a.raw").written_bytes, 2 * MIB)
        self.pool.materialize("a.raw").run()
        self.assertEqual(self.pool.volume("a.raw").written_bytes, 2 * MIB)
        self.pool.clone("a.raw", "b.raw", method=extant.CloneMethod.COPY).run()
        target = self.place / "target.raw"
        self.pool.download("b.raw", target).run()
        self.assertEqual(target.read_bytes(), b"data" + bytes(2 * MIB - 4))
        with open(self.path("b.raw"), "rb") as file:
            user = subprocess.Popen(["sleep", "60"], stdin=file)
        with self.assertRaises(OSError) as raised:
            self.pool.delete("b.raw")
        self.assertIs(raised.exception.status, Status.IN_USE)
        user.kill()
        user.wait()
        self.pool.delete("b.raw")
        self.assertFalse(self.path("b.raw").exists())

    def test_pool_in_an_ext4_image_needs_no_mount(self):
        image = self.place / "disk.img"
        with open(image, "wb") as file:
            file.truncate(64 * MIB)
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, env={"PATH": path})
        kind, place = extant.PoolKind.EXT4, {"definitions": self.defined, "directory": "/volumes"}
        with Pool.define("box", image, kind=kind, **place) as pool:
            pool.create("a.raw", 4 * MIB).run()
            self.assertEqual(pool.volume("a.raw").written_bytes, 4 * MIB)
            self.assertIs(pool.info().kind, kind)
            with self.assertRaises(InterruptedError):
                pool.create("b.raw", 16 * MIB, options=SLOW).run(progress=lambda _: True)
            self.assertEqual([volume.name for volume in pool.volumes()], ["a.raw"])
        self.assertEqual(len(extant.pools(self.defined)), 2)

    def test_path_that_is_not_utf8_names_the_same_file(self):
        place = os.fsencode(self.place) + b"/caf\xe9"
        os.mkdir(place)
        with Pool(place) as pool:
            pool.create("a.raw", MIB).run()
            self.assertEqual(os.fsencode(pool.info().path), os.path.abspath(place))
            self.assertEqual(os.stat(pool.volume("a.raw").path).st_size, MIB)
        self.assertTrue(os.path.isdir(extant.pools(self.defined)[0].path))
        with self.assertRaises(OverflowError):
            self.pool.job(-1)

    def test_job_tells_its_progress_to_a_loop(self):
        with self.pool.create("a.raw", 4 * MIB, options=JobOptions(rate_bytes=16 * MIB)) as job:
            steps = list(job)
        self.assertTrue(all(step.done_bytes <= step.total_bytes for step in steps) and steps)
        self.assertIs(self.pool.job(job.id).state, JobState.DONE)
        with self.assertRaises(ValueError):
            job.start()

    def test_job_that_ended_has_no_more_progress(self):
        with self.pool.create("a.raw", MIB) as job:
            list(job)
            self.assertEqual(list(job), [])

    def test_pool_and_job_are_closed_while_calls_are_at_work(self):
        job = self.pool.create("a.raw", 8 * MIB, options=JobOptions(rate_bytes=8 * MIB)).start()
        observer = Pool("vms", self.defined)
        told = []

        def close(progress):
            told.append(progress)
            observer.close()

        self.assertIs(observer.wait(job.id, progress=close).state, JobState.DONE)
        self.assertTrue(told)
        with self.assertRaises(ValueError):
            observer.volumes()
        job.wait()

        job = self.pool.create("b.raw", MIB)
        job.run(progress=lambda _: job._free())
        self.assertEqual(self.pool.volume("b.raw").written_bytes, MIB)
        with self.assertRaises(ValueError):
            job.run()

    def test_handle_is_freed_once_and_by_its_last_user(self):
        freed = []
        handle = Handle("thing", ctypes.c_void_p(7), freed.append)
        with handle.use():
            with handle.use():
                handle.close()
            with self.assertRaises(ValueError):
                with handle.use():
                    pass
            self.assertEqual(freed, [])
        handle.close()
        self.assertEqual([pointer.value for pointer in freed], [7])

    def test_job_is_cancelled_by_its_object_and_by_its_number(self):
        for cancel in (lambda job: job.cancel(), lambda job: self.pool.cancel(job.id)):
            with self.assertRaises(InterruptedError):
                with self.pool.create("a.raw", 64 * MIB, options=SLOW) as job:
                    for step in job:
                        if step.done_bytes > 0:
                            self.assertIs(cancel(job).state, JobState.CANCELLED)
            self.assertFalse(self.path("a.raw").exists())
            self.assertIsInstance(self.pool.job(job.id).error, InterruptedError)

    def test_error_of_a_started_job_is_raised_at_its_end_unless_it_was_before(self):
        (self.place / "target").write_bytes(b"")
        self.pool.create("a.raw", MIB).run()
        with self.assertRaises(FileExistsError):
            with self.pool.download("a.raw", self.place / "target") as job:
                job.start()
        with self.pool.download("a.raw", self.place / "target") as job:
            with self.assertRaises(FileExistsError):
                job.start().wait()

    def test_job_that_is_interrupted_is_resumed(self):
        with contextlib.suppress(InterruptedError):
            with self.pool.create("a.raw", 8 * MIB, options=JobOptions(rate_bytes=8 * MIB)) as job:
                for step in job:
                    if step.done_bytes > 0:
                        job.interrupt()
        self.assertEqual(
            [(info.id, info.state) for info in self.pool.jobs()],
            [(job.id, JobState.INTERRUPTED)],
        )
        self.pool.resume(job.id).run()
        self.assertEqual(self.pool.volume("a.raw").written_bytes, 8 * MIB)
        self.assertIs(self.pool.wait(job.id).state, JobState.DONE)

    def test_exception_in_the_block_cancels_its_job(self):
        with self.assertRaises(KeyError):
            with self.pool.create("a.raw", 64 * MIB, options=SLOW) as job:
                for step in job:
                    raise KeyError("mine")
        self.assertIs(self.pool.job(job.id).state, JobState.CANCELLED)
        with self.assertRaises(KeyError):

            def broken(_):
                raise KeyError("mine")

            self.pool.create("a.raw", 64 * MIB, options=SLOW).run(progress=broken)
        self.assertFalse(self.path("a.raw").exists())

    def test_job_that_never_started_is_cancelled_or_left_to_be_resumed(self):
        job = self.pool.create("a.raw", MIB)
        self.assertIs(job.cancel().state, JobState.CANCELLED)
        with self.assertRaises(ValueError):
            job.start()
        with self.pool.create("a.raw", MIB) as job:
            pass
        self.assertIs(self.pool.job(job.id).state, JobState.INTERRUPTED)
        self.assertIs(self.pool.cancel(job.id).state, JobState.CANCELLED)
        with self.assertRaises(FileExistsError):
            self.pool.cancel(job.id)
        with self.assertRaises(FileNotFoundError):
            self.pool.job(99)


class Readme(InDirectory):
    def test_examples_run(self):
        readme = pathlib.Path(__file__).resolve().parents[1] / "README.md"
        code = [line for line in readme.read_text().splitlines() if line.startswith("    ")]
        code = [line for line in code if "python3 -m venv" not in line and "/bin/pip" not in line]
        # Smaller, and with a place of its own.
        program = textwrap.dedent("\n".join(code)).replace("<< 30", "<< 20")
        program = program.replace('"/srv/vms"', '"vms", definitions="defined"')
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.place)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(program, str(readme), "exec"), {})
        written, available = said.getvalue().split()[-2:]
        self.assertEqual(int(written), 30 * MIB)
        self.assertTrue(0 < int(available) <= 470 * MIB)


if __name__ == "__main__":
    unittest.main()
