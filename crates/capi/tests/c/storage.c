/* The calls on images, pools, volumes and jobs, in the current directory; ends with 0 when each did what the header says. */

#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

static int forks;

static void forked(void)
{
    forks++;
}

static int descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    while (readdir(all) != NULL)
        count++;
    closedir(all);
    return count;
}

static extant_image_info info_of(const char *path)
{
    extant_image_info info = {.struct_size = sizeof info};
    SUCCEEDS(extant_image_get_info(path, EXTANT_IMAGE_FORMAT_AUTO, NULL, &info, &error));
    return info;
}

static int stop(const extant_progress *progress, void *user)
{
    CHECK(progress->done_bytes <= progress->total_bytes);
    ++*(int *)user;
    return 1;
}

static void images(void)
{
    extant_image_options options;
    extant_image_options_init(&options);
    CHECK(options.struct_size == sizeof options);
    options.cluster_bytes = 128 << 10;
    options.lazy_refcounts = 1;
    options.compression = EXTANT_IMAGE_COMPRESSION_ZSTD;
    extant_image_report report = {.struct_size = sizeof report};
    SUCCEEDS(extant_image_create("a.qcow2", 8 * MIB, &options, NULL, &report, &error));
    CHECK(report.struct_size == sizeof report && report.capacity_bytes == 8 * MIB);
    CHECK(report.written_bytes >= 8 * MIB && report.size_bytes > 8 * MIB && report.extents > 0);
    extant_image_info info = info_of("a.qcow2");
    CHECK(info.format == EXTANT_IMAGE_FORMAT_QCOW2 && info.preallocation == EXTANT_IMAGE_PREALLOCATION_FULL);
    CHECK(info.cluster_bytes == 128 << 10 && info.lazy_refcounts == 1 && info.version == 3);
    CHECK(info.compression == EXTANT_IMAGE_COMPRESSION_ZSTD && info.written_bytes == 8 * MIB);

    /* The default of an image with a backing file is thin. */
    extant_image_options_init(&options);
    options.backing_file = "a.qcow2";
    FAILS(extant_image_create("top.qcow2", 8 * MIB, &options, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT,
          EINVAL);
    options.backing_format = EXTANT_IMAGE_FORMAT_QCOW2;
    SUCCEEDS(extant_image_create("top.qcow2", 8 * MIB, &options, NULL, NULL, &error));
    info = info_of("top.qcow2");
    CHECK(strcmp(info.backing_file, "a.qcow2") == 0 && strcmp(info.backing_format, "qcow2") == 0);
    CHECK(info.preallocation == EXTANT_IMAGE_PREALLOCATION_OFF && info.written_bytes == 0);
    options.backing_file = "none.qcow2";
    FAILS(extant_image_create("x.qcow2", 8 * MIB, &options, NULL, NULL, &error), EXTANT_STATUS_NOT_FOUND, ENOENT);
    options.backing_unchecked = 1;
    SUCCEEDS(extant_image_create("lone.qcow2", 8 * MIB, &options, NULL, NULL, &error));

    /* A copy reads the named files only if it may. */
    extant_image_source source;
    extant_image_source_init(&source);
    FAILS(extant_image_convert("top.qcow2", "b.raw", &source, NULL, NULL, NULL, &error),
          EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    CHECK(access("b.raw", F_OK) != 0);
    source.open_named_files = 1;
    source.capacity_bytes = 12 * MIB;
    SUCCEEDS(extant_image_convert("top.qcow2", "b.raw", &source, NULL, NULL, &report, &error));
    CHECK(report.capacity_bytes == 12 * MIB && info_of("b.raw").format == EXTANT_IMAGE_FORMAT_RAW);
    FAILS(extant_image_convert("b.raw", "./b.raw", NULL, NULL, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT,
          EINVAL);
    FAILS(extant_image_convert("b.raw", "nbd://host/x", NULL, NULL, NULL, NULL, &error), EXTANT_STATUS_UNSUPPORTED,
          EOPNOTSUPP);
    FAILS(extant_image_convert("none", "c.raw", NULL, NULL, NULL, NULL, &error), EXTANT_STATUS_NOT_FOUND, ENOENT);

    /* A thin image becomes full; a cancel leaves it usable. */
    extant_image_options_init(&options);
    options.preallocation = EXTANT_IMAGE_PREALLOCATION_OFF;
    SUCCEEDS(extant_image_create("thin.qcow2", 64 * MIB, &options, NULL, NULL, &error));
    int told = 0;
    extant_control control = {.progress = stop, .user = &told};
    FAILS(extant_image_materialize("thin.qcow2", NULL, &control, NULL, &error), EXTANT_STATUS_CANCELLED, EINTR);
    CHECK(told > 0 && info_of("thin.qcow2").capacity_bytes == 64 * MIB);
    extant_image_materialize_report full = {.struct_size = sizeof full};
    SUCCEEDS(extant_image_materialize("thin.qcow2", NULL, NULL, &full, &error));
    CHECK(full.capacity_bytes == 64 * MIB && full.already_written_bytes < 64 * MIB);
    CHECK(info_of("thin.qcow2").preallocation == EXTANT_IMAGE_PREALLOCATION_FULL);
    FAILS(extant_image_materialize("top.qcow2", NULL, NULL, NULL, &error), EXTANT_STATUS_UNSUPPORTED, EOPNOTSUPP);

    /* A cancel of a new image leaves nothing. */
    FAILS(extant_image_create("y.qcow2", 64 * MIB, NULL, &control, NULL, &error), EXTANT_STATUS_CANCELLED, EINTR);
    FAILS(extant_image_create("a.qcow2", MIB, NULL, NULL, NULL, &error), EXTANT_STATUS_ALREADY_EXISTS, EEXIST);
    CHECK(access("y.qcow2", F_OK) != 0);

    /* Structures of other versions, and of none. */
    report.struct_size = 0;
    FAILS(extant_image_create("z.raw", MIB, NULL, NULL, &report, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_image_convert("a.qcow2", "z.raw", NULL, NULL, NULL, &report, &error), EXTANT_STATUS_INVALID_ARGUMENT,
          EINVAL);
    CHECK(access("z.raw", F_OK) != 0);
    SUCCEEDS(extant_image_create("thin2.qcow2", MIB, &options, NULL, NULL, &error));
    full.struct_size = sizeof full - 1;
    FAILS(extant_image_materialize("thin2.qcow2", NULL, NULL, &full, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    CHECK(info_of("thin2.qcow2").preallocation == EXTANT_IMAGE_PREALLOCATION_OFF);
    options.struct_size = 3;
    FAILS(extant_image_create("z2.raw", MIB, &options, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_image_get_info("a.qcow2", 17, NULL, &info, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_image_get_info(NULL, 0, NULL, &info, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    CHECK(rename("a.qcow2", "a.img") == 0);
    FAILS(extant_image_convert("a.img", "c.raw", NULL, NULL, NULL, NULL, &error), EXTANT_STATUS_UNSUPPORTED,
          EOPNOTSUPP);
}

struct names {
    char all[10][EXTANT_NAME_BYTES];
    int count;
    int most;
};

static int add_volume(const extant_volume_entry *volume, void *user)
{
    struct names *names = user;
    strcpy(names->all[names->count++], volume->name);
    return names->count == names->most;
}

static int add_pool(const extant_pool_entry *pool, void *user)
{
    struct names *names = user;
    CHECK((pool->status == EXTANT_STATUS_OK) == (strlen(pool->message) == 0));
    strcpy(names->all[names->count++], pool->name);
    return 0;
}

static int count_jobs(const extant_job_info *job, void *user)
{
    CHECK(job->id > 0 && strlen(job->volume) > 0);
    ++*(int *)user;
    return 0;
}

static extant_pool *new_pool(const char *name)
{
    extant_pool *pool;
    SUCCEEDS(extant_pool_define(name, name, "defined", NULL, &pool, &error));
    return pool;
}

static void run(extant_job *job)
{
    CHECK(job != NULL);
    SUCCEEDS(extant_job_run(job, EXTANT_JOB_ON_STOP_CANCEL, NULL, &error));
    FAILS(extant_job_run(job, EXTANT_JOB_ON_STOP_CANCEL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    extant_job_free(job);
}

static void pools(void)
{
    extant_pool *pool = new_pool("vms"), *again;
    FAILS(extant_pool_define("vms", "other", "defined", NULL, NULL, &error), EXTANT_STATUS_ALREADY_EXISTS, EEXIST);
    FAILS(extant_pool_define("a/b", "other", "defined", NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    again = (extant_pool *)1;
    FAILS(extant_pool_open("none", "defined", &again, &error), EXTANT_STATUS_NOT_FOUND, ENOENT);
    CHECK(again == NULL);
    SUCCEEDS(extant_pool_open("vms", "defined", &again, &error));
    extant_pool_free(again);
    SUCCEEDS(extant_pool_open("./vms", NULL, &again, &error));
    extant_pool_free(again);
    extant_pool_options options;
    extant_pool_options_init(&options);
    options.directory = "/volumes";
    FAILS(extant_pool_define("x", "other", "defined", &options, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);

    extant_job *job;
    SUCCEEDS(extant_volume_create(pool, "a.raw", 4 * MIB, NULL, &job, &error));
    extant_job *other = (extant_job *)1;
    FAILS(extant_volume_create(pool, "a.raw", 4 * MIB, NULL, &other, &error), EXTANT_STATUS_IN_USE, EBUSY);
    CHECK(other == NULL);
    run(job);
    FAILS(extant_volume_create(pool, "a.raw", 4 * MIB, NULL, &other, &error), EXTANT_STATUS_ALREADY_EXISTS, EEXIST);
    FAILS(extant_volume_create(pool, ".a", MIB, NULL, &other, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_volume_create(NULL, "a", MIB, NULL, &other, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_volume_create(pool, "a", MIB, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_volume_create(pool, "big", UINT64_C(1) << 60, NULL, &other, &error), EXTANT_STATUS_NO_SPACE, ENOSPC);

    extant_volume_options with;
    extant_volume_options_init(&with);
    extant_image_options qcow2;
    extant_image_options_init(&qcow2);
    qcow2.cluster_bytes = 1 << 20;
    with.qcow2 = &qcow2;
    with.preallocation = EXTANT_IMAGE_PREALLOCATION_METADATA;
    with.mode = 0640;
    SUCCEEDS(extant_volume_create(pool, "b.qcow2", 8 * MIB, &with, &job, &error));
    run(job);
    extant_volume_info info = {.struct_size = sizeof info};
    SUCCEEDS(extant_volume_get_info(pool, "b.qcow2", &info, &error));
    CHECK(info.format == EXTANT_IMAGE_FORMAT_QCOW2 && info.capacity_bytes == 8 * MIB && info.mode == 0640);
    CHECK(info.preallocation == EXTANT_IMAGE_PREALLOCATION_METADATA && info.may_run_out_of_space == 1);
    CHECK(strcmp(info.name, "b.qcow2") == 0 && info_of(info.path).cluster_bytes == 1 << 20);
    extant_volume_options_init(&with);
    SUCCEEDS(extant_volume_materialize(pool, "b.qcow2", NULL, &job, &error));
    run(job);
    SUCCEEDS(extant_volume_get_info(pool, "b.qcow2", &info, &error));
    CHECK(info.preallocation == EXTANT_IMAGE_PREALLOCATION_FULL && info.written_bytes == 8 * MIB);

    SUCCEEDS(extant_volume_resize(pool, "a.raw", 6 * MIB, NULL, &job, &error));
    run(job);
    FAILS(extant_volume_resize(pool, "a.raw", MIB, NULL, &job, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    with.shrink = 1;
    SUCCEEDS(extant_volume_resize(pool, "a.raw", MIB, &with, &job, &error));
    run(job);
    SUCCEEDS(extant_volume_get_info(pool, "a.raw", &info, &error));
    CHECK(info.capacity_bytes == MIB && info.written_bytes == MIB);

    /* Out of the pool and in again. */
    int fd = open(info.path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, "data", 4, 4096) == 4 && close(fd) == 0);
    SUCCEEDS(extant_volume_download(pool, "a.raw", "out.raw", NULL, &job, &error));
    run(job);
    SUCCEEDS(extant_volume_download(pool, "a.raw", "out.raw", NULL, &job, &error));
    FAILS(extant_job_run(job, EXTANT_JOB_ON_STOP_CANCEL, NULL, &error), EXTANT_STATUS_ALREADY_EXISTS, EEXIST);
    extant_job_free(job);
    SUCCEEDS(extant_volume_upload(pool, "c.raw", "out.raw", NULL, &job, &error));
    run(job);
    SUCCEEDS(extant_volume_clone(pool, "c.raw", "d.raw", NULL, &job, &error));
    run(job);
    char data[4];
    fd = open("vms/d.raw", O_RDONLY);
    CHECK(fd >= 0 && pread(fd, data, 4, 4096) == 4 && memcmp(data, "data", 4) == 0);
    CHECK(close(fd) == 0);
    SUCCEEDS(extant_volume_delete(pool, "d.raw", 0, &error));
    FAILS(extant_volume_delete(pool, "d.raw", 0, &error), EXTANT_STATUS_NOT_FOUND, ENOENT);

    struct names names = {.most = -1};
    SUCCEEDS(extant_volume_list(pool, add_volume, &names, &error));
    CHECK(names.count == 3 && strcmp(names.all[0], "a.raw") == 0 && strcmp(names.all[2], "c.raw") == 0);
    struct names first = {.most = 1};
    SUCCEEDS(extant_volume_list(pool, add_volume, &first, &error));
    CHECK(first.count == 1);
    FAILS(extant_volume_list(pool, NULL, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    extant_pool_info all = {.struct_size = sizeof all};
    SUCCEEDS(extant_pool_get_info(pool, &all, &error));
    CHECK(strcmp(all.name, "vms") == 0 && all.volumes == 3 && all.jobs == 0 && all.kind == EXTANT_POOL_KIND_DIR);
    CHECK(all.promised_bytes >= 10 * MIB && all.path[0] == '/');
    /* A program of an earlier version has less room. */
    all.struct_size = offsetof(extant_pool_info, name);
    FAILS(extant_pool_get_info(pool, &all, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);

    int broken = open("defined/broken.json", O_WRONLY | O_CREAT, 0644);
    CHECK(broken >= 0 && close(broken) == 0);
    struct names defined = {.count = 0};
    SUCCEEDS(extant_pool_list("defined", add_pool, &defined, &error));
    CHECK(defined.count == 2 && strcmp(defined.all[0], "broken") == 0 && strcmp(defined.all[1], "vms") == 0);
    SUCCEEDS(extant_pool_undefine("vms", "defined", &error));
    FAILS(extant_pool_undefine("vms", "defined", &error), EXTANT_STATUS_NOT_FOUND, ENOENT);
    CHECK(access("vms/a.raw", F_OK) == 0);
    extant_pool_free(pool);
    extant_pool_free(NULL);
}

struct worker {
    pthread_t thread;
    extant_job *job;
    extant_cancel *cancel;
    extant_status status;
    uint32_t on_stop;
    int told;
};

static int count_steps(const extant_progress *progress, void *user)
{
    CHECK(progress->done_bytes <= progress->total_bytes);
    ++*(int *)user;
    return 0;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    extant_control control = {.progress = count_steps, .user = &worker->told, .cancel = worker->cancel};
    worker->status = extant_job_run(worker->job, worker->on_stop, &control, NULL);
    return NULL;
}

static struct worker *begin(extant_pool *pool, const char *name, extant_cancel *cancel)
{
    struct worker *worker = calloc(1, sizeof *worker);
    worker->cancel = cancel;
    extant_volume_options options;
    extant_volume_options_init(&options);
    options.rate_bytes = MIB;
    SUCCEEDS(extant_volume_create(pool, name, 32 * MIB, &options, &worker->job, &error));
    CHECK(pthread_create(&worker->thread, NULL, work, worker) == 0);
    return worker;
}

static extant_status end(struct worker *worker)
{
    CHECK(pthread_join(worker->thread, NULL) == 0);
    extant_status status = worker->status;
    extant_job_free(worker->job);
    free(worker);
    return status;
}

static int has_begun(const extant_progress *progress, void *user)
{
    (void)user;
    return progress->done_bytes > 0;
}

static void jobs(void)
{
    extant_pool *pool = new_pool("work");
    extant_cancel *cancel = extant_cancel_new();
    /* Two jobs share one cancel. That of a job by its number ends this one alone. */
    struct worker *one = begin(pool, "one", cancel), *two = begin(pool, "two", cancel);
    uint64_t ids[] = {extant_job_id(one->job), extant_job_id(two->job)};
    extant_control until = {.progress = has_begun};
    for (int i = 0; i < 2; i++)
        FAILS(extant_job_wait(pool, ids[i], &until, NULL, &error), EXTANT_STATUS_CANCELLED, EINTR);
    int count = 0;
    SUCCEEDS(extant_job_list(pool, count_jobs, &count, &error));
    CHECK(count == 2);
    /* A wrong size is refused before anything happens. */
    extant_job_info info = {.struct_size = 1};
    FAILS(extant_job_cancel(pool, ids[0], &info, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    FAILS(extant_job_wait(pool, ids[0], NULL, &info, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
    info.struct_size = sizeof info;
    SUCCEEDS(extant_job_cancel(pool, ids[0], &info, &error));
    CHECK(info.state == EXTANT_JOB_STATE_CANCELLED && info.status == EXTANT_STATUS_CANCELLED);
    CHECK(info.error_number == EINTR && info.id == ids[0] && strlen(info.message) > 0 && info.ended >= info.created);
    CHECK(one->told > 0 && end(one) == EXTANT_STATUS_CANCELLED);
    SUCCEEDS(extant_job_get_info(pool, ids[1], &info, &error));
    CHECK(info.state == EXTANT_JOB_STATE_RUNNING && info.operation == EXTANT_JOB_OPERATION_CREATE);
    CHECK(info.ended == 0 && info.progress.total_bytes > 0 && strcmp(info.volume, "two") == 0);
    extant_job *job = (extant_job *)1;
    FAILS(extant_job_resume(pool, ids[1], &job, &error), EXTANT_STATUS_IN_USE, EBUSY);
    CHECK(job == NULL);
    /* The token is only read: it ends all that share it. */
    extant_cancel_now(cancel);
    CHECK(end(two) == EXTANT_STATUS_CANCELLED);
    extant_cancel_free(cancel);
    CHECK(access("work/one", F_OK) != 0 && access("work/two", F_OK) != 0);
    FAILS(extant_job_cancel(pool, ids[1], NULL, &error), EXTANT_STATUS_ALREADY_EXISTS, EEXIST);
    FAILS(extant_job_get_info(pool, 99, &info, &error), EXTANT_STATUS_NOT_FOUND, ENOENT);

    /* A job that is freed before it ran is interrupted; the pool may be freed before the job. */
    SUCCEEDS(extant_volume_create(pool, "three", MIB, NULL, &job, &error));
    uint64_t id = extant_job_id(job);
    extant_job_free(job);
    SUCCEEDS(extant_job_wait(pool, id, NULL, &info, &error));
    CHECK(info.state == EXTANT_JOB_STATE_INTERRUPTED);
    SUCCEEDS(extant_job_resume(pool, id, &job, &error));
    extant_pool_free(pool);
    run(job);
    CHECK(access("work/three", F_OK) == 0);
    CHECK(extant_job_id(NULL) == 0);
    extant_job_free(NULL);
    FAILS(extant_job_run(NULL, 0, NULL, &error), EXTANT_STATUS_INVALID_ARGUMENT, EINVAL);
}

int main(void)
{
    CHECK(pthread_atfork(forked, NULL, NULL) == 0);
    int before = descriptors();
    images();
    pools();
    jobs();
    /* The library keeps no descriptors, and starts no processes. */
    CHECK(descriptors() == before);
    CHECK(forks == 0);
    return 0;
}
