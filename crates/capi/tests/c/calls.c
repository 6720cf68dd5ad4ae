/* Every call, in the current directory, which is on ext4; ends with 0 when each did what the header says. */

#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

struct map {
    uint64_t bytes[3];
    int extents;
    int most;
};

static int add(const extant_extent *extent, void *user)
{
    struct map *map = user;
    map->bytes[extent->state] += extent->length;
    map->extents++;
    return map->extents == map->most;
}

static struct map map_of(const char *path)
{
    struct map map = {.most = -1};
    CHECK(extant_map(path, 0, UINT64_MAX, add, &map, NULL) == EXTANT_STATUS_OK);
    return map;
}

static int stop(const extant_progress *progress, void *user)
{
    CHECK(progress->done_bytes <= progress->total_bytes);
    ++*(int *)user;
    return 1;
}

static int forks;

static void forked(void)
{
    forks++;
}

/* What a descriptor has that a call must leave alone. */
struct descriptor {
    int flags;
    int signal;
    int lease;
    off_t position;
    struct f_owner_ex owner;
};

static struct descriptor descriptor_of(int fd)
{
    struct descriptor found;
    memset(&found, 0, sizeof found);
    found.flags = fcntl(fd, F_GETFL);
    found.signal = fcntl(fd, F_GETSIG);
    found.lease = fcntl(fd, F_GETLEASE);
    found.position = lseek(fd, 0, SEEK_CUR);
    CHECK(fcntl(fd, F_GETOWN_EX, &found.owner) == 0);
    return found;
}

