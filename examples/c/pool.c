/*
 * Defines a pool in a directory, makes a volume in it, and lists both.
 *
 *     cc -o pool pool.c $(pkg-config --cflags --libs extant)
 *     ./pool DEFINITIONS DIRECTORY
 *
 * DEFINITIONS is a directory for definitions of pools; without it they would be those of the user.
 */

#include <extant.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

static int show_pool(const extant_pool_entry *pool, void *user)
{
    (void)user;
    printf("pool %s %s\n", pool->name, pool->status == EXTANT_STATUS_OK ? pool->path : pool->message);
    return 0;
}

static int show_volume(const extant_volume_entry *volume, void *user)
{
    (void)user;
    printf("volume %s %" PRIu64 " %" PRIu64 "\n", volume->name, volume->capacity_bytes, volume->allocated_bytes);
    return 0;
}

int main(int count, char **words)
{
    if (count != 3) {
        fprintf(stderr, "usage: pool DEFINITIONS DIRECTORY\n");
        return 2;
    }
    extant_error *error;
    extant_pool *pool;
    extant_pool_options options;
    extant_pool_options_init(&options);
    options.total_bytes = 64 << 20;
    CHECK(extant_pool_define("vms", words[2], words[1], &options, &pool, &error));

    /* The call reserves the space; the job writes it. */
    extant_job *job;
    CHECK(extant_volume_create(pool, "web.raw", 8 << 20, NULL, &job, &error));
    extant_status status = extant_job_run(job, EXTANT_JOB_ON_STOP_CANCEL, NULL, &error);
    extant_job_free(job);
    CHECK(status);

    CHECK(extant_pool_list(words[1], show_pool, NULL, &error));
    CHECK(extant_volume_list(pool, show_volume, NULL, &error));
    extant_pool_info info = {.struct_size = sizeof info};
    CHECK(extant_pool_get_info(pool, &info, &error));
    printf("promised %" PRIu64 " of %" PRIu64 "\n", info.promised_bytes, info.total_bytes);

    /* More than the pool has is refused before anything is written. */
    if (extant_volume_create(pool, "big.raw", 1 << 30, NULL, &job, &error) != EXTANT_STATUS_NO_SPACE)
        return 1;
    printf("refused: %s\n", extant_error_message(error));
    extant_error_free(error);
    extant_pool_free(pool);
    return 0;
}
