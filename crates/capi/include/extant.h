/*
 * libextant: files, disk images and volumes whose space is really there (zeroed, written, in few extents).
 *
 * Calls return EXTANT_STATUS_OK or why not, and with `error` not null a line for people (extant_error_message), to be freed by
 * extant_error_free. Paths and names end with NUL; sizes, offsets and lengths are bytes.
 *
 * Options, infos, the entries of lists, and the reports on images begin with `struct_size`, so that programs and libraries of
 * different versions understand each other. Options have a function that sets it with the defaults. In a report or an info the
 * caller sets it before the call (`= sizeof info`), and gets as much as there is room for. The other structures never change:
 * extant_control, extant_progress, extant_extent, extant_create_report, extant_materialize_report and extant_probe_report.
 * A list is visited: its callback gets one entry after the other, valid until it returns.
 *
 * Everything may be called from several threads, also with the same pool or cancel; of a job, extant_job_run once. The library
 * starts no processes (but for pools of LVM), keeps no signal handlers, and leaves the caller's descriptors as they are. Long
 * calls start threads, which end before the call returns.
 *
 * Link with -lextant (pkg-config: extant).
 */

#ifndef EXTANT_H
#define EXTANT_H

/* Made by cbindgen from crates/capi/src/sys; changes are made there. */

#include <stddef.h>
#include <stdint.h>

/*
 Room for a path, with its NUL.
 */
#define EXTANT_PATH_BYTES 4096

/*
 Room for the name of a volume or pool, with its NUL.
 */
#define EXTANT_NAME_BYTES 256

/*
 Room for a message, with its NUL.
 */
#define EXTANT_MESSAGE_BYTES 1032

/*
 The next overwrite allocates: other files use the same space.
 */
#define EXTANT_EXTENT_SHARED 1

/*
 Compressed, inline, tail-packed or encrypted: not plain blocks.
 */
#define EXTANT_EXTENT_ENCODED 2

/*
 Data in memory that has no place yet.
 */
#define EXTANT_EXTENT_DELAYED 4

/*
 `physical` of an extent without a location, or of a map without locations.
 */
#define EXTANT_NO_PLACE UINT64_MAX

/*
 Status of a call. 0 is success; new ones may be added at the end.
 */
typedef enum {
  /*
   Done.
   */
  EXTANT_STATUS_OK = 0,
  /*
   An argument that can never be right.
   */
  EXTANT_STATUS_INVALID_ARGUMENT,
  /*
   No such file or directory.
   */
  EXTANT_STATUS_NOT_FOUND,
  /*
   The name is taken.
   */
  EXTANT_STATUS_ALREADY_EXISTS,
  /*
   Not a regular file (or block device, where that will do).
   */
  EXTANT_STATUS_WRONG_TYPE,
  /*
   The file system or device is read-only.
   */
  EXTANT_STATUS_READ_ONLY,
  /*
   The user may not do this, or the file is immutable.
   */
  EXTANT_STATUS_PERMISSION_DENIED,
  /*
   Another process has the file open, or it is an active swap file.
   */
  EXTANT_STATUS_IN_USE,
  /*
   The file system is full.
   */
  EXTANT_STATUS_NO_SPACE,
  /*
   A quota is used up.
   */
  EXTANT_STATUS_QUOTA_EXCEEDED,
  /*
   Past the largest size of the file system or of the process.
   */
  EXTANT_STATUS_TOO_LARGE,
  /*
   The file system does not offer the operation.
   */
  EXTANT_STATUS_UNSUPPORTED,
  /*
   Copy-on-write: written space would not stay in place.
   */
  EXTANT_STATUS_COPY_ON_WRITE,
  /*
   The file system reported success, and the result differs from the request.
   */
  EXTANT_STATUS_NOT_KEPT,
  /*
   The caller asked to stop.
   */
  EXTANT_STATUS_CANCELLED,
  /*
   Reading or writing failed, or what is stored contradicts itself.
   */
  EXTANT_STATUS_IO,
  /*
   A bug in this library.
   */
  EXTANT_STATUS_INTERNAL,
} extant_status;

/*
 Phase of a long operation.
 */
typedef enum {
  /*
   Others go first.
   */
  EXTANT_STEP_WAIT,
  /*
   Data is being read, to find zeros or holes.
   */
  EXTANT_STEP_SCAN,
  /*
   Space is being reserved.
   */
  EXTANT_STEP_ALLOCATE,
  /*
   Space is being written with zeros.
   */
  EXTANT_STEP_WRITE,
  /*
   Written data is being made durable.
   */
  EXTANT_STEP_SYNC,
  /*
   The result is being verified.
   */
  EXTANT_STEP_VERIFY,
  /*
   Data is being copied.
   */
  EXTANT_STEP_COPY,
} extant_step;

/*
 How the disk is used.
 */
typedef enum {
  /*
   As fast as it goes, or as `rate_bytes` allows.
   */
  EXTANT_PACE_FULL,
  /*
   Yields to all other users of the disk, within `rate_bytes`.
   */
  EXTANT_PACE_BACKGROUND,
} extant_pace;

/*
 How much space a new file gets.
 */
typedef enum {
  /*
   Nothing: the file is sparse.
   */
  EXTANT_PREALLOCATION_OFF,
  /*
   Space is reserved, unwritten.
   */
  EXTANT_PREALLOCATION_FALLOC,
  /*
   Space is written with zeros: later writes change no metadata of the file system.
   */
  EXTANT_PREALLOCATION_FULL,
} extant_preallocation;

/*
 State of a range.
 */
typedef enum {
  /*
   Nothing is allocated; reads return zeros.
   */
  EXTANT_STATE_HOLE,
  /*
   Allocated, never written; reads return zeros, and the first write changes metadata.
   */
  EXTANT_STATE_UNWRITTEN,
  /*
   Allocated, holding data, which may be zeros.
   */
  EXTANT_STATE_WRITTEN,
} extant_state;

/*
 How space would become written.
 */
