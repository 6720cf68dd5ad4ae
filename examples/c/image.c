/*
 * Makes a thin qcow2 image, copies it into a raw one, makes the qcow2 image full, and describes all three states.
 *
 *     cc -o image image.c $(pkg-config --cflags --libs extant)
 *     ./image DIRECTORY
 */

#include <extant.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const MODES[] = {"off", "metadata", "falloc", "full"};

static extant_cancel *cancel;

/* Ctrl-C: the call ends within 100 ms, and leaves no file. */
static void interrupted(int number)
{
    (void)number;
    extant_cancel_now(cancel);
}

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
    extant_cancel_free(cancel);
    exit(1);
}

static int tell(const extant_progress *progress, void *user)
{
    if (progress->total_bytes > 0)
        fprintf(stderr, "\r%s %3.0f%%", (const char *)user,
                100.0 * (double)progress->done_bytes / (double)progress->total_bytes);
    return 0;
}

static void describe(const char *path)
{
    extant_error *error;
    extant_image_info info = {.struct_size = sizeof info};
    CHECK(extant_image_get_info(path, EXTANT_IMAGE_FORMAT_AUTO, NULL, &info, &error));
    printf("%s: %s, disk %" PRIu64 ", written %" PRIu64 ", preallocation %s\n", path,
           info.format == EXTANT_IMAGE_FORMAT_QCOW2 ? "qcow2" : "raw", info.capacity_bytes, info.written_bytes,
           MODES[info.preallocation]);
}

int main(int count, char **words)
{
    if (count != 2) {
        fprintf(stderr, "usage: image DIRECTORY\n");
        return 2;
    }
    char thin[4096], copy[4096];
    snprintf(thin, sizeof thin, "%s/disk.qcow2", words[1]);
    snprintf(copy, sizeof copy, "%s/copy.raw", words[1]);
    cancel = extant_cancel_new();
    signal(SIGINT, interrupted);
    extant_control control = {.progress = tell, .cancel = cancel};
    extant_error *error;

    extant_image_options options;
    extant_image_options_init(&options);
    options.preallocation = EXTANT_IMAGE_PREALLOCATION_OFF;
    control.user = "create";
    CHECK(extant_image_create(thin, 16 << 20, &options, &control, NULL, &error));
    describe(thin);

    /* A copy is thin unless the options say otherwise. */
    options.preallocation = EXTANT_IMAGE_PREALLOCATION_FULL;
    control.user = "convert";
    extant_image_report report = {.struct_size = sizeof report};
    CHECK(extant_image_convert(thin, copy, NULL, &options, &control, &report, &error));
    fprintf(stderr, "\n");
    printf("%s: %" PRIu64 " bytes written\n", copy, report.written_bytes);
    describe(copy);

    control.user = "materialize";
    CHECK(extant_image_materialize(thin, NULL, &control, NULL, &error));
    fprintf(stderr, "\n");
    describe(thin);
    extant_cancel_free(cancel);
    return 0;
}
