/*
 * Makes a file whose space is really there, tells how far it is, and shows the file's map.
 *
 *     cc -o create create.c $(pkg-config --cflags --libs extant)
 */

#include <extant.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const STATES[] = {"hole", "unwritten", "written"};

static int tell(const extant_progress *progress, void *user)
{
    (void)user;
    fprintf(stderr, "\r%3.0f%%", 100.0 * (double)progress->done_bytes / (double)progress->total_bytes);
    return 0;
}

static int show(const extant_extent *extent, void *user)
{
    (void)user;
    printf("%12" PRIu64 " %12" PRIu64 " %s\n", extent->logical, extent->length, STATES[extent->state]);
    return 0;
}

int main(int count, char **words)
{
    if (count != 2) {
        fprintf(stderr, "usage: create FILE\n");
        return 2;
    }
    extant_create_options options;
    extant_create_options_init(&options);
    options.preallocation = EXTANT_PREALLOCATION_FULL;

    extant_control control = {.progress = tell};
    extant_create_report report;
    extant_error *error;
    if (extant_create(words[1], 8 << 20, &options, &control, &report, &error) != EXTANT_STATUS_OK) {
        fprintf(stderr, "%s\n", extant_error_message(error));
        extant_error_free(error);
        return 1;
    }
    fprintf(stderr, "\n");
    printf("%" PRIu64 " bytes written, %" PRIu64 " extents\n", report.written_bytes, report.extents);
    if (extant_map(words[1], 0, UINT64_MAX, show, NULL, &error) != EXTANT_STATUS_OK) {
        fprintf(stderr, "%s\n", extant_error_message(error));
        extant_error_free(error);
        return 1;
    }
    /* The name is taken now. */
    if (extant_create(words[1], 8 << 20, &options, NULL, NULL, &error) != EXTANT_STATUS_ALREADY_EXISTS)
        return 1;
    printf("again: %s\n", strstr(extant_error_message(error), "file exists"));
    extant_error_free(error);
    return 0;
}