typedef enum {
  /*
   Not at all: `reason` says why.
   */
  EXTANT_WAY_NONE,
  /*
   By the kernel's `FALLOC_FL_WRITE_ZEROES`.
   */
  EXTANT_WAY_WRITE_ZEROES,
  /*
   Allocated, then overwritten with zeros.
   */
  EXTANT_WAY_OVERWRITE,
  /*
   Zeros are written in order, as there is no fallocate.
   */
  EXTANT_WAY_WRITE_IN_ORDER,
} extant_way;

/*
 Format of a disk image.
 */
typedef enum {
  /*
   That of the name: qcow2 if it ends with .qcow2, else raw. An existing image is refused if
   name and contents contradict each other.
   */
  EXTANT_IMAGE_FORMAT_AUTO,
  /*
   The guest's bytes, and nothing else.
   */
  EXTANT_IMAGE_FORMAT_RAW,
  /*
   QEMU's format, version 2 or 3.
   */
  EXTANT_IMAGE_FORMAT_QCOW2,
} extant_image_format;

/*
 How much of a new image or volume is allocated, by QEMU's names.
 */
typedef enum {
  /*
   Nothing: space is allocated when the guest writes.
   */
  EXTANT_IMAGE_PREALLOCATION_OFF,
  /*
   qcow2: every cluster is mapped; the file is sparse.
   */
  EXTANT_IMAGE_PREALLOCATION_METADATA,
  /*
   Every cluster is mapped, and space is reserved, unwritten.
   */
  EXTANT_IMAGE_PREALLOCATION_FALLOC,
  /*
   Every cluster is mapped, and space is written with zeros.
   */
  EXTANT_IMAGE_PREALLOCATION_FULL,
} extant_image_preallocation;

/*
 Compression of clusters that other programs compress later.
 */
typedef enum {
  /*
   zlib.
   */
  EXTANT_IMAGE_COMPRESSION_ZLIB,
  /*
   Zstandard.
   */
  EXTANT_IMAGE_COMPRESSION_ZSTD,
} extant_image_compression;

/*
 Kind of a pool's storage.
 */
typedef enum {
  /*
   A directory of the host.
   */
  EXTANT_POOL_KIND_DIR,
  /*
   A directory in an ext4 image or on a disk, without a mount.
   */
  EXTANT_POOL_KIND_EXT4,
  /*
   Partitions of a disk, or of the image of one.
   */
  EXTANT_POOL_KIND_DISK,
  /*
   Logical volumes of an LVM volume group. Calls on it run the LVM tools: the one case in which
   this library starts processes.
   */
  EXTANT_POOL_KIND_LVM,
  /*
   Images of a pool of a Ceph cluster.
   */
  EXTANT_POOL_KIND_RBD,
  /*
   A kind of a later version.
   */
  EXTANT_POOL_KIND_OTHER,
} extant_pool_kind;

/*
 Phase of a job.
 */
typedef enum {
  /*
   For its turn.
   */
  EXTANT_JOB_STATE_WAITING,
  /*
   At work.
   */
  EXTANT_JOB_STATE_RUNNING,
  /*
   Its process has ended or gave it up; it can be resumed or cancelled.
   */
  EXTANT_JOB_STATE_INTERRUPTED,
  /*
   Ended well.
   */
  EXTANT_JOB_STATE_DONE,
  /*
   Ended with an error; the pool is as before.
   */
  EXTANT_JOB_STATE_FAILED,
  /*
   Ended by request; the pool is as before.
   */
  EXTANT_JOB_STATE_CANCELLED,
} extant_job_state;

/*
 Operation of a job.
 */
typedef enum {
  /*
   A new volume.
   */
  EXTANT_JOB_OPERATION_CREATE,
  /*
   A new volume with the content of another.
   */
  EXTANT_JOB_OPERATION_CLONE,
  /*
   Another capacity.
   */
  EXTANT_JOB_OPERATION_RESIZE,
  /*
   The content is destroyed.
   */
  EXTANT_JOB_OPERATION_WIPE,
  /*
   Holes and unwritten parts become written.
   */
  EXTANT_JOB_OPERATION_MATERIALIZE,
  /*
   A volume gets the content of a file.
   */
  EXTANT_JOB_OPERATION_UPLOAD,
  /*
   A file gets the content of a volume.
   */
  EXTANT_JOB_OPERATION_DOWNLOAD,
  /*
   An operation of a later version.
   */
  EXTANT_JOB_OPERATION_OTHER,
} extant_job_operation;

/*
 Treatment of a job whose `extant_job_run` is cancelled by its `control`.
 */
typedef enum {
  /*
   It is cancelled: the pool is as before.
   */
  EXTANT_JOB_ON_STOP_CANCEL,
  /*
   It is interrupted, and `extant_job_resume` continues it.
   */
  EXTANT_JOB_ON_STOP_INTERRUPT,
} extant_job_on_stop;

/*
 The order of jobs, and their shares of the pool's rate.
 */
typedef enum {
  /*
   As most.
   */
  EXTANT_JOB_PRIORITY_NORMAL,
  /*
   Behind the others.
   */
  EXTANT_JOB_PRIORITY_LOW,
  /*
   Before the others.
   */
  EXTANT_JOB_PRIORITY_HIGH,
} extant_job_priority;

/*
 A request to stop; see `extant_cancel_new`.
 */
typedef struct extant_cancel extant_cancel;

/*
 Cause of a failed call.
 */
typedef struct extant_error extant_error;

/*
 A pool, open. Calls may use it from several threads at a time.
 */
typedef struct extant_pool extant_pool;

/*
 A job that this process is to run. One thread at a time may run it; its number may be asked by
 others.
 */
typedef struct extant_job extant_job;

/*
 How a file is made. Fill it with `extant_create_options_init` first.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_preallocation`; full by default.
   */
  uint32_t preallocation;
  /*
   `extant_pace`; full by default.
   */
  uint32_t pace;
  /*
   Bytes written a second at most; 0, the default: no limit.
   */
  uint64_t rate_bytes;
  /*
   The number of first bytes to allocate; `UINT64_MAX`, the default: all.
   */
  uint64_t allocation_bytes;
  /*
   Permissions; `UINT32_MAX`, the default: 0666 without the umask's bits.
   */
  uint32_t mode;
  /*
   1: an existing regular file is replaced in one step when the new one is complete; 0, the
   default: refused.
   */
  uint32_t replace;
  /*
   1: on btrfs and its like, copy-on-write is turned off for the file, and with it checksums
   and compression; 0, the default: refused there.
   */
  uint32_t nocow;
  /*
   1: after a cancel or an error the partial file stays, and the next call resumes it; 0, the
   default: removed.
   */
  uint32_t keep_partial;
  /*
   In the background: the share of the disk beside other users, in hundredths of a percent,
   from 10 (0.1 %) to 10 000; 0, the default: 4 % of the time or 0.4 % of the bytes.
   */
  uint32_t background_basis_points;
  /*
   0.
   */
  uint32_t reserved;
} extant_create_options;

