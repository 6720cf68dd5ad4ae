/*
 * Runs a job on a thread, interrupts it, resumes it, and cancels it by its number, as another process would.
 *
 *     cc -o job job.c $(pkg-config --cflags --libs extant) -lpthread
 *     ./job DIRECTORY
 */

#include <extant.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const STATES[] = {"waiting", "running", "interrupted", "done", "failed", "cancelled"};

struct run {
    extant_job *job;
    extant_cancel *cancel;
    extant_status status;
};

/* C says not when arguments are evaluated: `error` is read after `call` has set it. */
#define CHECK(call)                   \
    do {                              \
        extant_status done = (call);  \
        check(done, error);           \
    } while (0)

static void check(extant_status status, extant_error *error)
{
    if (status == EXTANT_STATUS_OK)
        return;
    fprintf(stderr, "%s\n", extant_error_message(error));
    extant_error_free(error);
    exit(1);
}

static void *run(void *argument)
{
    struct run *run = argument;
    extant_control control = {.cancel = run->cancel};
    run->status = extant_job_run(run->job, EXTANT_JOB_ON_STOP_INTERRUPT, &control, NULL);
    return NULL;
}

static int show(const extant_job_info *job, void *user)
{
    (void)user;
    printf("job %" PRIu64 " of %s: %s\n", job->id, job->volume, STATES[job->state]);
    return 0;
}

/* Waits until the job has written something; anything but 0 ends the wait, not the job. */
static int is_at_work(const extant_progress *progress, void *user)
{
    (void)user;
    return progress->step == EXTANT_STEP_WRITE && progress->done_bytes > 0;
}

static void wait_for_work(const extant_pool *pool, uint64_t id)
{
    extant_control control = {.progress = is_at_work};
    if (extant_job_wait(pool, id, &control, NULL, NULL) != EXTANT_STATUS_CANCELLED)
        exit(1);
}

int main(int count, char **words)
{
    if (count != 2) {
        fprintf(stderr, "usage: job DIRECTORY\n");
        return 2;
    }
    extant_error *error;
    extant_pool *pool;
    CHECK(extant_pool_open(words[1], NULL, &pool, &error));
    extant_volume_options options;
    extant_volume_options_init(&options);
    options.rate_bytes = 4 << 20;
    struct run first = {.cancel = extant_cancel_new()};
    CHECK(extant_volume_create(pool, "slow.raw", 64 << 20, &options, &first.job, &error));
    uint64_t id = extant_job_id(first.job);
    pthread_t thread;
    pthread_create(&thread, NULL, run, &first);
    wait_for_work(pool, id);
    extant_cancel_now(first.cancel);
    pthread_join(thread, NULL);
    extant_job_free(first.job);
    extant_cancel_free(first.cancel);
    CHECK(extant_job_list(pool, show, NULL, &error));

    struct run second = {0};
    CHECK(extant_job_resume(pool, id, &second.job, &error));
    pthread_create(&thread, NULL, run, &second);
    wait_for_work(pool, id);
    extant_job_info info = {.struct_size = sizeof info};
    CHECK(extant_job_cancel(pool, id, &info, &error));
    pthread_join(thread, NULL);
    extant_job_free(second.job);
    printf("%s: %s\n", STATES[info.state], info.message);
    CHECK(extant_job_list(pool, show, NULL, &error));
    extant_pool_free(pool);
    return first.status == EXTANT_STATUS_CANCELLED && second.status == EXTANT_STATUS_CANCELLED ? 0 : 1;
}
