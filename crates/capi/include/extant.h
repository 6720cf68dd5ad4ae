/*
 * libextant: files whose space is really there (zeroed, written, in few extents).
 *
 * Calls return EXTANT_STATUS_OK or why not, and with `error` not null a line for people (extant_error_message), to be freed by
 * extant_error_free. Paths end with NUL; sizes, offsets and lengths are bytes. Everything may be called from several threads.
 *
 * Link with -lextant (pkg-config: extant).
 */

#ifndef EXTANT_H
#define EXTANT_H

/* Made by cbindgen from crates/capi/src/sys; changes are made there. */

#include <stddef.h>
#include <stdint.h>

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
 A request to stop; see `extant_cancel_new`.
 */
typedef struct extant_cancel extant_cancel;

/*
 Cause of a failed call.
 */
typedef struct extant_error extant_error;

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
 Sets the defaults.

 # Safety
 `options` can be written to.
 */
void extant_create_options_init(extant_create_options *options);

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
 Lives as long as the error.

 # Safety
 `error` is from a call of this library, and not freed yet.
 */
const char *extant_error_message(const extant_error *error);

/*
 The `errno` that fits best: the operating system's own, where it was the one that refused.

 # Safety
 `error` is from a call of this library, and not freed yet.
 */
int extant_error_errno(const extant_error *error);

/*
 # Safety
 `error` is null or from a call of this library, and not freed yet.
 */
void extant_error_free(extant_error *error);

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
 Sets the defaults.

 # Safety
 `options` can be written to.
 */
void extant_materialize_options_init(extant_materialize_options *options);

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
 Tries what the file system at `path` can do, on scratch files of which nothing stays. `path` is
 a directory, or a file in the one that is tried.

 `error` may be null.

 # Safety
 Pointers that are not null are valid for their type. `error` receives null, or an object for
 `extant_error_free`.
 */
extant_status extant_probe(const char *path, extant_probe_report *report, extant_error **error);

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

#endif  /* EXTANT_H */