/*
 How far an operation is.
 */
typedef struct {
  /*
   The current phase: `extant_step`.
   */
  uint32_t step;
  /*
   0.
   */
  uint32_t reserved;
  /*
   Bytes that are in the wanted state already.
   */
  uint64_t done_bytes;
  /*
   Bytes to bring there in this step.
   */
  uint64_t total_bytes;
} extant_progress;

/*
 Takes the newest state, at least 5 times a second while it moves, on the thread that made the
 call; it should return at once. Anything but 0 cancels the operation.
 */
typedef int (*extant_progress_callback)(const extant_progress *progress, void *user);

/*
 The lines between a long operation and its caller. All may be null.
 */
typedef struct {
  /*
   Called with the progress.
   */
  extant_progress_callback progress;
  /*
   Given to `progress` as it is.
   */
  void *user;
  /*
   Stops it, from any thread or a signal handler.
   */
  const extant_cancel *cancel;
} extant_control;

/*
 Report of `extant_create`.
 */
typedef struct {
  /*
   The number of allocated first bytes.
   */
  uint64_t allocation_bytes;
  /*
   Bytes of zeros written by this call.
   */
  uint64_t written_bytes;
  /*
   Bytes that an earlier call had written.
   */
  uint64_t resumed_bytes;
  /*
   Extents of the file.
   */
  uint64_t extents;
} extant_create_report;

/*
 How a new image is made. Fill it with `extant_image_options_init` first. Fields of qcow2 are
 ignored for raw images.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_image_format`; by the name by default.
   */
  uint32_t format;
  /*
   `extant_image_preallocation`; `UINT32_MAX`, the default: full, but off for a copy and for an
   image with a backing file.
   */
  uint32_t preallocation;
  /*
   `extant_pace`; full by default.
   */
  uint32_t pace;
  /*
   As in `extant_create_options`.
   */
  uint32_t background_basis_points;
  /*
   Bytes written a second at most; 0, the default: no limit.
   */
  uint64_t rate_bytes;
  /*
   The number of first bytes of the disk to allocate; `UINT64_MAX`, the default: all. Not for
   copies.
   */
  uint64_t allocation_bytes;
  /*
   Permissions; `UINT32_MAX`, the default: 0666 without the umask's bits.
   */
  uint32_t mode;
  /*
   1: an existing file is replaced in one step when the image is complete, and a block device
   is overwritten; 0, the default: refused.
   */
  uint32_t replace;
  /*
   As in `extant_create_options`.
   */
  uint32_t nocow;
  /*
   As in `extant_create_options`; not for copies.
   */
  uint32_t keep_partial;
  /*
   qcow2: bytes of a cluster, a power of two from 512 to 2 MiB; 0, the default: 64 KiB.
   */
  uint32_t cluster_bytes;
  /*
   qcow2: bits of a refcount, a power of two from 1 to 64; 0, the default: 16.
   */
  uint32_t refcount_bits;
  /*
   qcow2: version of the format, 2 or 3; 0, the default: 3.
   */
  uint32_t version;
  /*
   qcow2: 1: refcounts may be written later; 0 by default.
   */
  uint32_t lazy_refcounts;
  /*
   qcow2: `extant_image_compression`; zlib by default.
   */
  uint32_t compression;
  /*
   qcow2: format of the backing file, which is never guessed: `EXTANT_IMAGE_FORMAT_RAW` or
   `_QCOW2`.
   */
  uint32_t backing_format;
  /*
   qcow2: name of the backing file as it will be in the image; a relative one begins in the
   directory of the image. Null, the default: none.
   */
  const char *backing_file;
  /*
   qcow2: name of a file for the guest's data, which is made. Null, the default: the data is in
   the image.
   */
  const char *data_file;
  /*
   qcow2: 1: the data file reads as the guest's disk; 0 by default.
   */
  uint32_t data_file_raw;
  /*
   qcow2: 1: the backing file need not exist; 0 by default.
   */
  uint32_t backing_unchecked;
} extant_image_options;

/*
 Report of `extant_image_create` and `extant_image_convert`. Set `struct_size` before the call.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   Size of the guest's disk, bytes.
   */
  uint64_t capacity_bytes;
  /*
   Size of the file, bytes.
   */
  uint64_t size_bytes;
  /*
   Bytes of zeros written by this call.
   */
  uint64_t written_bytes;
  /*
   Bytes that an earlier call had written.
   */
  uint64_t resumed_bytes;
  /*
   Extents of the file.
   */
  uint64_t extents;
} extant_image_report;

/*
 How the source of a copy is read. Fill it with `extant_image_source_init` first.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_image_format`; by name and contents by default.
   */
  uint32_t format;
  /*
   1: the backing files and data files that the image names are opened: the creator of the
   image chooses which files of the host these are; 0, the default: an image that needs one is
   refused.
   */
  uint32_t open_named_files;
  /*
   Threads that copy; 0, the default: by the number of processors. In the background: one.
   */
  uint32_t threads;
  /*
   0.
   */
  uint32_t reserved;
  /*
   Size of the new disk, bytes, at least that of the source; 0, the default: that of the
   source.
   */
  uint64_t capacity_bytes;
} extant_image_source;