static void creation(void)
{
    extant_create_options options;
    extant_create_options_init(&options);
    CHECK(options.struct_size == sizeof options);
    extant_error *error = (extant_error *)1;
    CHECK(extant_create("full", 8 * MIB, NULL, NULL, NULL, &error) == EXTANT_STATUS_OK && error == NULL);
    CHECK(map_of("full").bytes[EXTANT_STATE_WRITTEN] == 8 * MIB);
    FAILS(extant_create("full", MIB, NULL, NULL, NULL, &error), EXTANT_STATUS_ALREADY_EXISTS, EEXIST);

    options.preallocation = EXTANT_PREALLOCATION_FALLOC;
    options.allocation_bytes = 4 * MIB;
    options.mode = 0600;
    options.replace = 1;
    extant_create_report report;
    CHECK(extant_create("full", 8 * MIB, &options, NULL, &report, NULL) == EXTANT_STATUS_OK);
    CHECK(report.allocation_bytes == 4 * MIB && report.written_bytes == 0);
    struct map map = map_of("full");
    CHECK(map.bytes[EXTANT_STATE_UNWRITTEN] == 4 * MIB && map.bytes[EXTANT_STATE_HOLE] == 4 * MIB);
    struct stat found;
    CHECK(stat("full", &found) == 0 && (found.st_mode & 07777) == 0600);

    /* What cannot be. */
    FAILS(extant_create("x", 1 << 30, NULL, NULL, NULL, &error), EXTANT_STATUS_NO_SPACE, ENOSPC);
    FAILS(extant_create(NULL, 1, NULL, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_create("none/x", 1, NULL, NULL, NULL, &error), EXTANT_STATUS_NOT_FOUND, ENOENT);
    options.preallocation = 17;
    FAILS(extant_create("x", MIB, &options, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    extant_create_options empty = {0};
    FAILS(extant_create("x", MIB, &empty, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    CHECK(access("x", F_OK) != 0);

    /* A share is for the background, and from 0.1 % to 100 %. */
    extant_create_options shared;
    extant_create_options_init(&shared);
    shared.background_basis_points = 1000;
    FAILS(extant_create("x", MIB, &shared, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    shared.pace = EXTANT_PACE_BACKGROUND;
    CHECK(extant_create("shared", MIB, &shared, NULL, NULL, NULL) == EXTANT_STATUS_OK);
    shared.background_basis_points = 9;
    FAILS(extant_create("x", MIB, &shared, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    shared.background_basis_points = 10001;
    FAILS(extant_create("x", MIB, &shared, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    /* A caller of an earlier version has no such field. */
    shared.struct_size = offsetof(extant_create_options, background_basis_points);
    CHECK(extant_create("earlier", MIB, &shared, NULL, NULL, NULL) == EXTANT_STATUS_OK);

    /* Options of a later version count unless they are zeros. */
    struct {
        extant_create_options known;
        uint64_t later;
    } larger;
    extant_create_options_init(&larger.known);
    larger.known.struct_size = sizeof larger;
    larger.later = 0;
    CHECK(extant_create("later", MIB, &larger.known, NULL, NULL, NULL) == EXTANT_STATUS_OK);
    larger.later = 1;
    FAILS(extant_create("x", MIB, &larger.known, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
}

static void stopping(void)
{
    int told = 0;
    extant_control control = {.progress = stop, .user = &told};
    FAILS(extant_create("x", 32 * MIB, NULL, &control, NULL, &error), EXTANT_STATUS_CANCELLED, EINTR);
    CHECK(told > 0);
    extant_cancel *cancel = extant_cancel_new();
    extant_cancel_now(cancel);
    extant_control stopped = {.cancel = cancel};
    FAILS(extant_create("x", 32 * MIB, NULL, &stopped, NULL, &error), EXTANT_STATUS_CANCELLED, EINTR);
    CHECK(access("x", F_OK) != 0);
    extant_cancel_free(cancel);
    extant_cancel_free(NULL);
}

static void existing_files(void)
{
    int fd = open("thin", O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(fd >= 0 && ftruncate(fd, 4 * MIB) == 0 && pwrite(fd, "data", 4, MIB) == 4);
    /* Open here, so the write lease cannot be had. */
    FAILS(extant_materialize("thin", NULL, NULL, NULL, &error), EXTANT_STATUS_IN_USE, EAGAIN);
    extant_materialize_options options;
    extant_materialize_options_init(&options);
    options.shared_access = 1;
    options.length = 2 * MIB;
    extant_materialize_report report;
    CHECK(extant_materialize_fd(fd, &options, NULL, &report, NULL) == EXTANT_STATUS_OK);
    CHECK(report.zeroed_bytes + report.already_written_bytes == 2 * MIB);
    CHECK(report.already_written_bytes == 4096);
    struct map map = map_of("thin");
    CHECK(map.bytes[EXTANT_STATE_WRITTEN] == 2 * MIB && map.bytes[EXTANT_STATE_HOLE] == 2 * MIB);
    char data[4];
    CHECK(pread(fd, data, 4, MIB) == 4 && memcmp(data, "data", 4) == 0);

    CHECK(extant_write_zeroes_fd(fd, MIB, 4 * MIB, NULL, NULL) == EXTANT_STATUS_OK);
    CHECK(pread(fd, data, 4, MIB) == 4 && memcmp(data, "\0\0\0\0", 4) == 0);
    CHECK(lseek(fd, 0, SEEK_END) == (off_t)(5 * MIB));
    struct map first = {.most = 1};
    CHECK(extant_map_fd(fd, 0, UINT64_MAX, add, &first, NULL) == EXTANT_STATUS_OK && first.extents == 1);
    CHECK(close(fd) == 0);

    CHECK(extant_write_zeroes("thin", 0, 5 * MIB, NULL, NULL) == EXTANT_STATUS_OK);
    CHECK(extant_materialize("thin", NULL, NULL, &report, NULL) == EXTANT_STATUS_OK && report.zeroed_bytes == 0);
    FAILS(extant_write_zeroes("thin", 1, UINT64_MAX, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_write_zeroes("thin", 1, 0, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_materialize_fd(-1, NULL, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_materialize_fd(999, NULL, NULL, NULL, &error), EXTANT_STATUS_IO, EBADF);
    FAILS(extant_map("thin", 0, 1, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_map(".", 0, 1, add, NULL, &error), EXTANT_STATUS_WRONG_TYPE, EINVAL);
}

static void places(void)
{
    extant_probe_report report;
    CHECK(extant_probe(".", &report, NULL) == EXTANT_STATUS_OK);
    CHECK(strcmp(report.filesystem, "ext4") == 0 && report.block_bytes == 4096);
    CHECK(report.way == EXTANT_WAY_OVERWRITE || report.way == EXTANT_WAY_WRITE_ZEROES);
    CHECK(strlen(report.reason) > 0 && report.available_bytes > 0);
    CHECK(strchr(extant_version(), '.') != NULL);
    CHECK(strcmp(extant_error_message(NULL), "") == 0 && extant_error_errno(NULL) == 0);
}

static void descriptors_stay(void)
{
    const int flags[] = {0, O_DIRECT, O_APPEND, O_DIRECT | O_APPEND | O_NONBLOCK};
    extant_materialize_options options;
    extant_materialize_options_init(&options);
    for (int lease = 0; lease <= 1; lease++) {
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
            int fd = open("kept", O_RDWR | O_CREAT | O_TRUNC | flags[i], 0644);
            CHECK(fd >= 0 && ftruncate(fd, MIB + 100) == 0 && lseek(fd, 4096, SEEK_SET) == 4096);
            CHECK(fcntl(fd, F_SETSIG, SIGWINCH) == 0);
            CHECK(!lease || fcntl(fd, F_SETLEASE, F_WRLCK) == 0);
            struct descriptor before = descriptor_of(fd);
            for (int shared = 0; shared <= 1; shared++) {
                struct map map = {.most = -1};
                struct descriptor after;
                options.shared_access = shared;
                CHECK(extant_materialize_fd(fd, &options, NULL, NULL, NULL) == EXTANT_STATUS_OK);
                after = descriptor_of(fd);
                CHECK(memcmp(&before, &after, sizeof before) == 0);
                CHECK(extant_write_zeroes_fd(fd, 10, 5000, NULL, NULL) == EXTANT_STATUS_OK);
                after = descriptor_of(fd);
                CHECK(memcmp(&before, &after, sizeof before) == 0);
                CHECK(extant_map_fd(fd, 0, UINT64_MAX, add, &map, NULL) == EXTANT_STATUS_OK);
                CHECK(map.bytes[EXTANT_STATE_WRITTEN] == MIB + 100);
                after = descriptor_of(fd);
                CHECK(memcmp(&before, &after, sizeof before) == 0);
            }
            struct stat found;
            CHECK(fstat(fd, &found) == 0 && found.st_size == (off_t)(MIB + 100));
            CHECK(close(fd) == 0);
        }
    }
    options.background_basis_points = 1000;
    FAILS(extant_materialize("kept", &options, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
}

/* Opening the other end of a pipe again would wait for another process. */
static void other_descriptors(void)
{
    CHECK(mkfifo("fifo", 0600) == 0);
    int both = open("fifo", O_RDWR), reader = open("fifo", O_RDONLY), ends[2];
    CHECK(both >= 0 && reader >= 0 && close(both) == 0 && pipe(ends) == 0);
    int all[] = {reader, ends[0], ends[1], open(".", O_RDONLY), open("/dev/null", O_RDWR)};
    alarm(20);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(all[i] >= 0);
        FAILS(extant_map_fd(all[i], 0, UINT64_MAX, add, NULL, &error), EXTANT_STATUS_WRONG_TYPE, EINVAL);
        FAILS(extant_write_zeroes_fd(all[i], 0, MIB, NULL, &error), EXTANT_STATUS_WRONG_TYPE, EINVAL);
        FAILS(extant_materialize_fd(all[i], NULL, NULL, NULL, &error), EXTANT_STATUS_WRONG_TYPE, EINVAL);
        CHECK(close(all[i]) == 0);
    }
    alarm(0);
}

int main(void)
{
    CHECK(pthread_atfork(forked, NULL, NULL) == 0);
    creation();
    stopping();
    existing_files();
    descriptors_stay();
    other_descriptors();
    places();
    /* The library starts no processes. */
    CHECK(forks == 0);
    return 0;
}