/*
 Properties of an image. Set `struct_size` before the call.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_image_format`.
   */
  uint32_t format;
  /*
   `extant_image_preallocation`: the least mode that holds for the whole disk, as found.
   */
  uint32_t preallocation;
  /*
   Size of the guest's disk, bytes.
   */
  uint64_t capacity_bytes;
  /*
   Size of the file, bytes.
   */
  uint64_t size_bytes;
  /*
   Bytes of the file that have space.
   */
  uint64_t allocated_bytes;
  /*
   Bytes of the disk without space, in the image or on the host.
   */
  uint64_t hole_bytes;
  /*
   Bytes of the disk whose space is not written yet.
   */
  uint64_t unwritten_bytes;
  /*
   Bytes of the disk that are written.
   */
  uint64_t written_bytes;
  /*
   Of all these, bytes that the image maps: all of a raw one.
   */
  uint64_t mapped_bytes;
  /*
   qcow2: bytes of a cluster; the following fields are 0 for raw images.
   */
  uint64_t cluster_bytes;
  /*
   qcow2: bits of a refcount.
   */
  uint32_t refcount_bits;
  /*
   qcow2: version of the format, 2 or 3.
   */
  uint32_t version;
  /*
   qcow2: `extant_image_compression`.
   */
  uint32_t compression;
  /*
   qcow2: 1: refcounts may be written later.
   */
  uint32_t lazy_refcounts;
  /*
   qcow2: 1: refcounts may be wrong.
   */
  uint32_t is_dirty;
  /*
   qcow2: 1: structures are damaged.
   */
  uint32_t is_corrupt;
  /*
   qcow2: internal snapshots.
   */
  uint32_t snapshots;
  /*
   qcow2: 1: the data file reads as the guest's disk.
   */
  uint32_t data_file_raw;
  /*
   qcow2: format of the backing file as the image names it; empty: none.
   */
  char backing_format[32];
  /*
   qcow2: name of the backing file in the image; empty: none.
   */
  char backing_file[EXTANT_PATH_BYTES];
  /*
   qcow2: name of the data file in the image; empty: none.
   */
  char data_file[EXTANT_PATH_BYTES];
} extant_image_info;

/*
 How an image becomes full. Fill it with `extant_image_materialize_options_init` first.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_image_format`; by name and contents by default.
   */
  uint32_t format;
  /*
   1: the data file that the image names is materialized as well, and its backing file is read:
   the creator of the image chooses which files of the host these are; 0, the default: an image
   that needs one is refused.
   */
  uint32_t open_named_files;
  /*
   `extant_pace`; full by default. A block device has only that.
   */
  uint32_t pace;
  /*
   As in `extant_create_options`.
   */
  uint32_t background_basis_points;
  /*
   Bytes written a second at most; 0, the default: no limit. Not for block devices.
   */
  uint64_t rate_bytes;
} extant_image_materialize_options;

/*
 Report of `extant_image_materialize`. Set `struct_size` before the call.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   Size of the guest's disk, bytes, all of which is written now.
   */
  uint64_t capacity_bytes;
  /*
   Bytes of the disk that were written before.
   */
  uint64_t already_written_bytes;
  /*
   Size of the file, bytes.
   */
  uint64_t size_bytes;
} extant_image_materialize_report;

/*
 Snapshot of a job. Set `struct_size` before the call.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   Its number in its pool.
   */
  uint64_t id;
  /*
   `extant_job_state`.
   */
  uint32_t state;
  /*
   `extant_job_operation`.
   */
  uint32_t operation;
  /*
   How far it is, or was when it or its process ended; zeros before its first step.
   */
  extant_progress progress;
  /*
   Time of submission, seconds since 1970.
   */
  uint64_t created;
  /*
   Time of its end, seconds since 1970; 0: it has not ended.
   */
  uint64_t ended;
  /*
   `extant_status` with which it ended.
   */
  uint32_t status;
  /*
   The `errno` that fits best, of a job that ended otherwise than well; else 0.
   */
  int32_t error_number;
  /*
   The volume that it makes or works on.
   */
  char volume[EXTANT_NAME_BYTES];
  /*
   Why it ended otherwise than well, a line for people; else empty.
   */
  char message[EXTANT_MESSAGE_BYTES];
} extant_job_info;

/*
 Takes one job after the other; anything but 0 ends the visit, which is no error.
 */
typedef int (*extant_job_callback)(const extant_job_info *job, void *user);

/*
 A range of a file in one state.
 */
typedef struct {
  /*
   First byte in the file.
   */
  uint64_t logical;
  /*
   Bytes.
   */
  uint64_t length;
  /*
   First byte on the device, or `EXTANT_NO_PLACE`.
   */
  uint64_t physical;
  /*
   `extant_state`.
   */
  uint32_t state;
  /*
   `EXTANT_EXTENT_SHARED` and others.
   */
  uint32_t flags;
} extant_extent;

/*
 Takes one extent after the other, holes included; anything but 0 ends the visit, which is no
 error.
 */
typedef int (*extant_extent_callback)(const extant_extent *extent, void *user);

/*
 How holes and unwritten parts become written. Fill it with `extant_materialize_options_init`
 first.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   The first byte; 0 by default.
   */
  uint64_t offset;
  /*
   Bytes, cut at the end of the file; `UINT64_MAX`, the default: all that follow.
   */
  uint64_t length;
  /*
   `extant_pace`; full by default.
   */
  uint32_t pace;
  /*
   1: the caller guarantees that no process writes to the range meanwhile, though others have
   the file open; 0, the default: refused then, and stopped when another process opens it.
   */
  uint32_t shared_access;
  /*
   Bytes written a second at most; 0, the default: no limit.
   */
  uint64_t rate_bytes;
  /*
   1: parts shared with other files (reflinks) get space of their own; 0, the default: refused.
   */
  uint32_t unshare;
  /*
   In the background: the share of the disk beside other users, in hundredths of a percent,
   from 10 (0.1 %) to 10 000; 0, the default: 4 % of the time or 0.4 % of the bytes.
   */
  uint32_t background_basis_points;
} extant_materialize_options;

/*
 Report of `extant_materialize`.
 */
typedef struct {
  /*
   Bytes that were written before.
   */
  uint64_t already_written_bytes;
  /*
   Bytes of zeros written.
   */
  uint64_t zeroed_bytes;
  /*
   Bytes that got space of their own.
   */
  uint64_t unshared_bytes;
} extant_materialize_report;

/*
 How a pool is defined. Fill it with `extant_pool_options_init` first.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_pool_kind`: `_DIR`, the default, `_EXT4` or `_DISK`.
   */
  uint32_t kind;
  /*
   Default preallocation of new volumes: `extant_preallocation`; full by default.
   */
  uint32_t preallocation;
  /*
   Maximum space of all volumes together, bytes; 0, the default: the size of the file system.
   */
  uint64_t total_bytes;
  /*
   Bytes a second that all jobs in the background write together; 0, the default: no limit.
   */
  uint64_t rate_bytes;
  /*
   Capacity that may be promised for each byte of space, from 0.01 to 1000; 1 by default.
   */
  double overcommit;
  /*
   Maximum number of running jobs, the others wait; 4 by default.
   */
  uint32_t jobs_max;
  /*
   Disk: 1: an existing partition table is used, and its partitions are kept; 0, the default:
   refused.
   */
  uint32_t adopt;
  /*
   ext4: the directory of the volumes, made if it does not exist. Null, the default: the root.
   */
  const char *directory;
  /*
   ext4, disk: the state directory. Null, the default: next to the image; for a disk in
   /var/lib/extant/pools, of users in `$XDG_STATE_HOME`.
   */
  const char *state;
} extant_pool_options;

/*
 A pool in a list.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_pool_kind`.
   */
  uint32_t kind;
  /*
   0, or for an unreadable definition the `extant_status` of its error.
   */
  uint32_t status;
  /*
   Its name.
   */
  char name[EXTANT_NAME_BYTES];
  /*
   Location of the volumes; empty for an unreadable definition.
   */
  char path[EXTANT_PATH_BYTES];
  /*
   Cause for an unreadable definition, else empty.
   */
  char message[EXTANT_MESSAGE_BYTES];
} extant_pool_entry;

/*
 Takes one pool after the other; anything but 0 ends the visit, which is no error.
 */
typedef int (*extant_pool_callback)(const extant_pool_entry *pool, void *user);

/*
 Properties of a pool. Set `struct_size` before the call.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_pool_kind`.
   */
  uint32_t kind;
  /*
   Number of waiting and running jobs.
   */
  uint32_t jobs;
  /*
   Size of the file system, within the pool's limit, bytes. Others may have files there.
   */
  uint64_t total_bytes;
  /*
   Space of volumes and unfinished files, bytes.
   */
  uint64_t allocated_bytes;
  /*
   Free on the file system, within the pool's limit, bytes.
   */
  uint64_t free_bytes;
  /*
   Capacity of all volumes, and of those being made, bytes.
   */
  uint64_t promised_bytes;
  /*
   Space that running jobs will still allocate, bytes.
   */
  uint64_t reserved_bytes;
  /*
   Capacity that a new volume may have, bytes.
   */
  uint64_t available_bytes;
  /*
   Number of volumes.
   */
  uint64_t volumes;
  /*
   Its name; empty for a directory or an image without a definition.
   */
  char name[EXTANT_NAME_BYTES];
  /*
   Location of the volumes.
   */
  char path[EXTANT_PATH_BYTES];
} extant_pool_info;

/*
 Capabilities of a path.
 */
typedef struct {
  /*
   Strategy that `extant_create` would use: `extant_way`.
   */
  uint32_t way;
  /*
   1: files can share space (reflinks).
   */
  uint32_t has_reflink;
  /*
   Bytes of a block of the file system.
   */
  uint64_t block_bytes;
  /*
   Bytes free for this user.
   */
  uint64_t available_bytes;
  /*
   Name of the file system, as mount(8) has it; ends with NUL.
   */
  char filesystem[32];
  /*
   Why that way, or why none; ends with NUL, and is cut where it is longer.
   */
  char reason[200];
} extant_probe_report;

/*
 A volume in a list.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_image_format`; `_AUTO` if none is set and the content looks like qcow2.
   */
  uint32_t format;
  /*
   0.
   */
  uint32_t reserved;
  /*
   Its logical size, bytes.
   */
  uint64_t capacity_bytes;
  /*
   Its space on the file system, bytes.
   */
  uint64_t allocated_bytes;
  /*
   Its name.
   */
  char name[EXTANT_NAME_BYTES];
} extant_volume_entry;

/*
 Takes one volume after the other; anything but 0 ends the visit, which is no error.
 */
typedef int (*extant_volume_callback)(const extant_volume_entry *volume, void *user);

/*
 Properties of a volume. Set `struct_size` before the call.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   `extant_image_format`; `_AUTO` if none is set and the content looks like qcow2.
   */
  uint32_t format;
  /*
   qcow2: `extant_image_preallocation`, as found; 0 for others.
   */
  uint32_t preallocation;
  /*
   Its logical size, bytes.
   */
  uint64_t capacity_bytes;
  /*
   Size of its file, bytes.
   */
  uint64_t size_bytes;
  /*
   Its space on the file system, bytes.
   */
  uint64_t allocated_bytes;
  /*
   Bytes of the disk whose overwrite changes no metadata, of the file system or of the image.
   */
  uint64_t written_bytes;
  /*
   Extents of the file, without holes.
   */
  uint64_t extents;
  /*
   1: a write into the volume may fail because the file system is full.
   */
  uint32_t may_run_out_of_space;
  /*
   Permissions of the file.
   */
  uint32_t mode;
  /*
   Number of its owner.
   */
  uint32_t uid;
  /*
   Number of its group.
   */
  uint32_t gid;
  /*
   Its name.
   */
  char name[EXTANT_NAME_BYTES];
  /*
   Its file: of the host; in an ext4 image the image and the name; of a Ceph cluster its name
   there.
   */
  char path[EXTANT_PATH_BYTES];
} extant_volume_info;

/*
 Options of the calls that make jobs. Fill it with `extant_volume_options_init` first. A call
 ignores fields that are not its own.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   All: `extant_job_priority`; normal by default.
   */
  uint32_t priority;
  /*
   All: `extant_pace`; full by default. In the background the job uses its share of the pool's
   rate.
   */
  uint32_t pace;
  /*
   All: bytes a second at most; 0, the default: no limit.
   */
  uint64_t rate_bytes;
  /*
   All: as in `extant_create_options`.
   */
  uint32_t background_basis_points;
  /*
   Create, clone, upload: permissions; 0600 by default.
   */
  uint32_t mode;
  /*
   Create, resize: `extant_image_preallocation` of the new part; `UINT32_MAX`, the default:
   that of the pool, but off for an image with a backing file.
   */
  uint32_t preallocation;
  /*
   Resize: 1: the capacity may become smaller, which loses the data past it; 0 by default.
   */
  uint32_t shrink;
  /*
   Create: the number of first bytes to allocate; `UINT64_MAX`, the default: all.
   */
  uint64_t allocation_bytes;
  /*
   Create, upload: `extant_image_format`; by the name by default, and of an upload refused if
   the content contradicts it.
   */
  uint32_t format;
  /*
   Create: as in `extant_create_options`.
   */
  uint32_t nocow;
  /*
   Create: 1: all of the new volume is read back before it has its name; 0, the default:
   samples.
   */
  uint32_t verify_all;
  /*
   Clone: 1: data is copied, 2: space is shared (reflink) or it fails; 0, the default: shared
   where the file system can.
   */
  uint32_t clone_method;
  /*
   Materialize: 1: parts shared with other volumes get space of their own; 0 by default.
   */
  uint32_t unshare;
  /*
   Upload, download: 1: an existing volume or file is replaced; 0, the default: refused.
   */
  uint32_t replace;
  /*
   Upload: 1: an image may name a backing file, which every user of the volume reads; 0, the
   default: refused.
   */
  uint32_t allow_backing;
  /*
   0.
   */
  uint32_t reserved;
  /*
   Create, qcow2: the fields of qcow2 of these options are used; null, the default: QEMU's
   defaults.
   */
  const extant_image_options *qcow2;
} extant_volume_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of the library, such as `0.1.0`.
 */
const char *extant_version(void);

/*
 A new request to stop. Several operations may share it. Free it with `extant_cancel_free`.
 */
extant_cancel *extant_cancel_new(void);

/*
 Stops every operation that was given `cancel`, now and later: each returns
 `EXTANT_STATUS_CANCELLED` within 100 ms. May be called from any thread and from a signal
 handler.

 # Safety
 `cancel` is null or from `extant_cancel_new`.
 */
void extant_cancel_now(const extant_cancel *cancel);

/*
 Frees what no operation uses any more.

 # Safety
 `cancel` is null or from `extant_cancel_new`, and not freed yet.
 */
void extant_cancel_free(extant_cancel *cancel);

/*
 Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
 `extant_create_options_init` calls it with `sizeof *options`.

 # Safety
 `options` is null or has `struct_size` bytes that can be written to.
 */
void extant_create_options_init_sized(extant_create_options *options, size_t struct_size);

/*
 Makes the file `path` of `size_bytes`, whose space is allocated when this returns
 `EXTANT_STATUS_OK`: durable and verified with the extent map. It appears under its name when it
 is complete, and not before.

 `options`, `control`, `report` and `error` may be null.

 # Safety
 Every non-null pointer is valid for its type. `error` gets null, or what `extant_error_free`
 frees.
 */
extant_status extant_create(const char *path,
                            uint64_t size_bytes,
                            const extant_create_options *options,
                            const extant_control *control,
                            extant_create_report *report,
                            extant_error **error);

/*
 The line for people: path, what was being done, what went wrong, what can be done about it.
 Lives as long as the error. Empty for null.

 # Safety
 `error` is null or from a call of this library, and not freed yet.
 */
const char *extant_error_message(const extant_error *error);

/*
 The `errno` that fits best: the operating system's own, where it was the one that refused. 0 for
 null.

 # Safety
 `error` is null or from a call of this library, and not freed yet.
 */
int extant_error_errno(const extant_error *error);

/*
 # Safety
 `error` is null or from a call of this library, and not freed yet.
 */
void extant_error_free(extant_error *error);

/*
 Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
 `extant_image_options_init` calls it with `sizeof *options`.

 # Safety
 `options` is null or has `struct_size` bytes that can be written to.
 */
void extant_image_options_init_sized(extant_image_options *options, size_t struct_size);

/*
 Makes the disk image `path` with a disk of `capacity_bytes`, with the guarantees of
 `extant_create`: durable and verified, and without its name until it is complete. On a block
 device a qcow2 image overwrites the contents.

 `options`, `control`, `report` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_image_create(const char *path,
                                  uint64_t capacity_bytes,
                                  const extant_image_options *options,
                                  const extant_control *control,
                                  extant_image_report *report,
                                  extant_error **error);

/*
 Sets the defaults in `source`, of which the caller knows `struct_size` bytes. The header's
 `extant_image_source_init` calls it with `sizeof *source`.

 # Safety
 `source` is null or has `struct_size` bytes that can be written to.
 */
void extant_image_source_init_sized(extant_image_source *source, size_t struct_size);

/*
 Copies the disk in the image `source` into the new image `target`, which has its name when it is
 complete. No process may write to the source meanwhile: `EXTANT_STATUS_IN_USE`. Holes and zeros
 are not read. After an error or a cancel no file is left.

 `how`, `options`, `control`, `report` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_image_convert(const char *source,
                                   const char *target,
                                   const extant_image_source *how,
                                   const extant_image_options *options,
                                   const extant_control *control,
                                   extant_image_report *report,
                                   extant_error **error);

/*
 Describes the image `path` in `format` (`extant_image_format`). It is read only, and others may
 use it meanwhile. The files that it names are not opened.

 `control` and `error` may be null. `control` has a cancel; there is no progress.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_image_get_info(const char *path,
                                    uint32_t format,
                                    const extant_control *control,
                                    extant_image_info *info,
                                    extant_error **error);

/*
 Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
 `extant_image_materialize_options_init` calls it with `sizeof *options`.

 # Safety
 `options` is null or has `struct_size` bytes that can be written to.
 */
void extant_image_materialize_options_init_sized(extant_image_materialize_options *options,
                                                 size_t struct_size);

/*
 Makes the image `path` full in place: every cluster mapped and written, data preserved. No other
 process may have it open: `EXTANT_STATUS_IN_USE`. Clusters shared with snapshots are copied,
 compressed ones expanded. After an error or a cancel the data is as before, and another call
 does the rest.

 `options`, `control`, `report` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_image_materialize(const char *path,
                                       const extant_image_materialize_options *options,
                                       const extant_control *control,
                                       extant_image_materialize_report *report,
                                       extant_error **error);

/*
 The number of a job in its pool, by which all processes know it; 0 for null.

 # Safety
 `job` is null or from a call of this library, and not freed yet.
 */
uint64_t extant_job_id(const extant_job *job);

/*
 Waits for the job's turn and does its work, on this thread, with progress. `extant_job_cancel`
 of any process stops it too. A job runs once.

 `on_stop` is an `extant_job_on_stop`. After an error the pool is as before, except for an
 interrupted job: after a cancel if `on_stop` says so, and where the storage fails in a way that
 can be mended.

 `control` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_job_run(const extant_job *job,
                             uint32_t on_stop,
                             const extant_control *control,
                             extant_error **error);

/*
 Frees a job. One that has not run is interrupted: `extant_job_resume` continues it, in any
 process.

 # Safety
 `job` is null or from a call of this library, not freed yet and not at work.
 */
void extant_job_free(extant_job *job);

/*
 Resumes the interrupted job `id`: this process is to run it. Its needs are reserved again.

 `EXTANT_STATUS_IN_USE` while a process works on it, `EXTANT_STATUS_ALREADY_EXISTS` if it has
 ended. `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `job` receives null, or an object for
 `extant_job_free`; `error` null, or one for `extant_error_free`.
 */
extant_status extant_job_resume(const extant_pool *pool, uint64_t id, extant_job **job, extant_error **error);

/*
 Visits the jobs that a pool remembers, oldest first: those of all processes.

 `error` may be null.

 # Safety
 `visit` takes `user`; pointers that are not null are valid for their type. `error` receives
 null, or an object for `extant_error_free`.
 */
extant_status extant_job_list(const extant_pool *pool,
                              extant_job_callback visit,
                              void *user,
                              extant_error **error);

/*
 Describes the job `id`, of any process.

 `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_job_get_info(const extant_pool *pool,
                                  uint64_t id,
                                  extant_job_info *info,
                                  extant_error **error);

/*
 Waits until the job `id`, of any process, has ended or is interrupted, with its progress about
 10 times a second; `info` then says how it ended. A cancel ends the wait; the job continues.

 `control`, `info` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_job_wait(const extant_pool *pool,
                              uint64_t id,
                              const extant_control *control,
                              extant_job_info *info,
                              extant_error **error);

/*
 Cancels the job `id`, of any process, and returns when the pool is as before it; `info` then
 says how it ended, which may be well where it was done first.

 `EXTANT_STATUS_ALREADY_EXISTS` if it had ended before, `EXTANT_STATUS_IN_USE` if its process
 does not answer for 30 seconds: free a job of this process that is not run yet before it is
 cancelled. `info` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_job_cancel(const extant_pool *pool,
                                uint64_t id,
                                extant_job_info *info,
                                extant_error **error);

/*
 Visits the extents of `length` bytes from `offset` of the file `path`, cut at its end;
 `UINT64_MAX` are all.

 `error` may be null.

 # Safety
 `visit` takes `user`; what is not null is what its type says. `error` gets null, or what
 `extant_error_free` frees.
 */
extant_status extant_map(const char *path,
                         uint64_t offset,
                         uint64_t length,
                         extant_extent_callback visit,
                         void *user,
                         extant_error **error);

/*
 The same for an open file.

 # Safety
 As of `extant_map`; the descriptor stays open during the call.
 */
extant_status extant_map_fd(int fd,
                            uint64_t offset,
                            uint64_t length,
                            extant_extent_callback visit,
                            void *user,
                            extant_error **error);

/*
 Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
 `extant_materialize_options_init` calls it with `sizeof *options`.

 # Safety
 `options` is null or has `struct_size` bytes that can be written to.
 */
void extant_materialize_options_init_sized(extant_materialize_options *options, size_t struct_size);

/*
 Makes the holes and unwritten parts of the file `path` written zeros; its data stays. Called
 again after a cancel or a crash it writes only the missing part.

 `options`, `control`, `report` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_materialize(const char *path,
                                 const extant_materialize_options *options,
                                 const extant_control *control,
                                 extant_materialize_report *report,
                                 extant_error **error);

/*
 The same for a file that is open for reading and writing. With `shared_access` 0 no other
 process may have it open.

 # Safety
 As of `extant_materialize`; the descriptor stays open during the call.
 */
extant_status extant_materialize_fd(int fd,
                                    const extant_materialize_options *options,
                                    const extant_control *control,
                                    extant_materialize_report *report,
                                    extant_error **error);

/*
 Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
 `extant_pool_options_init` calls it with `sizeof *options`.

 # Safety
 `options` is null or has `struct_size` bytes that can be written to.
 */
void extant_pool_options_init_sized(extant_pool_options *options, size_t struct_size);

/*
 Defines the pool `name` in the directory, ext4 image or disk `path`, and opens it as
 `extant_pool_open` does. A directory is made if it does not exist. `definitions` is the
 directory of definitions; null: /etc/extant/pools, of other users than root `extant/pools` in
 their configuration directory.

 `definitions`, `options`, `pool` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `pool` receives null, or an object for
 `extant_pool_free`; `error` null, or one for `extant_error_free`.
 */
extant_status extant_pool_define(const char *name,
                                 const char *path,
                                 const char *definitions,
                                 const extant_pool_options *options,
                                 extant_pool **pool,
                                 extant_error **error);

/*
 Opens a pool by the name of its definition, or, with a slash, `.` or `..`, by the path of a
 directory or an ext4 image. `definitions` is as in `extant_pool_define`.

 `definitions` and `error` may be null.

 # Safety
 As of `extant_pool_define`.
 */
extant_status extant_pool_open(const char *place,
                               const char *definitions,
                               extant_pool **pool,
                               extant_error **error);

/*
 Frees a pool. Jobs that were made with it stay valid.

 # Safety
 `pool` is null or from a call of this library, and not freed yet.
 */
void extant_pool_free(extant_pool *pool);

/*
 Removes the definition `name`; the volumes are kept. `definitions` is as in
 `extant_pool_define`.

 `definitions` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_pool_undefine(const char *name, const char *definitions, extant_error **error);

/*
 Visits the definitions of pools, by name. An unreadable one is visited with its error.
 `definitions` is as in `extant_pool_define`.

 `definitions` and `error` may be null.

 # Safety
 `visit` takes `user`; pointers that are not null are valid for their type. `error` receives
 null, or an object for `extant_error_free`.
 */
extant_status extant_pool_list(const char *definitions,
                               extant_pool_callback visit,
                               void *user,
                               extant_error **error);

/*
 Describes a pool.

 `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_pool_get_info(const extant_pool *pool, extant_pool_info *info, extant_error **error);

/*
 Tries what the file system at `path` can do, on scratch files of which nothing stays. `path` is
 a directory, or a file in the one that is tried.

 `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_probe(const char *path, extant_probe_report *report, extant_error **error);

/*
 Visits the volumes of a pool, by name.

 `error` may be null.

 # Safety
 `visit` takes `user`; pointers that are not null are valid for their type. `error` receives
 null, or an object for `extant_error_free`.
 */
extant_status extant_volume_list(const extant_pool *pool,
                                 extant_volume_callback visit,
                                 void *user,
                                 extant_error **error);

/*
 Describes a volume.

 `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_volume_get_info(const extant_pool *pool,
                                     const char *volume,
                                     extant_volume_info *info,
                                     extant_error **error);

/*
 Removes a volume. With `force` 0 a volume that another process has open is refused
 (`EXTANT_STATUS_IN_USE`); with 1 its data is lost when that process ends. Descriptors of this
 process do not count.

 `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_volume_delete(const extant_pool *pool,
                                   const char *volume,
                                   uint32_t force,
                                   extant_error **error);

/*
 Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
 `extant_volume_options_init` calls it with `sizeof *options`.

 # Safety
 `options` is null or has `struct_size` bytes that can be written to.
 */
void extant_volume_options_init_sized(extant_volume_options *options, size_t struct_size);

/*
 Makes a job that creates the volume `volume` of `capacity_bytes`, and reserves its space: of two
 jobs that do not both fit, one is refused here (`EXTANT_STATUS_NO_SPACE`). `extant_job_run` does
 the work. An interrupted job of the same operation is resumed instead.

 `options` and `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `job` receives null, or an object for
 `extant_job_free`; `error` null, or one for `extant_error_free`.
 */
extant_status extant_volume_create(const extant_pool *pool,
                                   const char *volume,
                                   uint64_t capacity_bytes,
                                   const extant_volume_options *options,
                                   extant_job **job,
                                   extant_error **error);

/*
 Makes a job that creates the volume `volume` with the content of `source`; otherwise as
 `extant_volume_create`.

 # Safety
 As of `extant_volume_create`.
 */
extant_status extant_volume_clone(const extant_pool *pool,
                                  const char *source,
                                  const char *volume,
                                  const extant_volume_options *options,
                                  extant_job **job,
                                  extant_error **error);

/*
 Makes a job that gives the volume `volume` another capacity; otherwise as
 `extant_volume_create`.

 # Safety
 As of `extant_volume_create`.
 */
extant_status extant_volume_resize(const extant_pool *pool,
                                   const char *volume,
                                   uint64_t capacity_bytes,
                                   const extant_volume_options *options,
                                   extant_job **job,
                                   extant_error **error);

/*
 Makes a job that makes the holes and unwritten parts of the volume `volume` written, data
 preserved; otherwise as `extant_volume_create`.

 # Safety
 As of `extant_volume_create`.
 */
extant_status extant_volume_materialize(const extant_pool *pool,
                                        const char *volume,
                                        const extant_volume_options *options,
                                        extant_job **job,
                                        extant_error **error);

/*
 Makes a job that creates the volume `volume` with the content of the file `path`; otherwise as
 `extant_volume_create`.

 # Safety
 As of `extant_volume_create`.
 */
extant_status extant_volume_upload(const extant_pool *pool,
                                   const char *volume,
                                   const char *path,
                                   const extant_volume_options *options,
                                   extant_job **job,
                                   extant_error **error);

/*
 Makes a job that creates the file `path` with the content of the volume `volume`; otherwise as
 `extant_volume_create`.

 # Safety
 As of `extant_volume_create`.
 */
extant_status extant_volume_download(const extant_pool *pool,
                                     const char *volume,
                                     const char *path,
                                     const extant_volume_options *options,
                                     extant_job **job,
                                     extant_error **error);

/*
 Zeroes `length` bytes from `offset` of the file `path` and leaves them written, by
 `FALLOC_FL_WRITE_ZEROES` if the kernel and the disk support it, else by writing. The file grows
 to the end of the range. A cancel leaves a part of it zeroed.

 `control` and `error` may be null.

 # Safety
 Every non-null pointer is valid for its type. `error` gets null, or what `extant_error_free`
 frees.
 */
extant_status extant_write_zeroes(const char *path,
                                  uint64_t offset,
                                  uint64_t length,
                                  const extant_control *control,
                                  extant_error **error);

/*
 The same for a file that is open for reading and writing.

 # Safety
 As of `extant_write_zeroes`; the descriptor stays open during the call.
 */
extant_status extant_write_zeroes_fd(int fd,
                                     uint64_t offset,
                                     uint64_t length,
                                     const extant_control *control,
                                     extant_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* Each sets the defaults in options as this header has them. */

static __inline__ void extant_create_options_init(extant_create_options *options)
{
  extant_create_options_init_sized(options, sizeof *options);
}

static __inline__ void extant_materialize_options_init(extant_materialize_options *options)
{
  extant_materialize_options_init_sized(options, sizeof *options);
}

static __inline__ void extant_image_options_init(extant_image_options *options)
{
  extant_image_options_init_sized(options, sizeof *options);
}

static __inline__ void extant_image_source_init(extant_image_source *source)
{
  extant_image_source_init_sized(source, sizeof *source);
}

static __inline__ void extant_image_materialize_options_init(extant_image_materialize_options *options)
{
  extant_image_materialize_options_init_sized(options, sizeof *options);
}

static __inline__ void extant_pool_options_init(extant_pool_options *options)
{
  extant_pool_options_init_sized(options, sizeof *options);
}

static __inline__ void extant_volume_options_init(extant_volume_options *options)
{
  extant_volume_options_init_sized(options, sizeof *options);
}

#endif /* EXTANT_H */
